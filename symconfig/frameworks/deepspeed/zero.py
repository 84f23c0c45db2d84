"""The section zero_optimization of a DeepSpeed JSON, and what it switches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from symconfig.cost.stages import Offload
from symconfig.frameworks.behaviour import Switches
from symconfig.frameworks.deepspeed.keys import AUTO, ZERO
from symconfig.plans.choices import ZERO_STAGES, Precision, ZeroStage

Json = dict[str, Any]
_PREFETCH = 50_000_000  # elements, by default (runtime/zero/config.py)


@dataclass(frozen=True, slots=True)
class Zero:
    """The section zero_optimization, with DeepSpeed's defaults. overlap: gradients are reduced beside the backward.
    prefetch: stage 3 gathers weights ahead. scatters: stages 1 and 2 reduce gradients to their owner, not to all."""

    stage: ZeroStage = 0
    offload: Offload = field(default_factory=Offload)
    overlap: bool = False
    prefetch: bool = True
    scatters: bool = False


def stage_of(config: Any) -> ZeroStage:
    """Return the ZeRO stage. DeepSpeed takes "2" and true, too; a stage that it refuses counts as none: the rules tell
    it.
    """
    if isinstance(config, dict) and config.get(ZERO) is True:
        return 1  # how the first releases switched it on
    value = section(config, ZERO).get("stage", 0)
    return next((stage for stage in ZERO_STAGES if value in (stage, str(stage))), 0)


def zero_of(config: Any) -> Zero:
    """Read the ZeRO settings of a DeepSpeed JSON's data."""
    zero, stage = section(config, ZERO), stage_of(config)
    optimizer = zero.get("offload_optimizer")
    if zero.get("cpu_offload") is True and not optimizer:
        optimizer = {"device": "cpu"}
    ratio = section(zero, "offload_optimizer").get("ratio", 1.0) if _on(optimizer) and stage else 0.0
    overlap = zero.get("overlap_comm")
    return Zero(
        stage,
        Offload(
            float(ratio) if isinstance(ratio, (int, float)) else 1.0,
            stage == 3 and (_on(zero.get("offload_param")) or zero.get("cpu_offload_param") is True),
        ),
        stage == 3 if not isinstance(overlap, bool) else overlap,
        zero.get("stage3_prefetch_bucket_size", zero.get("prefetch_bucket_size", _PREFETCH)) != 0,
        zero.get("reduce_scatter") is not False and zero.get("use_multi_rank_bucket_allreduce") is False,
    )


def gradient_bytes_of(config: Any) -> int:
    """Return the bytes of an accumulated gradient: the weights' two, unless data_types says otherwise."""
    return 4 if section(config, "data_types").get("grad_accum_dtype") in ("fp32", "float32", "float") else 2


def switches(zero: Zero, gradient_bytes: int, replicas: int, kernels: Mapping[str, Any] | None = None) -> Switches:
    """Return what the JSON switches. replicas: ranks that the same weights would be on. kernels: the program's."""
    return Switches(
        implementation=kernels or {},
        bytes={"gradient": float(gradient_bytes)},
        framework={"all_reduced_gradients": not zero.scatters},
        reduces_beside=replicas <= 1 or not zero.stage or zero.overlap,
        gathers_ahead=replicas <= 1 or zero.stage != 3 or zero.prefetch,
    )


def section(config: Any, name: str) -> Json:
    """Return an object of the JSON; empty where there is none."""
    part = config.get(name) if isinstance(config, dict) else None
    return part if isinstance(part, dict) else {}


def precision_of(config: Any) -> Precision | None:
    """Return the precision that is switched on; bf16 goes by its old name, too. None: nothing, or nothing that
    is said.
    """

    def on(key: str) -> bool:
        return section(config, key).get("enabled") is True

    return "bf16" if on("bf16") or on("bfloat16") else "fp16" if on("fp16") else None


def _on(device: Any) -> bool:
    return isinstance(device, dict) and device.get("device", "none") not in ("none", AUTO)
