"""Whether a DeepSpeed JSON says what the plan says."""

from __future__ import annotations

from typing import Any

from symconfig.errors import Problem
from symconfig.plans.plan import Plan

Json = dict[str, Any]


def disagreements(config: Json, plan: Plan, file: str) -> list[Problem]:
    """List the values that are not those of the plan."""
    best, training = plan.best, plan.training
    options, parallel, batch = best.options, best.parallel, best.batch
    offload = _path(config, "zero_optimization.offload_optimizer") or {}
    pairs: dict[str, tuple[Any, Any]] = {
        "train_micro_batch_size_per_gpu": (config.get("train_micro_batch_size_per_gpu"), batch.micro),
        "gradient_accumulation_steps": (config.get("gradient_accumulation_steps"), batch.num_microbatches),
        "zero_optimization.stage": (_path(config, "zero_optimization.stage"), options.zero_stage),
        "tensor_parallel.autotp_size": (_path(config, "tensor_parallel.autotp_size") or 1, parallel.tp),
        "sequence_parallel_size": (config.get("sequence_parallel_size", 1), parallel.cp),
        "expert_parallel.autoep_size": (_path(config, "expert_parallel.autoep_size") or 1, parallel.ep),
        "offload_optimizer.ratio": (
            offload.get("ratio", 1.0) if offload.get("device", "none") != "none" else 0.0,
            options.optimizer_offload,
        ),
        "offload_param": (bool(_path(config, "zero_optimization.offload_param")), options.param_offload),
        "gradient_clipping": (config.get("gradient_clipping"), training.clip_grad),
        "optimizer.params.lr": (_path(config, "optimizer.params.lr"), training.lr),
        "precision": (
            next((name for name in ("bf16", "fp16") if _path(config, f"{name}.enabled")), "fp32"),
            options.precision,
        ),
    }
    return [
        Problem("is not what the plan says", file=file, field=field, got=repr(got), need=repr(need))
        for field, (got, need) in pairs.items()
        if got != need
    ]


def _path(config: Json, dotted: str) -> Any:
    value: Any = config
    for key in dotted.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value
