"""What a plan may switch on beside its degrees (EXTRAS): kernels and overlaps that a framework leaves off by itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from symconfig.cost.framework import Framework
from symconfig.format import picked
from symconfig.frameworks.behaviour import Switches, switched
from symconfig.frameworks.known import FRAMEWORKS
from symconfig.frameworks.megatron.behaviour import GRAPHED, Graphed
from symconfig.plans.configuration import EXTRAS, Configuration

T = TypeVar("T", bound=Configuration)
NAMES = tuple(one.name for one in EXTRAS)
_GRAPHS: dict[Graphed, str] = {
    "none": "",
    "router": "CUDA graphs of the router",
    "outside experts": "CUDA graphs outside experts",
    "all": "CUDA graphs",
    "full iteration": "one CUDA graph",
}


def gradient_bytes(framework: Framework) -> int:
    """Return the bytes of a gradient's element as it is accumulated over microbatches."""
    return int(framework.shard_bytes or framework.bytes.gradient)


def supported(c: Configuration, framework: Framework) -> Configuration:
    """Return a copy in which options that the framework's plans cannot have are at their default.

    grad_bytes is then the framework's own.
    """
    other = {one.name: one.usual for one in EXTRAS if framework.name not in one.of}
    return replace(c, **other | ({"grad_bytes": gradient_bytes(framework)} if "grad_bytes" in other else {}))


def in_effect(c: T) -> T:
    """Return a copy in which options that its degrees leave without effect are off.

    Overlap of experts needs ep > 1, user buffers tp > 1 and sequence parallelism, DeepEP and HybridEP ep x etp > 1.
    """
    return replace(
        c,
        overlap_moe_a2a=c.overlap_moe_a2a and c.ep > 1,
        overlap_tp_comm=c.overlap_tp_comm and c.tp > 1 and c.sequence_parallel,
        moe_flex_backend=c.moe_flex_backend if c.ep * c.etp > 1 else None,
    )


def columns(c: Configuration) -> dict[str, Any]:
    """Return the options by name, and `moe_dispatcher` as moe_flex_backend implies it."""
    return {**picked(c, *NAMES), "moe_dispatcher": "flex" if c.moe_flex_backend else "alltoall"}


def on(c: Configuration) -> tuple[str, ...]:
    """Return the names of the options that differ from their default."""
    return tuple([one.name for one in EXTRAS if getattr(c, one.name) != one.usual])


def words(c: Configuration) -> tuple[str, ...]:
    """Return in words, as tables show them, those of EXTRAS that are on, without `grad_bytes`; () if none."""
    named = {
        f"{c.moe_flex_backend} dispatch": bool(c.moe_flex_backend),
        "all-to-all overlapped": c.overlap_moe_a2a,
        "user buffers": c.overlap_tp_comm,
        _GRAPHS[c.cuda_graphs]: c.cuda_graphs != "none",
        "8-bit weights": c.fp8_param_gather,
        "fused loss": c.fused_loss,
        f"experts hold {c.expert_capacity:g} x the mean": c.expert_capacity > 0,
        "paged stash": c.paged_stash,
        "fp8 attention": c.fp8_attention,
        f"{c.instances} groups of shards": c.instances > 1,
        f"weight shards over gtp {c.gtp}": c.gtp > 1,
    }
    return tuple([name for name, is_on in named.items() if is_on])


def put_on(framework: Framework, architecture: str, c: Configuration, had: Configuration) -> Framework:
    """Return the framework, which has the options of `had`, with those of `c` instead.

    Overlap over tp, cp and experts is first reset to the framework's usual; dispatcher, loss, 8-bit attention and
    graphs are set only where they differ from `had`, gradient width and instances only where its plans may have them.
    """
    usual = FRAMEWORKS[framework.name].hide
    hide = replace(
        framework.hide,
        **picked(usual, "tp_forward", "tp_backward", "tp_pieces", "cp_forward", "cp_backward"),
        experts=0.0,
    )
    how: dict[str, Any] = {}
    if had.moe_flex_backend != c.moe_flex_backend:
        how["dispatcher"] = c.moe_flex_backend or "alltoall"
    if had.fused_loss != c.fused_loss:
        how["loss"] = "fused" if c.fused_loss else "parallel"
    if had.fp8_attention != c.fp8_attention:
        how["fp8_attention"] = c.fp8_attention
    able = [one.name for one in EXTRAS if framework.name in one.of]
    given: dict[str, Any] = {"quantised_weights": c.fp8_param_gather}
    if "instances" in able:
        given["optimizer_instances"] = c.instances
    if had.cuda_graphs != c.cuda_graphs:
        given["graphed"] = GRAPHED[c.cuda_graphs]
    switches = Switches(
        implementation=how,
        bytes={"gradient": float(c.grad_bytes)} if "grad_bytes" in able else {},
        framework=given,
        cuts_products=c.overlap_tp_comm,
        pairs_microbatches=c.overlap_moe_a2a,
    )
    return switched(replace(framework, hide=hide), architecture, switches)
