"""The words in which an accept.py says what its parser understood, and where that is not the plan."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from symconfig.format import picked
from symconfig.frameworks.deepspeed.adapters import modules
from symconfig.graph.count import parameters
from symconfig.plans.configuration import FIELDS
from symconfig.plans.plan import Plan, Stage
from symconfig.plans.rl import OF_CRITIC
from symconfig.render.summary import nodes
from symconfig.verify.rank_states import chunk_parameters

# Kinds of a stage's parts that are no transformer layers.
_NO_LAYERS = ("embedding", "head", "mtp")


def _layers(stage: Stage) -> int:
    return sum(kind not in _NO_LAYERS for chunk in stage.chunks for kind in chunk)


def words(plan: Plan) -> dict[str, Any]:
    """Every word in which an accept.py may say what its parser understood, with this plan's value."""
    best, model, training = plan.best, plan.model, plan.job.training
    parallel, batch, options = best.configuration, best.configuration, best.configuration
    adapter, where = model.adapter, nodes(plan)
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
        "zero_stage": options.zero_stage,
        "precision": options.precision,
        "grad_bytes": options.grad_bytes,
        "sequence_parallel": options.sequence_parallel,
        "cp_comm": options.cp_comm,
        "recompute": options.recompute,
        "recompute_method": options.recompute_method,
        "recompute_modules": list(options.recompute_modules),
        "recompute_num_layers": options.recompute_layers,
        "optimizer_offload": options.optimizer_offload,
        "param_offload": options.param_offload,
        "instances": options.instances,
        "activation_offload": options.activation_offload,
        "schedule": options.schedule,
        "pipeline_layout": options.pipeline_layout,
        "microbatch_group_size": options.microbatch_group_size,
        "moe_dispatcher": options.moe_dispatcher,
        "account_for_embedding": options.account_for_embedding,
        "account_for_loss": options.account_for_loss,
        "first_stage_layers": options.first_stage_layers,
        "last_stage_layers": options.last_stage_layers,
        "layers_by_stage": [_layers(stage) for stage in best.stages],
        "layers_of_first_stage": _layers(best.stages[0]),
        "layers_of_last_stage": _layers(best.stages[-1]),
        **picked(options, *(name for name in FIELDS if name.startswith("overlap_"))),
        "preference_loss": plan.job.preference.loss if plan.job.preference else None,
        "preference_beta": plan.job.preference.beta if plan.job.preference else None,
        "adapter": adapter.method if adapter else None,
        "lora_r": adapter.r if adapter else None,
        "lora_alpha": adapter.lora_alpha if adapter else None,
        "lora_dropout": adapter.lora_dropout if adapter else None,
        "lora_targets": sorted(modules(model)) if adapter else None,  # as Transformers' classes name them
        "parameters": parameters(model).total,
        "trained_by_stage": _trained_by_stage(plan),
        "num_hidden_layers": model.num_hidden_layers,
        "hidden_size": model.hidden_size,
        "intermediate_size": model.intermediate_size,
        "num_attention_heads": model.num_attention_heads,
        "num_key_value_heads": model.num_key_value_heads,
        "vocab_size": model.vocab_size,
        "num_experts": model.experts.num_experts if model.experts else None,
        "num_experts_per_tok": model.experts.num_experts_per_tok if model.experts else None,
        **training.model_dump(mode="json"),
        **_learning(plan),
    }


def _learning(plan: Plan) -> dict[str, Any]:
    """Words of a step of reinforcement learning, where the plan is for one."""
    rl = plan.job.rl
    if rl is None or not plan.rl:
        return {}
    step = plan.rl[0]
    return {
        "prompts": rl.prompts,
        "samples": rl.samples,
        "updates": rl.updates,
        "longest": rl.longest,
        "tokens_per_gpu": step.tokens_per_gpu,
        "read_per_gpu": step.read_per_gpu,
        "rollout_tp": step.rollout_tp,
        "memory_share": step.memory_share,
        "away": list(step.away),
        "rollout_dp": step.rollout_dp,
        "replica_gpus": step.replica_gpus,
        "sleep_level": step.sleep_level,
        "critic_gpus": rl.critic_gpus,
        "has_critic": rl.has_critic,
        "critic": picked(step.critic, *OF_CRITIC) if step.critic else {},
        "critic_recompute": step.critic.recompute if step.critic else None,
        "reward_gpus": step.reward.gpus if step.reward else None,  # 0: those that train
        "reward_tp": step.reward.tp if step.reward else None,
        "reward_share": step.reward.memory_share if step.reward else None,
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
