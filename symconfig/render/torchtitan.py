"""Target torchtitan: a configuration function for its ConfigManager, and the plan's values as JSON beside it.

torchtitan 0.3 has no configuration files: `--module M --config F` names a Python function that returns a
Trainer.Config. plan_config.py is that function, the same for every plan; all that differs is in torchtitan.json.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from symconfig.frameworks import counting
from symconfig.frameworks.megatron.environment import Variable
from symconfig.plans.plan import Plan
from symconfig.render import monitors
from symconfig.render.files import File
from symconfig.render.refused import of_fsdp
from symconfig.render.summary import PACKING
from symconfig.render.torchtitan_limits import Flavor, narrow_moments, refuse
from symconfig.render.trainer import json_file
from symconfig.render.unsaid import Saving
from symconfig.resources import data_dir

NAME = "torchtitan"
DOES = "torchtitan's configuration function with the plan's values, and launch.sh, for the models that it has"
ASSUMES = {"backend": "megatron"}
COUNTS = counting.STEPS
RELEASE = "0.3.0"
SAVING = Saving("--checkpoint.enable", "bash launch.sh --checkpoint.enable --dump_folder DIR")
UNSAID = {
    "data_path": "torchtitan reads datasets that are registered with it, here c4",
    "split": "torchtitan's datasets are split already",
    "eval_iters": "torchtitan evaluates on registered datasets too, and the plan's configuration does not ask for it",
    "tokenizer_type": "torchtitan takes Hugging Face's tokenizers",
}
CONFIG, FUNCTION = "torchtitan.json", "plan_config.py"

OTHER = (
    "The plan was made for the other framework. torchtitan keeps weights and gradients in fp32 and shards them "
    "over the data ranks (FSDP2): times and bytes are only a first guess of what it takes"
)
WARM_UP = (
    "torchtitan warms up one step earlier than the other frameworks: its first step has the learning rate that "
    "theirs have in the second; from the end of the warm-up on they are the same"
)
BF16_STATES = "fused_opt_states_bf16"  # components/optimizer/optimizer.py, implementation
_RESHARD = {1: "never", 2: "never", 3: "always", 0: "never"}


def variables(plan: Plan) -> dict[str, object]:
    """Return what its templates see. Raises InfeasibleError for what torchtitan cannot be told."""
    flavor = refuse(plan)
    return {
        "framework": f"torchtitan {RELEASE}",
        "flavor": flavor.name,
        "module": flavor.module,
        "optimizer_states": BF16_STATES if narrow_moments(plan) else "",
        "variables": _environment(plan),
        "notes": tuple(_notes(plan)),
        "predicted_for": "" if of_fsdp(plan) else f"{OTHER}.",
    }


def texts(plan: Plan) -> Iterator[File]:
    """Yield the plan's values, and the function that hands them to torchtitan."""
    yield json_file(CONFIG, config(plan, refuse(plan)))
    yield File(FUNCTION, (data_dir("templates") / NAME / FUNCTION).read_text(encoding="utf-8"))


def config(plan: Plan, flavor: Flavor) -> dict[str, Any]:
    """Return the fields of torchtitan's own configuration classes, by section; `model` is for its model_registry."""
    training, options = plan.training, plan.best.options
    where = plan.model.huggingface_id or plan.model.name
    save, tensorboard = training.save or "./outputs", training.tensorboard_dir is not None
    return {
        "module": flavor.module,
        "model": {"flavor": flavor.name, **({"attn_backend": "flex"} if plan.best.parallel.cp > 1 else {})},
        "hf_assets_path": training.tokenizer_model or f"./assets/hf/{where.rsplit('/', 1)[-1]}",
        "dump_folder": save,
        "dataset": "c4",
        "training": _training(plan),
        "parallelism": parallelism(plan),
        "activation_checkpoint": "full" if options.recompute.granularity == "full" else None,
        "compile": {"enable": options.overlap.tp_comm, "enable_async_tensor_parallel": options.overlap.tp_comm},
        "optimizer": {
            "lr": training.lr,
            "betas": [training.adam_beta1, training.adam_beta2],
            "eps": training.adam_eps,
            "weight_decay": training.weight_decay,
        },
        "lr_scheduler": _schedule(plan),
        "checkpoint": {
            "enable": bool(training.save or training.load),
            "interval": training.save_interval,
            **(
                {"initial_load_path": training.load, "initial_load_model_only": False}
                if training.load and not training.loads_its_own
                else {}
            ),
        },
        "metrics": {
            "log_freq": training.log_interval,
            **({"enable_tensorboard": True, "save_tb_folder": training.tensorboard_dir} if tensorboard else {}),
            **({"enable_wandb": True} if training.wandb_project else {}),
        },
        "comm": _timeouts(plan),
        "debug": {"seed": training.seed},
    }


