"""Megatron-LM's habits under a set of options: which kernels run, what runs beside what, how wide the states are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from symconfig.cost.framework import Framework, Graphed
from symconfig.existing.recover.namespace import Value
from symconfig.frameworks.megatron.behaviour import MEGATRON_LOCAL, USER_BUFFERS, beside_another
from symconfig.graph.blocks.common import Implementation
from symconfig.plans.choices import Precision
from symconfig.plans.plan import Overlap
from symconfig.solve.habits import habits

_WIDTHS = {"fp32": 4.0, "fp16": 2.0, "bf16": 2.0, "fp8": 1.0}


def precision(names: Mapping[str, Value]) -> Precision | None:
    """Of the products; None: fp32, of which nothing is predicted."""
    if names.get("fp4") or names.get("fp4_format"):
        return "nvfp4"
    if names.get("fp8") or names.get("fp8_format"):
        return "mxfp8" if names.get("fp8_recipe") == "mxfp8" else "fp8"
    return "bf16" if names.get("bf16") else "fp16" if names.get("fp16") else None


def gradient_bytes(names: Mapping[str, Value], zero: int) -> int:
    """Of an element as it is accumulated (arguments.py, validate_args: bf16 sums in fp32 unless it is told to reduce in
    bf16, or to keep its main gradients in it)."""
    if zero >= 2 and names.get("megatron_fsdp_main_grads_dtype") is not None:
        return 4 if names["megatron_fsdp_main_grads_dtype"] == "fp32" else 2
    if names.get("grad_reduce_in_bf16"):
        return 2
    half = names.get("fp16") and not names.get("bf16")
    narrow = _WIDTHS.get(str(names.get("main_grads_dtype")).removeprefix("torch.")) == 2
    return 2 if (half or narrow) and not names.get("accumulate_allreduce_grads_in_fp32") else 4


def overlap(names: Mapping[str, Value], zero: int, pp: int, vpp: int) -> Overlap:
    """Which communication runs beside computation; Megatron-FSDP switches its own on."""
    return Overlap(
        grad_reduce=bool(names.get("overlap_grad_reduce")) or zero >= 2,
        param_gather=bool(names.get("overlap_param_gather")) or zero >= 3,
        tp_comm=bool(names.get("tp_comm_overlap")),
        pp_p2p=pp > 1 and vpp > 1 and names.get("overlap_p2p_comm") is not False,
        moe_a2a=bool(names.get("overlap_moe_expert_parallel_comm")),
    )


@dataclass(frozen=True, slots=True)
class Shape:
    """What decides which options matter. gradient_bytes: of an element. replicas: ranks that share the gradients."""

    zero: int
    gradient_bytes: int
    replicas: int
    pp: int
    vpp: int
    latent: bool

    @property
    def in_turn(self) -> bool:
        """Stages without interleaving, whose gathers at their first input go one after the other."""
        return self.pp > 1 and self.vpp == 1


def framework(names: Mapping[str, Value], architecture: str, beside: Overlap, shape: Shape) -> Framework:
    """Megatron-LM on this GPU as the options have it."""
    local = names.get("transformer_impl") == "local"
    base = habits("megatron", architecture, "local" if local else "transformer_engine")
    hide: dict[str, Any] = {}
    if not beside.grad_reduce and shape.replicas > 1:
        hide["data"] = 0.0
    if beside.tp_comm:
        hide |= USER_BUFFERS
    if not beside.pp_p2p and names.get("overlap_p2p_comm") is False:
        hide["pp"] = 0.0
    wide = replace(base.bytes, gradient=float(shape.gradient_bytes), optimizer=_optimizer_bytes(names))
    # Megatron-FSDP never adds a gradient where it is summed, and its habits are so.
    added_apart = names.get("gradient_accumulation_fusion") is False and shape.zero < 2
    sharded = shape.zero == 1 and shape.replicas > 1 and beside.grad_reduce
    found = replace(
        base,
        implementation=replace(base.implementation, **dict(_kernels(names, base.implementation, local, shape.latent))),
        hide=replace(base.hide, **hide),
        bytes=wide,
        gathers_apart=sharded and not beside.param_gather and not shape.in_turn,
        demanded_gathers=sharded and beside.param_gather and shape.in_turn,
        quantised_weights=bool(names.get("fp8_param_gather")),
        optimizer_instances=_instances(names),
        accumulated_bytes=MEGATRON_LOCAL.accumulated_bytes if added_apart else base.accumulated_bytes,
        kept_gradient_buffers=base.kept_gradient_buffers and not added_apart,
        graphed=graphed(names) or base.graphed,
        microbatch_group=_group(names, shape),
    )
    return beside_another(found, architecture) if beside.moe_a2a else found


def _group(names: Mapping[str, Value], shape: Shape) -> int:
    """Microbatches that a chunk runs before the next one does; 0: as many as stages, as without the option."""
    group = names.get("microbatch_group_size_per_vp_stage")
    return group if isinstance(group, int) and shape.vpp > 1 and group != shape.pp else 0


def graphed(names: Mapping[str, Value]) -> Graphed | None:
    """What CUDA graphs replay; None: nothing, or parts of a layer of which nothing is predicted.

    transformer_config.py: --cuda-graph-impl, or the switches that it replaced; without modules whole layers.
    """
    if not graphs(names):
        return None
    modules = graphed_modules(names)
    experts = bool(names.get("num_experts"))
    if not modules or modules & {"full", "full_iteration"} or {"attn", "moe" if experts else "mlp"} <= modules:
        return "all"
    if not experts or "moe_router" not in modules:
        return None
    return "outside experts" if "attn" in modules else "router"


def graphs(names: Mapping[str, Value]) -> bool:
    """Whether CUDA graphs are on."""
    return bool(names.get("enable_cuda_graph") or names.get("external_cuda_graph")) or names.get(
        "cuda_graph_impl"
    ) not in (None, "none")


def graphed_modules(names: Mapping[str, Value]) -> frozenset[str]:
    """Parts of a layer, each version's way of saying them."""
    said = (names.get(dest) for dest in ("cuda_graph_modules", "cuda_graph_scope_deprecated", "cuda_graph_scope"))
    parts = {str(part) for value in said for part in (value if isinstance(value, tuple) else (value or "",))}
    return frozenset(word for part in parts for word in part.split(",") if word)


