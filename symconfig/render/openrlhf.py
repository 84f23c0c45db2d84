"""Target openrlhf: OpenRLHF's commands: train_ppo_ray, whose actor runs with DeepSpeed's ZeRO beside vLLM, and
train_dpo.

Names and defaults are those of OpenRLHF 0.11.2 (`cli/train_ppo_ray.py`, `cli/train_dpo.py`, `utils/deepspeed/`). In
reinforcement learning micro-batches are packed up to a number of tokens (`train.dynamic_batch_enable`). Of pairs,
chosen and rejected answers are in one forward, and the reference is a second model, sharded where ZeRO-3 shards the
policy, beside adapters, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from symconfig.descriptor.rl import Rl
from symconfig.errors import Problem
from symconfig.frameworks import counting
from symconfig.frameworks.deepspeed.adapters import target_modules
from symconfig.plans.plan import Plan
from symconfig.render import deepspeed_launch, deepspeed_limits, learning, rewarding, step_words, trainer
from symconfig.render.learning import Compares, Learns
from symconfig.render.rewarding import Rewarding
from symconfig.render.summary import predicted_for

NAME = "openrlhf"
DOES = "OpenRLHF's commands for reinforcement learning with DeepSpeed and vLLM (train.sh) and for DPO (launch.sh)"
ASSUMES = {"backend": "deepspeed"}
COUNTS = counting.STEPS
RELEASE = "0.11.2"
UNSAID = {
    "split": "OpenRLHF takes a data set for training and another for evaluation",
    "eval_iters": "OpenRLHF evaluates on a data set that --eval.dataset names",
    "tokenizer_model": "OpenRLHF takes the model's tokenizer",
    "tokenizer_type": "OpenRLHF takes the model's tokenizer",
    "manual_gc_interval": "OpenRLHF leaves the collection of garbage to Python",
    "distributed_timeout_minutes": "OpenRLHF waits 60 minutes",
    "train_iters": "OpenRLHF goes through its data as often as --train.num_episodes says, of pairs --train.max_epochs",
}
# How OpenRLHF names the advantage of each algorithm, and what else makes it that one.
_GROUPS = {"algo.advantage.estimator": "group_norm"}
_ALGORITHMS: Mapping[str, Mapping[str, Any]] = {
    "grpo": _GROUPS,
    "dapo": _GROUPS,
    "gspo": {**_GROUPS, "actor.policy_loss_type": "gspo"},
    "rloo": {"algo.advantage.estimator": "rloo"},
    "reinforce_plus_plus": {"algo.advantage.estimator": "reinforce"},
    "ppo": {"algo.advantage.estimator": "gae"},
}
LEARNS = Learns(
    algorithms=tuple(_ALGORITHMS),
    engines=("vllm",),
    placements=("colocated", "split"),
    away=((), (learning.STATES,)),  # utils/deepspeed/deepspeed_utils.py, offload_deepspeed_states
    reference="resident",  # --ref.offload is DeepSpeed's offload_param, which ZeRO-3 alone has
    rewards={
        "colocated": Rewarding(by="workers"),
        "apart": Rewarding(by="workers", overlaps="training"),
        "server": Rewarding(by="service"),
    },
    sleep_levels=(1,),
    critic="apart",
    reads_apart=True,
)
COMPARES = Compares(losses=("sigmoid", "ipo"), batching=("padded", "padding_free"), copies=True)
_SCHEDULES = {"cosine": "cosine_with_min_lr", "constant": "constant_with_warmup"}
_AWAY = "with ZeRO-3, --ref.offload keeps it on the host"


def variables(plan: Plan) -> dict[str, object]:
    """Return what its templates see. Raises InfeasibleError for what OpenRLHF cannot be told."""
    arrays, training = _arrays(plan), plan.training
    gpus, most = (plan.job.rl.critic_gpus or 0) if plan.job.rl is not None else 0, plan.cluster.gpus_per_node
    return {
        "framework": f"OpenRLHF {RELEASE} with DeepSpeed",
        "release": RELEASE,
        "arrays": arrays,
        "phases": step_words.phases(plan),
        "variables": () if plan.job.rl else deepspeed_launch.environment_variables(plan),
        "notes": (
            *step_words.notes(plan, _AWAY),
            *deepspeed_launch.notes(plan),
            *(() if plan.job.rl else trainer.padded(plan, "--data.max_len")),
        ),
        "predicted_for": predicted_for(plan, "deepspeed"),
        "data": ",".join(training.data_path),
        "reward_model": rewarding.published(plan),
        "reward_url": rewarding.address(plan),
        "reward_nodes": list(rewarding.nodes(plan)),
        "critic": None if plan.job.rl is None else learning.critic(plan),
        "critic_nodes": [-(-gpus // most), min(gpus, most)],
    }


def words(plan: Plan) -> list[str]:
    """Return all options, for a command of one's own. Raises InfeasibleError for what OpenRLHF cannot be told."""
    return [text for lines in _arrays(plan).values() for line in lines for text in line]


