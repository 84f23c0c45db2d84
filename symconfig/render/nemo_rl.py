"""Target nemo-rl: the YAML of NeMo-RL's run_grpo.py with Megatron-Core and vLLM on the same GPUs, and train.sh.

Names are those of NeMo-RL 0.7.0 (`nemo_rl/algorithms/grpo.py`, MasterConfig; `models/policy/__init__.py`). What the
file does not say is that of `examples/configs/grpo_math_1B.yaml`, which it inherits. Weights and optimizer states leave
the GPU while the engine is awake, and the reference's weights come into the actor's place, always.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from symconfig.descriptor.rl import Rl
from symconfig.errors import Problem
from symconfig.formats.megatron import DEGREES
from symconfig.frameworks import counting
from symconfig.frameworks.megatron.bridge import fuses_rotations
from symconfig.plans.plan import Plan
from symconfig.render import learning, rewarding, step_words
from symconfig.render.learning import Learns
from symconfig.render.rewarding import Rewarding
from symconfig.render.summary import nodes
from symconfig.render.unsaid import Saving

NAME = "nemo-rl"
DOES = "NeMo-RL's YAML for GRPO with Megatron-Core and vLLM on the same GPUs, and train.sh"
ASSUMES = {"backend": "megatron"}
COUNTS = counting.STEPS
RELEASE = "0.7.0"
SAVING = Saving("checkpointing.enabled", "bash train.sh checkpointing.enabled=true checkpointing.checkpoint_dir=DIR")
UNSAID = {
    "split": "NeMo-RL takes a data set for training and another for validation",
    "eval_iters": "NeMo-RL validates on samples that grpo.max_val_samples counts",
    "tokenizer_model": "NeMo-RL takes the model's tokenizer",
    "tokenizer_type": "NeMo-RL takes the model's tokenizer",
    "manual_gc_interval": "NeMo-RL leaves the collection of garbage to Python",
    "distributed_timeout_minutes": "NeMo-RL waits as long as PyTorch",
    "log_interval": "NeMo-RL logs every step",
}
# What makes each algorithm, as sections of the file (docs/guides/grpo.md and examples of NeMo-RL).
_ALGORITHMS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "grpo": {},
    "dapo": {},
    "gspo": {"loss_fn": {"sequence_level_importance_ratios": True, "token_level_loss": False}},
    "rloo": {"grpo": {"normalize_rewards": False}, "loss_fn": {"disable_ppo_ratio": True}},
    "reinforce_plus_plus": {"grpo": {"adv_estimator": {"name": "reinforce_plus_plus"}}},
}
LEARNS = Learns(
    algorithms=tuple(_ALGORITHMS),
    engines=("vllm",),
    away=((learning.WEIGHTS, learning.STATES),),
    epochs=False,
    reference="swapped",
    rewards={"apart": Rewarding(by="shards")},  # environments/reward_model_environment.py, once all is generated
    sleep_levels=(1,),
    ranks_of_data=("vllm",),
    reads_apart=True,
)
# Those of which the Megatron-Bridge beside it makes a model (src/megatron/bridge/models, register_bridge, July 2026).
MODEL_TYPES = (
    "deepseek_v3",
    "gemma2",
    "gemma3_text",
    "glm4_moe",
    "gpt_oss",
    "kimi_k2",
    "llama",
    "minimax_m2",
    "mistral",
    "nemotron_h",
    "qwen2",
    "qwen3",
    "qwen3_5_text",
    "qwen3_moe",
    "qwen3_next",
)
Section = dict[str, Any]


def variables(plan: Plan) -> dict[str, object]:
    """Return what its templates see. Raises InfeasibleError for what NeMo-RL cannot be told."""
    learning.refuse(plan, LEARNS, NAME, _problems(plan))
    return {
        "framework": f"NeMo-RL {RELEASE}",
        "release": RELEASE,
        "sections": sections(plan, megatron(plan)),
        "arrays": {},
        "phases": step_words.phases(plan),
        "variables": (),
        "notes": tuple(step_words.notes(plan)),
        "predicted_for": "",
        "data_path": plan.training.data_path[0] if plan.training.data_path else "",
        "reward_model": rewarding.published(plan),
        "added": list(_added(plan)),
    }


def problems(plan: Plan) -> Iterator[Problem]:
    """Yield what NeMo-RL cannot be told, whatever its workers are."""
    rl, training = learning.section(plan), plan.training
    yield from learning.of_samples(plan, "NeMo-RL divides the samples of an update over data-parallel ranks")
    if rl.entropy:
        yield Problem("NeMo-RL's loss has no entropy", field="rl.entropy", got="true", need="false")
    if len(training.data_path) > 1:
        got = " ".join(training.data_path)
        yield Problem("NeMo-RL's file is for one data set", field="training.data_path", got=got)
    if training.load is not None and not training.loads_its_own:
        what = "NeMo-RL goes on from its own checkpoints"
        yield Problem(what, field="training.load", got=training.load, need="the folder of training.save")


def _problems(plan: Plan) -> Iterator[Problem]:
    p, options = plan.best.parallel, plan.best.options
    yield from problems(plan)
    yield from learning.of_types(plan, "NeMo-RL", MODEL_TYPES)
    yield from learning.of_megatron(plan, "NeMo-RL")
    if p.vpp > 1:
        what = "NeMo-RL's stages are of one chunk"
        yield Problem(what, field="vpp", got=str(p.vpp), pins=("vpp=1",))
    yield from learning.of_stages(plan, "NeMo-RL")
    recompute = options.recompute
    if recompute.method == "block" or (recompute.granularity == "full" and (recompute.num_layers or 1) > 1):
        what = "NeMo-RL runs every layer again, one by one, or parts of all"
        yield Problem(what, field="recompute", got="some layers", pins=("recompute=none", "recompute=selective"))
    if 0 < options.optimizer_offload < 1:
        what = "NeMo-RL's optimizer steps on the host as a whole, or not at all"
        pins = ("optimizer_offload=0", "optimizer_offload=1")
        yield Problem(what, field="optimizer_offload", got=f"{options.optimizer_offload:g}", pins=pins)


def sections(plan: Plan, workers: Section) -> dict[str, Section]:
    """Return the file by its sections."""
    rl, training, where, (count, gpus) = learning.section(plan), plan.training, nodes(plan), _added(plan)
    own = _ALGORITHMS[rl.algorithm]
    return {
        "grpo": {
            "num_prompts_per_step": rl.prompts,
            "num_generations_per_prompt": rl.samples,
            "max_num_steps": training.train_iters,
            "seed": training.seed,
            **({} if rl.reference else {"skip_reference_policy_logprobs_calculation": True}),
            **own.get("grpo", {}),
        },
        "loss_fn": {
            "reference_policy_kl_penalty": 0.001 if rl.reference else 0.0,
            **learning.clipped(rl, "ratio_clip_min", "ratio_clip_max"),
            **own.get("loss_fn", {}),
        },
        "checkpointing": _saving(plan),
        "policy": policy(plan) | workers,
        "data": {
            "max_input_seq_length": rl.prompt_length.max,
            **({"train": _data(training.data_path[0])} if training.data_path else {}),
        },
        **_rewarding(plan, rl),
        "logger": _logging(plan),
        "cluster": {"gpus_per_node": where.gpus + gpus, "num_nodes": where.count + count},
    }


def _added(plan: Plan) -> tuple[int, int]:
    """Return the nodes, and the GPUs of each, that NeMo-RL's cluster has beside those that train: on one node it takes
    a network's GPUs off the node's, else its nodes off all."""
    count, gpus = rewarding.nodes(plan)
    together = plan.best.parallel.world_size + count * gpus <= plan.cluster.gpus_per_node
    return (0, gpus) if together else (count, 0)


def _rewarding(plan: Plan, rl: Rl) -> Section:
    """Return what the workers are told that read responses with a network of rewards, on GPUs of their own."""
    if rl.reward_model is None:
        return {}
    nodes, gpus = rewarding.nodes(plan)
    own: Section = {"max_model_len": rl.longest, "batch_size": 1}
    if named := rewarding.published(plan):
        own["model_name"] = named
    own |= {"precision": learning.dtype(plan), "resources": {"num_nodes": nodes, "gpus_per_node": gpus}}
    return {"env": {"reward_model": own}}


def _data(path: str) -> Section:
    return {"dataset_name": "ResponseDataset", "data_path": path}


def _saving(plan: Plan) -> Section:
    training = plan.training
    if training.save is None:
        return {"enabled": False}
    return {"enabled": True, "checkpoint_dir": training.save, "save_period": training.save_interval}


def _logging(plan: Plan) -> Section:
    training, loggers = plan.training, Section()
    if training.wandb_project is not None:
        name = training.wandb_name or plan.model.name
        loggers |= {"wandb_enabled": True, "wandb": {"project": training.wandb_project, "name": name}}
    if training.tensorboard_dir is not None:
        loggers |= {"tensorboard_enabled": True, "log_dir": training.tensorboard_dir}
    return loggers


def policy(plan: Plan) -> Section:
    """Return what the actor's workers and the engine are told alike."""
    rl, best, training = learning.section(plan), plan.best, plan.training
    step, p = plan.rl[0] if plan.rl else None, best.parallel
    # Megatron-Core splits each packed sequence over tp and both halves of cp (models/megatron/data.py).
    multiple = (p.tp if best.options.sequence_parallel else 1) * (2 * p.cp if p.cp > 1 else 1)
    room = best.batch.micro * best.batch.seq_length
    read = step.read_per_gpu * p.cp if step is not None else room
    room, read = (-(-each // multiple) * multiple for each in (room, read))
    engine: Section = {"max_model_len": rl.longest, "async_engine": False}
    if step is not None:
        engine |= {"tensor_parallel_size": step.rollout_tp, "gpu_memory_utilization": step.memory_share}
        if step.rollout_dp > 1:
            engine["expert_parallel_size"] = step.replica_gpus
    return {
        "model_name": training.hf_weights or plan.model.huggingface_id or plan.model.name,
        "train_global_batch_size": rl.batch,
        "train_micro_batch_size": 1,
        "logprob_batch_size": 1,
        "max_total_sequence_length": rl.longest,
        "make_sequence_length_divisible_by": multiple,
        "precision": learning.dtype(plan),
        "max_grad_norm": training.clip_grad,
        "dynamic_batching": {"enabled": False},
        "sequence_packing": {"enabled": True, "train_mb_tokens": room, "logprob_mb_tokens": read},
        "generation": {
            "backend": "vllm",
            "max_new_tokens": rl.response_length.max,
            "vllm_cfg": engine,
            "vllm_kwargs": {"max_num_seqs": rl.rollout.max_num_seqs},
            "colocated": {"enabled": True},
        },
    }


def _ends(plan: Plan) -> Section:
    """Return the layers of the first and of the last stage, where they differ from the others'."""
    p, options = plan.best.parallel, plan.best.options
    first, last = options.first_stage_layers, options.last_stage_layers
    if options.account_for_embedding or options.account_for_loss:
        each = plan.model.num_hidden_layers + options.account_for_embedding + options.account_for_loss
        first, last = (each // p.pp - end for end in (options.account_for_embedding, options.account_for_loss))
    ends = {"num_layers_in_first_pipeline_stage": first, "num_layers_in_last_pipeline_stage": last}
    return {name: layers for name, layers in ends.items() if layers is not None}


def megatron(plan: Plan) -> Section:
    """Return what Megatron-Core is told of the policy."""
    p, options, training, model = plan.best.parallel, plan.best.options, plan.training, plan.model
    recompute, bf16, heads = options.recompute, options.precision == "bf16", model.num_nextn_predict_layers
    dispatcher: Section = {}
    if model.experts is not None:
        dispatcher = {"moe_token_dispatcher_type": options.moe_dispatcher, "moe_permute_fusion": True}
    if options.moe_dispatcher == "flex":
        dispatcher |= {
            "moe_flex_dispatcher_backend": options.moe_flex_backend,
            "moe_enable_deepep": options.moe_flex_backend == "deepep",
        }
    config: Section = {
        "enabled": True,
        **{word: getattr(p, name) for name, word in DEGREES.items()},
        "sequence_parallel": options.sequence_parallel,
        "activation_checkpointing": recompute.granularity != "none",
        **({"recompute_granularity": recompute.granularity} if recompute.granularity != "none" else {}),
        **({"recompute_modules": list(recompute.modules)} if recompute.granularity == "selective" else {}),
        **dispatcher,
        **_ends(plan),
        **({} if fuses_rotations(model) else {"apply_rope_fusion": False}),
        **({"mtp_num_layers": heads, "mtp_loss_scaling_factor": 0.1} if heads else {}),
        "optimizer": {
            "lr": training.lr,
            "min_lr": training.min_lr,
            "weight_decay": training.weight_decay,
            "adam_beta1": training.adam_beta1,
            "adam_beta2": training.adam_beta2,
            "adam_eps": training.adam_eps,
            "bf16": bf16,
            "fp16": not bf16,
            "use_distributed_optimizer": True,
            # Without it what is offloaded does not see which weights are loaded (NeMo-RL/issues/2371).
            "use_precision_aware_optimizer": options.optimizer_offload > 0,
            "optimizer_cpu_offload": options.optimizer_offload > 0,
            "optimizer_offload_fraction": options.optimizer_offload,
        },
        "scheduler": {
            "lr_decay_style": training.lr_decay_style,
            "lr_decay_iters": training.lr_decay_iters or training.train_iters,
            "lr_warmup_iters": training.lr_warmup_iters,
            "lr_warmup_init": 0.0,
        },
        "distributed_data_parallel_config": {
            "grad_reduce_in_fp32": options.grad_bytes == 4,
            "overlap_grad_reduce": options.overlap.grad_reduce,
            "overlap_param_gather": options.overlap.param_gather,
        },
    }
    return {"dtensor_cfg": {"enabled": False}, "megatron_cfg": config}
