"""Target verl-fsdp: verl's overrides for a step of reinforcement learning with workers of PyTorch's FSDP 2.

Names are those of verl 0.9.1, beside those of the target verl. The workers keep fp32 shards on all GPUs, gather a
layer in 16 bits, and split sequences by Ulysses; a reference is always on the host.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from symconfig.errors import Problem
from symconfig.frameworks.deepspeed import adapters
from symconfig.frameworks.fsdp.backend import TORCH_RELEASE
from symconfig.plans.plan import Plan
from symconfig.plans.rl import PlannedRl
from symconfig.render import learning, step_words, verl
from symconfig.render.refused import refused

NAME = "verl-fsdp"
DOES = "verl's overrides for reinforcement learning with FSDP workers and an engine beside them, and train.sh"
ASSUMES = {"backend": "fsdp"}
COUNTS, SAVING, UNSAID = verl.COUNTS, verl.SAVING, verl.UNSAID
LEARNS = replace(verl.LEARNS, reference="streamed", critic="alike")
_ACTOR = "actor_rollout_ref.actor"
_SCHEDULES = ("constant", "cosine")


def variables(plan: Plan) -> dict[str, object]:
    """Return what its templates see. Raises InfeasibleError for what verl cannot be told."""
    learning.refuse(plan, LEARNS, NAME, _problems(plan))
    return {**verl.shown(plan, FSDP), "variables": (), "notes": tuple(step_words.notes(plan))}


def words(plan: Plan) -> list[str]:
    """Return all overrides, for a command of one's own. Raises InfeasibleError for what verl cannot be told."""
    learning.refuse(plan, LEARNS, NAME, _problems(plan))
    return verl.overrides(plan, FSDP)


def _problems(plan: Plan) -> Iterator[Problem]:
    training = plan.training
    yield from (each.problem() for each in refused(plan, "fsdp", TORCH_RELEASE))
    yield from learning.of_fsdp(plan, "verl")
    yield from verl.of_updates(learning.section(plan))
    yield from (Problem(reason, field="adapter") for reason in adapters.refusals(plan.model))
    if (adapter := plan.model.adapter) is not None and adapter.lora_dropout:
        what = "verl's FSDP workers drop nothing before adapters"
        yield Problem(what, field="adapter.lora_dropout", got=f"{adapter.lora_dropout:g}", need="0")
    if adapter is not None and adapter.method != "lora":
        yield Problem("verl's FSDP workers train plain LoRA", field="adapter.method", got=adapter.method, need="lora")
    if training.lr_decay_style not in _SCHEDULES:
        what, need = "verl's FSDP workers are told one of these alone", " or ".join(_SCHEDULES)
        yield Problem(what, field="training.lr_decay_style", got=training.lr_decay_style, need=need)


def _actor(plan: Plan, step: PlannedRl | None) -> dict[str, object]:
    training = plan.training
    return {
        **_engine(_ACTOR, f"{_ACTOR}.fsdp_config", "actor_rollout_ref.model", plan, step),
        **_adapters(plan),
        **_reference(plan),
        f"{_ACTOR}.optim.betas": [training.adam_beta1, training.adam_beta2],
        f"{_ACTOR}.optim.lr_scheduler_type": training.lr_decay_style,
        f"{_ACTOR}.optim.min_lr_ratio": training.min_lr / training.lr,
        f"{_ACTOR}.optim.override_optimizer_config": f"{{eps:{training.adam_eps:g}}}",
    }


def _adapters(plan: Plan) -> dict[str, object]:
    """Return PEFT's adapters of the actor. The engine reads the frozen weights from the model's files by itself."""
    adapter = plan.model.adapter
    if adapter is None:
        return {}
    return {
        "actor_rollout_ref.model.lora_rank": adapter.r,
        "actor_rollout_ref.model.lora_alpha": adapter.lora_alpha,
        "actor_rollout_ref.model.target_modules": list(adapters.modules(plan.model)),
        "actor_rollout_ref.rollout.load_format": "safetensors",
    }


def _reference(plan: Plan) -> dict[str, object]:
    """Return the groups of a second copy of the actor. It has the actor's sequences by itself; its shards it would have
    on all GPUs."""
    if plan.best.shard_ranks is None or plan.model.adapter is not None or not learning.section(plan).reference:
        return {}
    return {"actor_rollout_ref.ref.fsdp_config.fsdp_size": plan.best.shard_ranks}


def _critic(plan: Plan, step: PlannedRl | None) -> dict[str, object]:
    return _engine("critic", "critic.fsdp", "critic.model", plan, step)


def _engine(at: str, config: str, model: str, plan: Plan, step: PlannedRl | None) -> dict[str, object]:
    """Return what an engine is told at its sections, of the actor or of the critic, which has the same layout."""
    away, best = step.away if step else (), plan.best
    return {
        f"{model}.enable_gradient_checkpointing": best.options.recompute.granularity == "full",
        f"{at}.strategy": "fsdp2",
        f"{config}.fsdp_size": -1 if best.shard_ranks is None else best.shard_ranks,
        f"{config}.reshard_after_forward": True,
        f"{config}.param_offload": learning.WEIGHTS in away,
        f"{config}.optimizer_offload": learning.STATES in away,
        f"{config}.offload_policy": best.options.param_offload,
        f"{at}.ulysses_sequence_parallel_size": best.parallel.cp,
    }


FSDP = verl.Workers("ppo_trainer", _actor, _critic)