def parallelism(plan: Plan) -> dict[str, Any]:
    """Return ParallelismConfig. Data ranks shard the weights, but for ZeRO-0, where each holds all of them."""
    parallel, options = plan.best.parallel, plan.best.options
    sharded = options.zero_stage > 0
    fields: dict[str, Any] = {
        "data_parallel_replicate_degree": options.instances if sharded else parallel.dp,
        "data_parallel_shard_degree": parallel.dp // options.instances if sharded else 1,
        "fsdp_reshard_after_forward": _RESHARD[options.zero_stage],
        "tensor_parallel_degree": parallel.tp,
        "enable_sequence_parallel": options.sequence_parallel,
        "context_parallel_degree": parallel.cp,
        "expert_parallel_degree": parallel.ep,
        "pipeline_parallel_degree": parallel.pp,
        # The default, spmd_types, hands FSDP plain tensors with a mesh of many axes, which torch 2.13 refuses.
        "spmd_backend": "partial_dtensor",
    }
    if parallel.pp > 1:
        fields |= {
            "pipeline_parallel_schedule": "1F1B" if parallel.vpp == 1 else "Interleaved1F1B",
            "pipeline_parallel_microbatch_size": plan.best.batch.micro,
            "module_fqns_per_model_part": model_parts(plan),
        }
    return fields


def model_parts(plan: Plan) -> list[list[str]]:
    """Return the modules of every virtual stage in the order of the model: chunk by chunk, within one stage by
    stage.
    """
    stages = plan.best.stages
    parts: list[list[str]] = []
    layers = 0
    for chunk in range(plan.best.parallel.vpp):
        for stage in stages:
            count = sum(kind not in ("embedding", "head") for kind in stage.chunks[chunk])
            parts.append([f"layers.{layer}" for layer in range(layers, layers + count)])
            layers += count
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", "lm_head"]
    return parts


def _timeouts(plan: Plan) -> dict[str, int]:
    """Return CommConfig. Its own default is 100 seconds behind the first step."""
    minutes = plan.training.distributed_timeout_minutes
    if minutes is None:
        return {}
    return dict.fromkeys(("init_timeout_seconds", "train_timeout_seconds"), minutes * monitors.SECONDS)


def _training(plan: Plan) -> dict[str, Any]:
    """Return the section of batch and steps. A local batch is what a data rank takes in one pass of the pipeline;
    without one, a micro-batch.
    """
    parallel, batch, training = plan.best.parallel, plan.best.batch, plan.training
    return {
        "local_batch_size": batch.micro * (batch.num_microbatches if parallel.pp > 1 else 1),
        "global_batch_size": batch.global_,
        "seq_len": batch.seq_length,
        "max_norm": training.clip_grad,
        "steps": training.train_iters,
        **({"gc_freq": training.manual_gc_interval} if training.manual_gc_interval else {}),
        "enable_cpu_offload": plan.best.options.param_offload,
        "disable_cuda_graphs": True,  # they go with neither a pipeline nor experts over ranks, and no plan has them
    }


def _schedule(plan: Plan) -> dict[str, Any]:
    training = plan.training
    style = training.lr_decay_style
    fields: dict[str, Any] = {"warmup_steps": training.lr_warmup_iters}
    if style == "constant":
        return {**fields, "decay_ratio": 0.0}
    if training.lr_decay_iters is not None:
        fields["total_steps"] = training.lr_decay_iters
    if style == "WSD":
        fields["decay_ratio"] = training.wsd_decay_iters / (training.lr_decay_iters or training.train_iters)
    return {
        **fields,
        "decay_type": "cosine" if style == "cosine" else "linear",
        "min_lr_factor": training.min_lr / training.lr,
    }


def _environment(plan: Plan) -> tuple[Variable, ...]:
    named = [Variable("TOKENIZERS_PARALLELISM", "false", "tokenizers' threads and forked workers dead-lock")]
    if plan.cluster.gpu.vendor == "nvidia":
        named.append(
            Variable(
                "PYTORCH_CUDA_ALLOC_CONF",
                "expandable_segments:True",
                "less fragmentation, as torchtitan's run_train.sh has it",
            )
        )
    return (*named, *monitors.wandb_variables(plan, "WANDB_RUN_NAME"))


def _notes(plan: Plan) -> Iterator[str]:
    if plan.training.lr_warmup_iters:
        yield WARM_UP
    if narrow_moments(plan):
        yield "torchtitan keeps weights in fp32 beside moments in bf16: two bytes a parameter more than is predicted"
    if plan.best.options.zero_stage == 1:
        yield (
            "torchtitan has no ZeRO-1: weights and gradients are sharded with the optimizer's state, and gathered "
            "weights stay from a micro-batch's forward to its backward"
        )
    if plan.best.parallel.cp > 1 and plan.best.options.cp_comm == "p2p":
        yield (
            "torchtitan gathers keys and values at once where the plan passes them round: the same bytes, hidden "
            "otherwise"
        )
    if plan.model.experts is not None and plan.model.experts.router_aux_loss_coef:
        yield "torchtitan balances the experts by a bias of the router, not by the auxiliary loss of the descriptor"
    if plan.job.packing:
        yield PACKING