def _arrays(plan: Plan) -> dict[str, list[tuple[str, ...]]]:
    others = (*deepspeed_limits.problems(plan), *trainer.problems(plan), *_problems(plan))
    learning.refuse(plan, COMPARES if plan.job.rl is None else LEARNS, NAME, others)
    return {name: learning.options(values) for name, values in _sections(plan)}


def _problems(plan: Plan) -> Iterator[Problem]:
    options, p, rl, training = plan.best.options, plan.best.parallel, plan.job.rl, plan.training
    if p.cp > 1:
        what = "OpenRLHF divides sequences by ring attention, which is not priced"
        yield Problem(what, field="cp", got=str(p.cp), pins=("cp=1",))
    if options.param_offload:
        what = "OpenRLHF keeps the trained model's weights on the GPU"
        yield Problem(what, field="param_offload", pins=("zero=..2", "optimizer_offload=0"))
    if 0 < options.optimizer_offload < 1:
        what = "OpenRLHF's optimizer is on the host as a whole, or not at all"
        pins = ("optimizer_offload=0", "optimizer_offload=1")
        yield Problem(what, field="optimizer_offload", got=str(options.optimizer_offload), pins=pins)
    if plan.job.optimizer.name != "adam":
        what = "OpenRLHF's trained model is planned with DeepSpeed's AdamW"
        yield Problem(what, field="optimizer", got=plan.job.optimizer.name, need="adam")
    if _packs(plan):
        yield from learning.of_transformers(plan, "OpenRLHF")
    if rl is not None:
        yield from learning.of_samples(plan, "OpenRLHF divides the samples of an update over data-parallel ranks")
        if rl.reward_model is not None and rl.reward_model.placement == "apart" and rl.placement == "colocated":
            what, need = "OpenRLHF's models are all on the engine's GPUs, or none", "placement: split beside it"
            yield Problem(what, field="rl.reward_model.placement", got="apart", need=need)
        yield from _of_critic(rl)
    if training.lr_decay_style not in _SCHEDULES:
        what, need = "OpenRLHF is told one of these alone", " or ".join(_SCHEDULES)
        yield Problem(what, field="training.lr_decay_style", got=training.lr_decay_style, need=need)
    if training.load is not None and not training.loads_its_own:
        what = "OpenRLHF goes on from its own checkpoints"
        yield Problem(what, field="training.load", got=training.load, need="the folder of training.save")


def _of_critic(rl: Rl) -> Iterator[Problem]:
    """Yield the refusal of a critic that has GPUs of its own while others share theirs."""
    if rl.critic_gpus is None:
        return
    if rl.placement == "colocated":
        what, need = "OpenRLHF's models are all on the engine's GPUs, or none", "placement: split beside it"
        yield Problem(what, field="rl.critic_gpus", got=str(rl.critic_gpus), need=need)
    if rl.reward_model is not None and rl.reward_model.placement == "colocated":
        what = "OpenRLHF's network of rewards is beside the actor where its critic is, too"
        yield Problem(what, field="rl.reward_model.placement", got="colocated", need="apart or server")


def _packs(plan: Plan) -> bool:
    """Tell whether sequences stand one after the other in a micro-batch, without padding."""
    lengths = plan.job.sequences
    return plan.job.rl is not None or (lengths is not None and lengths.batching == "padding_free")


