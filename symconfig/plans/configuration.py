"""Every choice of a run, flat, each under one name; how plan.json writes them; which options a search chooses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from symconfig.descriptor.strict import Count, PositiveInt
from symconfig.format import nested, several

ZeroStage = Literal[0, 1, 2, 3]
Precision = Literal["bf16", "fp16", "fp8", "mxfp8", "nvfp4"]
ZERO_STAGES: tuple[ZeroStage, ...] = (0, 1, 2, 3)
PRECISIONS: tuple[Precision, ...] = ("bf16", "fp16", "fp8", "mxfp8", "nvfp4")
DEGREES = ("tp", "pp", "vpp", "cp", "ep", "etp", "dp")


@dataclass(frozen=True, kw_only=True, slots=True)
class Configuration:
    """Every choice of a run; what is not given is off, or the plainest.

    tp x cp x dp x pp = GPUs, and ep x etp divides tp x cp x dp. tp: tensor (DeepSpeed's AutoTP), pp: pipeline, vpp:
    chunks of each stage, cp: context (DeepSpeed's Ulysses), ep: expert, etp: tensor parallelism inside an expert, dp:
    data parallelism. micro: sequences of a microbatch on one data rank; global_batch: distinct ones of a step.

    recompute: selective is of `recompute_modules` (Megatron's names), full of whole layers: `recompute_method` uniform
    (groups of `recompute_layers` layers) or block (the first `recompute_layers` of every virtual stage).
    optimizer_offload: share of the optimizer state in host memory, 0 to 1. pipeline_layout: Megatron's layout string.
    first_stage_layers, last_stage_layers: None: as many as the other stages. microbatch_group_size: of a round of the
    interleaved schedule; None: pp. cp_comm: p2p (keys travel), a2a (Ulysses) or all_gather. moe_dispatcher: None
    without experts; moe_flex_backend: the kernels of flex. grad_bytes: per parameter, as accumulated. cuda_graphs: what
    they replay of a layer, or the whole iteration. fp8_param_gather: weights are kept in low precision only.
    fused_loss: one kernel, its softmax in 16 bits. instances: groups of data-parallel ranks that each have all parts of
    what ZeRO shards. gtp: of the dp ranks, how many store a part each of every linear weight, which they gather before
    each use: Megatron has tp x gtp weight shards. expert_capacity: tokens that a rank's experts have buffers for, over
    the mean; 0: for as many as come. paged_stash: of what experts keep for the backward, only the tokens that came.
    fp8_attention: of queries, keys and values.
    """

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)
    tp: int = 1
    pp: int = 1
    vpp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int = 1
    dp: int = 1
    micro: PositiveInt
    global_batch: PositiveInt
    seq_length: PositiveInt
    sequence_parallel: bool = False
    recompute: Literal["none", "selective", "full"] = "none"
    recompute_modules: tuple[str, ...] = ()
    recompute_method: Literal["uniform", "block"] | None = None
    recompute_layers: Count = 1
    zero_stage: ZeroStage = 0
    precision: Precision = "bf16"
    cp_comm: Literal["p2p", "a2a", "all_gather"] = "p2p"
    overlap_grad_reduce: bool = False
    overlap_param_gather: bool = False
    overlap_tp_comm: bool = False
    overlap_pp_p2p: bool = False
    overlap_moe_a2a: bool = False
    optimizer_offload: Annotated[float, Field(ge=0, le=1)] = 0.0
    activation_offload: bool = False
    param_offload: bool = False
    pipeline_layout: str | None = None
    account_for_embedding: bool = False
    account_for_loss: bool = False
    microbatch_group_size: PositiveInt | None = None
    moe_dispatcher: Literal["alltoall", "allgather", "flex"] | None = None
    grad_bytes: PositiveInt = 4
    first_stage_layers: Count | None = None
    last_stage_layers: Count | None = None
    moe_flex_backend: Literal["deepep", "hybridep"] | None = None
    cuda_graphs: Literal["none", "router", "outside experts", "all", "full iteration"] = "none"
    fp8_param_gather: bool = False
    fused_loss: bool = False
    instances: PositiveInt = 1
    gtp: PositiveInt = 1
    expert_capacity: Annotated[float, Field(ge=0)] = 0.0
    paged_stash: bool = False
    fp8_attention: bool = False

    @property
    def world_size(self) -> int:
        """Return the number of GPUs: tp * pp * cp * dp."""
        return self.tp * self.pp * self.cp * self.dp

    @property
    def degrees(self) -> list[str]:
        """Return the degrees above 1 in words: `tp 4`, `dp 8`."""
        return [f"{name} {value}" for name in DEGREES if (value := getattr(self, name)) > 1]

    @property
    def edp(self) -> int:
        """Return the number of replicas of each expert within a pipeline stage."""
        return self.tp * self.cp * self.dp // (self.ep * self.etp)

    @property
    def num_microbatches(self) -> int:
        """Return the microbatches that each data rank runs in a step, at least 1."""
        return max(1, self.global_batch // (self.micro * self.dp))

    @property
    def group(self) -> int:
        """Return the microbatches of a round of the interleaved schedule."""
        return self.microbatch_group_size or self.pp

    @property
    def schedule(self) -> Literal["none", "1f1b", "interleaved"]:
        """Return the schedule of the pipeline."""
        return "none" if self.pp == 1 else "interleaved" if self.vpp > 1 else "1f1b"

    @property
    def fp8_recipe(self) -> str:
        """Return the recipe for scales of 8-bit matmuls: tensorwise, delayed or mxfp8; "" in other precisions. For fp8
        tensorwise, but delayed (of a history of maxima) if the optimizer is offloaded and fp8 weights are gathered,
        which works with no other recipe.
        """
        if self.precision != "fp8":
            return "mxfp8" if self.precision == "mxfp8" else ""
        return "delayed" if self.fp8_param_gather and self.optimizer_offload > 0 else "tensorwise"

    @property
    def recompute_text(self) -> str:
        """Return the recompute in words: `none`, `core_attn+mlp`, `selective` without modules, `full`, `full 3/stage`.
        The last one, of method block, is of the first 3 layers of each stage; `full 3/chunk`: of each virtual stage.
        """
        if self.recompute == "selective":
            return "+".join(self.recompute_modules) or "selective"
        if self.recompute == "full" and self.recompute_method == "block":
            return f"full {self.recompute_layers}/{'chunk' if self.vpp > 1 else 'stage'}"
        return self.recompute

    @property
    def stage_layout(self) -> str:
        """Return how the stages divide the layers: Megatron's layout string, else words; "" for an even division.
        Words: layers on the first and last stage, and whether embedding or loss takes a layer's place.
        """
        if self.pipeline_layout:
            return self.pipeline_layout
        layers = {"first": self.first_stage_layers, "last": self.last_stage_layers}
        words = [f"{several(count, 'layer')} on the {end} stage" for end, count in layers.items() if count is not None]
        counted = {"embedding": self.account_for_embedding, "loss": self.account_for_loss}
        words += [f"the {end} takes a layer's place" for end, on in counted.items() if on]
        return ", ".join(words)

    def to_dict(self) -> dict[str, Any]:
        """Return the sections `parallel`, `batch` and `options` of plan.json, nested as in PLACES. cp_comm at cp 1, and
        recompute_layers without full recompute, are None there: they have no effect.
        """
        idle = {"cp_comm": self.cp == 1, "recompute_layers": self.recompute != "full"}
        return nested({".".join(at): None if idle.get(name) else getattr(self, name) for name, at in PLACES.items()})


FIELDS = tuple(one.name for one in fields(Configuration))
# Where plan.json has each field, in its order. It also has two properties.
PLACES: Mapping[str, tuple[str, ...]] = {
    **{name: ("parallel", name) for name in DEGREES},
    "micro": ("batch", "micro"),
    "global_batch": ("batch", "global"),
    "num_microbatches": ("batch", "num_microbatches"),
    "seq_length": ("batch", "seq_length"),
    "sequence_parallel": ("options", "sequence_parallel"),
    "recompute": ("options", "recompute", "granularity"),
    "recompute_modules": ("options", "recompute", "modules"),
    "recompute_method": ("options", "recompute", "method"),
    "recompute_layers": ("options", "recompute", "num_layers"),
    "zero_stage": ("options", "zero_stage"),
    "precision": ("options", "precision"),
    "cp_comm": ("options", "cp_comm"),
    **{
        f"overlap_{name}": ("options", "overlap", name)
        for name in ("grad_reduce", "param_gather", "tp_comm", "pp_p2p", "moe_a2a")
    },
    **{
        name: ("options", name)
        for name in (
            *FIELDS[FIELDS.index("optimizer_offload") : FIELDS.index("grad_bytes") + 1],
            "schedule",
            *FIELDS[FIELDS.index("first_stage_layers") :],
        )
    },
}


def flat(data: Mapping[str, Any]) -> tuple[dict[str, Any], list[tuple[str, ...]]]:
    """Return (fields of a configuration by name, paths that are missing) from the sections of plan.json. Values are not
    checked. None of cp_comm and recompute_layers, which have no effect then, becomes the default. What has no place in
    PLACES is kept under its path, joined by dots, but for num_microbatches and schedule, which are dropped.
    """
    values, names = dict[str, Any](), {path: name for name, path in PLACES.items()}
    sections = {path[:length] for path in names for length in range(1, len(path))}

    def read(section: Mapping[str, Any], path: tuple[str, ...]) -> None:
        """Put the values of a section into `values`, by field, or by path for unknown ones."""
        for key, value in section.items():
            at = (*path, key)
            if at in sections and isinstance(value, Mapping):
                read(value, at)
            elif value is not None or names.get(at) not in _IDLE:
                values[names.get(at, ".".join(at))] = value
            else:
                values[names[at]] = _IDLE[names[at]]

    read({name: data[name] for name in SECTIONS if name in data}, ())
    missing = [path for name, path in PLACES.items() if name not in values]
    return {name: value for name, value in values.items() if name not in ("num_microbatches", "schedule")}, missing


SECTIONS = ("parallel", "batch", "options")
_IDLE = {"cp_comm": "p2p", "recompute_layers": 1}  # None in plan.json where they have no effect
SWITCH: Mapping[str, bool] = {"0": False, "off": False, "false": False, "1": True, "on": True, "true": True}


@dataclass(frozen=True)
class Extra:
    """An option that a search chooses beside the degrees: all that the planner states of it.

    name: its field of `Configuration`. pin: its name among a job's pins. of: the backends whose plans may have it.
    values: by the words of the pin, the framework's default first; empty for a number that divides the GPUs and leaves
    `least` of them to each part. fixed: fields that a point must have for the option to have an effect. alone: each
    value is at least as fast and small as those before, so only the last that runs is tried, and the default if that
    may rule out something else. whole: only the default and the last value that runs are tried. still: needs sequences
    of equal length.
    """

    name: str
    pin: str
    of: tuple[str, ...]
    values: Mapping[str, Any]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    alone: bool = False
    whole: bool = False
    still: bool = False
    least: int = 1

    @cached_property
    def usual(self) -> Any:
        """Return the value that the framework has by default: the first of `values`, 1 for a number of groups.
        Cached, as a search asks for it often.
        """
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
    Extra("instances", "instances", ("fsdp",), {}, least=2),
    Extra("gtp", "gtp", _MEGATRON, {}),
)
# Fields of `Configuration` by the names of pins that differ from them.
FIELD_OF_PIN: Mapping[str, str] = {
    "mbs": "micro",
    "sp": "sequence_parallel",
    "zero": "zero_stage",
    **{extra.pin: extra.name for extra in EXTRAS},
}
