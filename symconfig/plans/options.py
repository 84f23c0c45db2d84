"""The table of the options that a search chooses beside the degrees."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SWITCH: Mapping[str, bool] = {"0": False, "off": False, "false": False, "1": True, "on": True, "true": True}


@dataclass(frozen=True, slots=True)
class Extra:
    """An option that a search chooses beside the degrees: all that the planner states of it.

    name: its field of `Configuration`. pin: its name among a job's pins. of: the backends whose plans may have it.
    values: by the words of the pin, the framework's default first; empty for a number of groups of GPUs. fixed: fields
    that a point must have for the option to have an effect. alone: each value is at least as fast and small as those
    before, so only the last that runs is tried, and the default if that may rule out something else. whole: only the
    default and the last value that runs are tried. still: needs sequences of equal length.
    """

    name: str
    pin: str
    of: tuple[str, ...]
    values: Mapping[str, Any]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    alone: bool = False
    whole: bool = False
    still: bool = False

    @property
    def usual(self) -> Any:
        """Return the value that the framework has by default."""
        return next(iter(self.values.values()), 1)


_MEGATRON = ("megatron",)
_GRAPHS = {
    "none": "none", "router": "router", "outside_experts": "outside experts", "all": "all",
    "full_iteration": "full iteration",
}  # fmt: skip
_CAPACITIES = {"none": 0.0} | {
    f"{value:g}": value for value in (1.0, 1.1, 1.2, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 5.0)
}
_KERNELS = {"alltoall": None, "deepep": "deepep", "hybridep": "hybridep"}
EXTRAS: tuple[Extra, ...] = (
    Extra("grad_bytes", "grad_dtype", ("megatron", "deepspeed"), {"fp32": 4, "bf16": 2}, alone=True),
    Extra("fp8_param_gather", "fp8_param_gather", _MEGATRON, SWITCH, {"zero_stage": 1}, alone=True),
    Extra("fused_loss", "fused_loss", _MEGATRON, SWITCH, alone=True),
    Extra("overlap_tp_comm", "user_buffers", _MEGATRON, SWITCH, {"sequence_parallel": True}, still=True),
    Extra("moe_flex_backend", "dispatcher", _MEGATRON, _KERNELS),
    Extra("cuda_graphs", "cuda_graphs", _MEGATRON, _GRAPHS, whole=True, still=True),
    Extra("overlap_moe_a2a", "moe_overlap", _MEGATRON, SWITCH),
    Extra("expert_capacity", "expert_capacity", _MEGATRON, _CAPACITIES),
    Extra("paged_stash", "paged_stash", _MEGATRON, SWITCH),
    Extra("fp8_attention", "fp8_attention", _MEGATRON, SWITCH),
    Extra("instances", "instances", ("fsdp",), {}),
)
# Fields of `Configuration` by the names of pins that differ from them.
FIELD_OF_PIN: Mapping[str, str] = {
    "mbs": "micro",
    "sp": "sequence_parallel",
    "zero": "zero_stage",
    **{extra.pin: extra.name for extra in EXTRAS},
}