def _instances(names: Mapping[str, Value]) -> int:
    value = names.get("num_distributed_optimizer_instances")
    return value if isinstance(value, int) and value > 0 else 1


def _optimizer_bytes(names: Mapping[str, Value]) -> float:
    """Master weight and two moments; of other widths with --use-precision-aware-optimizer only."""
    if not names.get("use_precision_aware_optimizer"):
        return 12.0
    parts = ("main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")
    return sum(_WIDTHS.get(str(names.get(part) or "fp32").removeprefix("torch."), 4.0) for part in parts)


def _kernels(names: Mapping[str, Value], usual: Implementation, local: bool, latent: bool) -> Iterator[tuple[str, Any]]:
    """Fields of the implementation that the options make other than the usual one's."""
    backend = str(names.get("attention_backend") or "auto")
    if backend in ("unfused", "local") and usual.attention == "flash":
        yield "attention", "fused_softmax"
    elif local and names.get("use_flash_attn"):
        yield "attention", "flash"
    if names.get("cross_entropy_loss_fusion"):
        yield "loss", "fused"
    if names.get("apply_rope_fusion") is False and not latent:
        yield "fused_rope", False
    if names.get("bias_swiglu_fusion") is False:
        yield "fused_activation", False
    if names.get("num_experts") and not names.get("moe_grouped_gemm"):
        yield "sequential_experts", True
    if names.get("moe_token_dispatcher_type") == "flex":
        yield "dispatcher", "hybridep" if names.get("moe_flex_dispatcher_backend") == "hybridep" else "deepep"