def _sections(plan: Plan) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the options by what they are about."""
    training = plan.training
    yield from _pairs(plan) if plan.job.rl is None else _step(plan)
    yield "DEEPSPEED", _deepspeed(plan)
    saves = {"ckpt.path": training.save, "ckpt.output_dir": training.save, "ckpt.save_steps": training.save_interval}
    yield (
        "RUN",
        {
            "train.seed": training.seed,
            "logger.logging_steps": training.log_interval,
            "logger.tensorboard_dir": training.tensorboard_dir,
            **({} if training.save is None else saves),
            "ckpt.load_enable": training.load is not None,
            # The key itself is looked up by Weights & Biases, in WANDB_API_KEY or ~/.netrc.
            **({} if training.wandb_project is None else {"logger.wandb.key": "of-the-environment"}),
            "logger.wandb.project": training.wandb_project,
            "logger.wandb.run_name": training.wandb_project and (training.wandb_name or plan.model.name),
        },
    )


def _step(plan: Plan) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield what a step of reinforcement learning is told."""
    rl = learning.section(plan)
    room, read = (plan.rl[0].tokens_per_gpu, plan.rl[0].read_per_gpu) if plan.rl else (rl.longest, rl.longest)
    room, read = (-(-each // plan.best.parallel.tp) for each in (room, read))  # it counts AutoTP's ranks, too
    yield "ALGORITHM", {**_ALGORITHMS[rl.algorithm], **_losses(plan)}
    yield (
        "ROLLOUT",
        {
            "rollout.batch_size": rl.prompts,
            "rollout.n_samples_per_prompt": rl.samples,
            "rollout.max_new_tokens": rl.response_length.max,
            "data.max_len": rl.longest,
        },
    )
    yield (
        "ACTOR",
        {
            "train.batch_size": rl.batch,
            "train.max_epochs": rl.epochs,
            "train.dynamic_batch_enable": True,
            "train.max_tokens_per_gpu": room,
            "rollout.max_tokens_per_gpu": read,
            **_trained(plan, "actor.", "actor."),
        },
    )
    if rl.has_critic:
        yield "CRITIC", _trained(plan, "", "critic.")
    yield "VLLM", _engine(plan)


def _pairs(plan: Plan) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield what training on pairs is told."""
    preference, batch, lora = learning.preference(plan), plan.best.batch, plan.model.adapter
    yield (
        "PAIRS",
        {
            "model.beta": preference.beta,
            "model.ipo_enable": preference.loss == "ipo",
            "data.max_len": batch.seq_length,
            "train.batch_size": batch.global_ // learning.per_example(plan),
            "train.micro_batch_size": batch.micro // learning.per_example(plan),
        },
    )
    yield "POLICY", _trained(plan, "model.", "")
    if lora is not None:
        yield (
            "ADAPTER",
            {
                "ds.load_in_4bit": lora.method == "qlora",
                "ds.lora.rank": lora.r,
                "ds.lora.alpha": int(lora.lora_alpha),
                "ds.lora.dropout": lora.lora_dropout,
                "ds.lora.target_modules": target_modules(plan.model),
            },
        )


def _losses(plan: Plan) -> dict[str, Any]:
    rl = learning.section(plan)
    # Beside a critic the KL term is part of the reward.
    of_loss = {"algo.kl.use_loss": True, "algo.kl.estimator": "k3"}
    kl = {"algo.kl.init_coef": 0.001, **({} if rl.has_critic else of_loss)}
    clipped = tuple(learning.clipped(rl, "low", "high").values())
    return {
        "actor.eps_clip_low_high": clipped or None,
        **(kl if rl.reference else {"algo.kl.init_coef": 0}),
        "actor.entropy_coef": 0.001 if rl.entropy else None,
    }


def _trained(plan: Plan, model: str, optimizer: str) -> dict[str, Any]:
    """Return the options of a trained model and of its optimizer, which begin with these words."""
    training = plan.training
    ratio = training.min_lr / training.lr if training.lr_decay_style == "cosine" else None
    return {
        **(_model(plan, model) if model else {}),
        f"{optimizer}adam.lr": training.lr,
        f"{optimizer}adam.betas": (training.adam_beta1, training.adam_beta2),
        f"{optimizer}adam.eps": training.adam_eps,
        f"{optimizer}adam.weight_decay": training.weight_decay,
        f"{optimizer}max_norm": training.clip_grad,
        f"{optimizer}lr_scheduler": _SCHEDULES[training.lr_decay_style],
        f"{optimizer}min_lr_ratio": ratio,
        f"{optimizer}lr_warmup_ratio": training.lr_warmup_iters / training.train_iters,
    }


def _model(plan: Plan, begin: str) -> dict[str, Any]:
    """Return how a model is trained, and a critic beside it."""
    return {
        f"{begin}gradient_checkpointing_enable": plan.best.options.recompute.granularity != "none",
        f"{begin}aux_loss_coef": (plan.model.experts and plan.model.experts.router_aux_loss_coef) or None,
    }


def _deepspeed(plan: Plan) -> dict[str, Any]:
    options, parallel = plan.best.options, plan.best.parallel
    return {
        "ds.zero_stage": options.zero_stage,
        "ds.param_dtype": options.precision,
        "ds.grad_accum_dtype": "fp32" if options.grad_bytes == 4 else options.precision,
        "ds.overlap_comm": options.overlap.grad_reduce,
        "ds.adam_offload": options.optimizer_offload > 0,
        "ds.tensor_parallel_size": parallel.tp,
        "ds.packing_samples": _packs(plan),
        "ds.attn_implementation": "flash_attention_2" if _packs(plan) else deepspeed_launch.attention(plan),
        "ds.enable_sleep": bool(plan.rl and plan.rl[0].away),
    }


def _engine(plan: Plan) -> dict[str, Any]:
    colocated, step = learning.section(plan).placement == "colocated", plan.rl[0] if plan.rl else None
    # Beside an engine of its own the actor may have the reference alone with it.
    apart = bool(learning.section(plan).critic_gpus or (step and step.reward and step.reward.gpus))
    where = {"train.colocate_actor_ref": True} if apart else {"train.colocate_all": True}
    engine: dict[str, Any] = {**where, "train.async_enable": not colocated}
    if step is not None:
        engine |= {
            "vllm.num_engines": step.rollout_gpus // step.rollout_tp,
            "vllm.tensor_parallel_size": step.rollout_tp,
            "vllm.gpu_memory_utilization": step.memory_share,
            "vllm.enable_sleep": colocated,
        }
    return engine
