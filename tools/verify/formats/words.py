"""The words in which an accept.py says what its parser understood, and where that is not the plan."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from symconfig.format import picked
from symconfig.frameworks.deepspeed.adapters import modules
from symconfig.graph.model import parameters
from symconfig.plans.configuration import FIELDS
from symconfig.plans.plan import Plan, Stage
from symconfig.render.shared import nodes
from symconfig.verify.rank_states import chunk_parameters

# Kinds of a stage's parts that are no transformer layers.
_NO_LAYERS = ("embedding", "head", "mtp")


def _layers(stage: Stage) -> int:
    return sum(kind not in _NO_LAYERS for chunk in stage.chunks for kind in chunk)


_OPTIONS = (
    "zero_stage precision grad_bytes sequence_parallel cp_comm optimizer_offload param_offload instances "
    "activation_offload schedule pipeline_layout microbatch_group_size moe_dispatcher account_for_embedding "
    "account_for_loss first_stage_layers last_stage_layers"
)
_MODEL = (
    "num_hidden_layers hidden_size intermediate_size num_attention_heads num_key_value_heads vocab_size num_experts "
    "num_experts_per_tok"
)
_STEP = (
    "tokens_per_gpu read_per_gpu rollout_tp memory_share rollout_dp replica_gpus sleep_level critic prompts samples "
    "updates longest critic_gpus has_critic"
)


def _of(names: str, *holders: Any) -> dict[str, Any]:
    """Return attributes, each of the first holder that has it; None where none has."""
    return {name: next((getattr(one, name) for one in holders if hasattr(one, name)), None) for name in names.split()}


def words(plan: Plan) -> dict[str, Any]:
    """Every word in which an accept.py may say what its parser understood, with this plan's value."""
    best, model, training = plan.best, plan.model, plan.job.training
    parallel, batch, options = best.configuration, best.configuration, best.configuration
    adapter, where, preference = model.adapter, nodes(plan), plan.job.preference
    return {
        **asdict(parallel),
        "edp": parallel.edp,
        "world": parallel.world_size,
        "nodes": where.count,
        "gpus_per_node": where.gpus,
        "micro": batch.micro,
        "global": batch.global_batch,
        "num_microbatches": batch.num_microbatches,
        "seq_length": batch.seq_length,
        "tokens_per_step": batch.global_batch * batch.seq_length,
        **_of(_OPTIONS, options),
        "recompute": options.recompute,
        "recompute_method": options.recompute_method,
        "recompute_num_layers": options.recompute_layers if options.recompute == "full" else None,
        "recompute_modules": list(options.recompute_modules),
        "layers_by_stage": [_layers(stage) for stage in best.stages],
        "layers_of_first_stage": _layers(best.stages[0]),
        "layers_of_last_stage": _layers(best.stages[-1]),
        **picked(options, *(name for name in FIELDS if name.startswith("overlap_"))),
        **{f"preference_{name}": value for name, value in _of("loss beta", preference).items()},
        **_of("lora_alpha lora_dropout", adapter),
        "adapter": adapter.method if adapter else None,
        "lora_r": adapter.r if adapter else None,
        "lora_targets": sorted(modules(model)) if adapter else None,  # as Transformers' classes name them
        "parameters": parameters(model).total,
        "trained_by_stage": _trained_by_stage(plan),
        **_of(_MODEL, model, model.experts),
        **training.model_dump(mode="json"),
        **_learning(plan),
    }


def _learning(plan: Plan) -> dict[str, Any]:
    """Words of a step of reinforcement learning, where the plan is for one."""
    rl = plan.job.rl
    if rl is None or not plan.rl:
        return {}
    step = plan.rl[0]
    reward = _of("gpus tp memory_share", step.reward)  # 0 GPUs: those that train
    return {
        **_of(_STEP, step, rl),
        "away": list(step.away),
        "critic_recompute": step.critic.recompute if step.critic else None,
        **{f"reward_{name.replace('memory_', '')}": value for name, value in reward.items()},
        "reward_url": rl.reward_model.url if rl.reward_model else None,
    }


def _trained_by_stage(plan: Plan) -> list[int] | None:
    """Elements of adapters on the first rank of each pipeline stage, of Megatron's plans with adapters."""
    if plan.model.adapter is None or plan.best.target.backend != "megatron":
        return None
    stages = (chunk_parameters(plan, stage) for stage in range(plan.best.configuration.pp))
    return [sum(item.elements for chunk in chunks for item in chunk if item.trainable) for chunks in stages]


def differences(plan: Plan, values: Mapping[str, Any]) -> list[str]:
    """Where what the parser understood is not the plan."""
    expected = words(plan)
    if not values:
        return ["nothing was said of what the parser understood"]
    unknown = [f"{name} is no word of a plan" for name in values if name not in expected]
    return unknown + [
        f"{name} is {value!r}, the plan has {expected[name]!r}"
        for name, value in values.items()
        if name in expected and not _same(value, expected[name])
    ]


def _same(value: Any, planned: Any) -> bool:
    if isinstance(value, bool) or isinstance(planned, bool):
        return value is planned
    if isinstance(value, int | float) and isinstance(planned, int | float):
        return math.isclose(value, planned, rel_tol=1e-9)
    return bool(value == (list(planned) if isinstance(planned, tuple) else planned))
