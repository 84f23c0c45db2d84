"""Options beside the degrees of a plan, what is recomputed, and the table of those options that a search chooses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from symconfig.descriptor.strict import Count, PositiveInt
from symconfig.format import several
from symconfig.plans.choices import Precision, ZeroStage

_CONFIG = ConfigDict(extra="forbid", strict=True)
Share = Annotated[float, Field(ge=0, le=1)]


@dataclass(frozen=True, slots=True)
class Recompute:
    """The activations that are computed again in the backward pass.

    selective: `modules` (Megatron's names); full: whole layers, `method` uniform (every layer) or
    block (the first `num_layers` layers of every virtual stage).
    """

    __pydantic_config__ = _CONFIG
    granularity: Literal["none", "selective", "full"]
    modules: tuple[str, ...] = ()
    method: Literal["uniform", "block"] | None = None
    num_layers: Count | None = None

    @property
    def text(self) -> str:
        """Return the choice in words: `none`, `core_attn+mlp`, `selective` without modules, `full`, or `full 3/stage`.

        The last one, of method block, recomputes the first 3 layers of each virtual stage.
        """
        if self.granularity == "none":
            return "none"
        if self.granularity == "selective":
            return "+".join(self.modules) or "selective"
        if self.method == "block" and self.num_layers is not None:
            return f"full {self.num_layers}/stage"
        return "full"


@dataclass(frozen=True, slots=True)
class Overlap:
    """The communication that runs during computation."""

    __pydantic_config__ = _CONFIG
    grad_reduce: bool
    param_gather: bool
    tp_comm: bool
    pp_p2p: bool
    moe_a2a: bool = False


@dataclass(frozen=True, slots=True)
class Options:
    """Switches beside the degrees."""

    __pydantic_config__ = _CONFIG
    sequence_parallel: bool
    recompute: Recompute
    zero_stage: ZeroStage
    precision: Precision
    cp_comm: Literal["p2p", "a2a", "all_gather"] | None
    overlap: Overlap
    optimizer_offload: Share  # share of the optimizer state in host memory, 0 to 1
    activation_offload: bool
    param_offload: bool
    pipeline_layout: str | None  # Megatron's layout string, where nothing plainer says the stages
    account_for_embedding: bool
    account_for_loss: bool
    microbatch_group_size: PositiveInt | None  # per virtual stage, interleaved schedule only
    moe_dispatcher: Literal["alltoall", "allgather", "flex"] | None
    grad_bytes: PositiveInt  # per parameter, as accumulated
    schedule: Literal["none", "1f1b", "interleaved"]
    # Layers on the first and on the last stage, the others share the rest; None: as the others have.
    first_stage_layers: Count | None = None
    last_stage_layers: Count | None = None
    # What the dispatcher "flex" runs: its own kernels in the place of NCCL's all-to-all.
    moe_flex_backend: Literal["deepep", "hybridep"] | None = None
    # What CUDA graphs replay of a layer (`frameworks.megatron.behaviour.GRAPHED`).
    cuda_graphs: Literal["none", "router", "outside experts", "all"] = "none"
    fp8_param_gather: bool = False  # weights are gathered and kept in low precision only
    fused_loss: bool = False  # the loss is one kernel, with its softmax in 16 bits
    instances: PositiveInt = 1  # groups of data-parallel ranks that each have all parts of what ZeRO cuts

    @property
    def fp8_recipe(self) -> str:
        """Return the recipe for scales of 8-bit matmuls: tensorwise, delayed or mxfp8; "" in other precisions.

        For fp8 tensorwise, but delayed (of a history of maxima) if the optimizer is offloaded and fp8 weights are
        gathered, which works with no other recipe.
        """
        if self.precision != "fp8":
            return "mxfp8" if self.precision == "mxfp8" else ""
        return "delayed" if self.fp8_param_gather and self.optimizer_offload > 0 else "tensorwise"

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


SWITCH: Mapping[str, bool] = {"0": False, "off": False, "false": False, "1": True, "on": True, "true": True}


@dataclass(frozen=True, slots=True)
class Extra:
    """An option that a search chooses beside the degrees: all that the planner states of it.

    name: its column, and its field of `frameworks.extras.Extras`. pin: its name among a job's pins. option: the path of
    its field in `Options`. of: the backends whose plans may have it. values: by the words of the pin, the framework's
    default first; empty for a number of groups of GPUs. fixed: columns that a point must have for the option to have an
    effect. alone: each value is at least as fast and small as those before, so only the last that runs is tried, and
    the default if that may rule out something else. whole: only the default and the last value that runs are tried.
    still: needs sequences of equal length.
    """

    name: str
    pin: str
    option: str
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
_GRAPHS = {"none": "none", "router": "router", "outside_experts": "outside experts", "all": "all"}
_KERNELS = {"alltoall": "", "deepep": "deepep", "hybridep": "hybridep"}
EXTRAS: tuple[Extra, ...] = (
    Extra("grad_bytes", "grad_dtype", "grad_bytes", ("megatron", "deepspeed"), {"fp32": 4, "bf16": 2}, alone=True),
    Extra("fp8_param_gather", "fp8_param_gather", "fp8_param_gather", _MEGATRON, SWITCH, {"zero": 1}, alone=True),
    Extra("fused_loss", "fused_loss", "fused_loss", _MEGATRON, SWITCH, alone=True),
    Extra("tp_comm", "user_buffers", "overlap.tp_comm", _MEGATRON, SWITCH, {"sequence_parallel": True}, still=True),
    Extra("flex_backend", "dispatcher", "moe_flex_backend", _MEGATRON, _KERNELS),
    Extra("graphs", "cuda_graphs", "cuda_graphs", _MEGATRON, _GRAPHS, whole=True, still=True),
    Extra("moe_overlap", "moe_overlap", "overlap.moe_a2a", _MEGATRON, SWITCH),
    Extra("instances", "instances", "instances", ("fsdp",), {}),
)


def extras_of(options: Options) -> dict[str, Any]:
    """Return the value of each row of EXTRAS by its column; the default where the plan's option is None."""
    values = ((one, attrgetter(one.option)(options)) for one in EXTRAS)
    return {one.name: one.usual if value is None else value for one, value in values}
