"""What Megatron-LM's options switch: which kernels run, what runs beside what, how wide the states are."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import ValidationError

from symconfig.cost.framework import Framework
from symconfig.descriptor.training import Optimizer
from symconfig.frameworks.behaviour import WIDTHS, Switches, stepping, switched, usual
from symconfig.frameworks.megatron.behaviour import GRAPHED, MEGATRON, MEGATRON_LOCAL, Graphed
from symconfig.frameworks.megatron.flags import Value, first_with, flags
from symconfig.frameworks.megatron.releases import NO_ENGINE, SHARDING_STAGES
from symconfig.graph.implementation import Kernel
from symconfig.plans.configuration import Configuration, Precision, ZeroStage
from symconfig.schedule.timeline import Start
from symconfig.units import MIB

_DETERMINISTIC_WORKSPACE = float(8 * 4 * MIB)  # it wants CUBLAS_WORKSPACE_CONFIG=:4096:8, eight buffers of 4 MiB
# Of deterministic attention, over the newest flash kernel's (Transformer Engine, dot_product_attention/utils.py):
# cuDNN's on Hopper, elsewhere version 2 of flash attention. Blackwell came with kernels of its own.
_DETERMINISTIC_RATE = {"blackwell": 0.5}


def by_destination(given: Mapping[str, Value]) -> dict[str, Value]:
    """Return options' values by the destination in Megatron-LM's parser.

    given: by name without dashes. A switch of kind `false` gives False whatever its value. The first version that has
    the name decides; a name that no version has becomes itself with underscores.
    """
    values = {}
    for name, value in given.items():
        version = first_with(f"--{name}")
        flag = None if version is None else flags(version).flags[f"--{name}"]
        values[flag.dest if flag else name.replace("-", "_")] = False if flag and flag.kind == "false" else value
    return values


def precision(names: Mapping[str, Value]) -> Precision | None:
    """Return the precision of matmuls: nvfp4 before mxfp8 or fp8, before bf16, before fp16; None for fp32.

    names: values by destination. fp8 counts as mxfp8 by its recipe.
    """
    if names.get("fp4") or names.get("fp4_format"):
        return "nvfp4"
    if names.get("fp8") or names.get("fp8_format"):
        return "mxfp8" if names.get("fp8_recipe") == "mxfp8" else "fp8"
    return "bf16" if names.get("bf16") else "fp16" if names.get("fp16") else None


def zero_stage(names: Mapping[str, Value]) -> ZeroStage:
    """Return the ZeRO stage: 1 with Megatron's distributed optimizer or dist_muon, else 0.

    With Megatron-FSDP it is that of its sharding strategy, 0 for an unknown or missing one.
    """
    if names.get("use_megatron_fsdp") or names.get("use_custom_fsdp"):
        return SHARDING_STAGES.get(str(names.get("data_parallel_sharding_strategy")), 0)
    return 1 if names.get("use_distributed_optimizer") or names.get("optimizer") == "dist_muon" else 0


def recomputed(names: Mapping[str, Value]) -> dict[str, Any]:
    """Return the recompute fields of a configuration; "none" if the options ask for nothing, or for an unknown kind.

    They are `recompute`, with recompute_modules if selective, or recompute_method and recompute_layers if full. The
    first that is set decides: --recompute-activations (selective, as validate_args has it), --recompute-granularity, in
    old releases --checkpoint-activations (full), --moe-layer-recompute (selective). Selective recompute is of core_attn
    by default, with --moe-layer-recompute of moe, too; full recompute is uniform unless `block`, over 1 layer by
    default.
    """
    kind = "selective" if names.get("recompute_activations") else names.get("recompute_granularity")
    if names.get("checkpoint_activations"):
        kind = kind or "full"
    if names.get("moe_layer_recompute"):  # transformer_config.py: one of the modules, by its old name
        kind = kind or "selective"
    if kind == "selective":
        # Megatron prints a list as text.
        chosen = set(re.findall(r"[a-z_0-9]+", str(names.get("recompute_modules") or "core_attn")))
        if names.get("moe_layer_recompute"):
            chosen.add("moe")
        return {"recompute": "selective", "recompute_modules": tuple(sorted(chosen))}
    if kind != "full":
        return {"recompute": "none"}
    layers = names.get("recompute_num_layers")
    return {
        "recompute": "full",
        "recompute_method": "block" if names.get("recompute_method") == "block" else "uniform",
        "recompute_layers": layers if isinstance(layers, int) and layers > 0 else 1,
    }


def gradient_bytes(names: Mapping[str, Value], zero: int) -> int:
    """Return the bytes of a gradient's element as it is accumulated: 2 or 4; zero: the ZeRO stage.

    From ZeRO 2 it is that of Megatron-FSDP's own option if set. Else 4 unless the options reduce in bf16, or keep main
    gradients in 16 bits or train in fp16, both without fp32 accumulation (arguments.py, validate_args).
    """
    if zero >= 2 and names.get("megatron_fsdp_main_grads_dtype") is not None:
        return 4 if names["megatron_fsdp_main_grads_dtype"] == "fp32" else 2
    if names.get("grad_reduce_in_bf16"):
        return 2
    half = names.get("fp16") and not names.get("bf16")
    narrow = WIDTHS.get(str(names.get("main_grads_dtype")).removeprefix("torch.")) == 2
    return 2 if (half or narrow) and not names.get("accumulate_allreduce_grads_in_fp32") else 4


def overlap(names: Mapping[str, Value], zero: int, pp: int, vpp: int) -> dict[str, bool]:
    """Return the overlap fields of a configuration (overlap_grad_reduce, overlap_param_gather, …), each True or False.

    names: values by destination; zero: the ZeRO stage. Megatron-FSDP overlaps reductions from ZeRO 2 and gathers at
    ZeRO 3 without an option; p2p overlap is on by default, and only in an interleaved pipeline.
    """
    return {
        "overlap_grad_reduce": bool(names.get("overlap_grad_reduce")) or zero >= 2,
        "overlap_param_gather": bool(names.get("overlap_param_gather")) or zero >= 3,
        "overlap_tp_comm": bool(names.get("tp_comm_overlap")),
        "overlap_pp_p2p": pp > 1 and vpp > 1 and names.get("overlap_p2p_comm") is not False,
        "overlap_moe_a2a": bool(names.get("overlap_moe_expert_parallel_comm")),
    }


def behaviour(names: Mapping[str, Value], architecture: str, c: Configuration, latent: bool) -> Framework:
    """Return Megatron-LM's behaviour in the cost model's terms, with these options on a GPU architecture.

    names: values by destination. c: the configuration of these options: degrees, ZeRO stage, overlaps of data and
    tensor parallelism, gradient bytes, graphs, microbatch group, and, by its dispatcher, whether there are experts.
    latent: whether attention is latent. Without other ranks that share gradients, reductions count as overlapped. An
    optimizer that is not modelled counts as Adam; local layers are ignored on architectures that NO_ENGINE lists. The
    head's weight gradient is deferred for --wgrad-deferral-limit microbatches, at most all but one. At ZeRO 1 with
    overlapped reductions, weights are gathered ON_DEMAND in a plain pipeline that overlaps gathers, and APART elsewhere
    if gathers do not overlap; else AHEAD.
    """
    local, experts = names.get("transformer_impl") == "local" and architecture not in NO_ENGINE, bool(c.moe_dispatcher)
    base = usual(MEGATRON.name, architecture, "local" if local else "transformer_engine")
    stepped = stepping(base, optimizer(names) or Optimizer(), precision(names), precise=precise(names))
    implementation = dict(kernels(names, base, latent, experts))
    if experts and base.engine:
        fused = "fused" if names.get("moe_router_fusion") else "fused_sort"
        implementation["routing"] = fused if names.get("moe_permute_fusion") else "chain"
    if names.get("defer_embedding_wgrad_compute"):
        limit, every = names.get("wgrad_deferral_limit"), c.num_microbatches
        implementation["deferred_gradients"] = min(limit if isinstance(limit, int) and limit > 0 else every, every - 1)
    # Megatron-FSDP never adds a gradient where it is summed, and the usual figures are so.
    added_apart = names.get("gradient_accumulation_fusion") is False and c.zero_stage < 2
    gathers, shared = Start.AHEAD, c.dp * c.cp // c.gtp > 1
    plain_pipeline = c.pp > 1 and c.vpp == 1
    if c.zero_stage == 1 and shared and c.overlap_grad_reduce and c.overlap_param_gather == plain_pipeline:
        gathers = Start.ON_DEMAND if plain_pipeline else Start.APART
    rate = _DETERMINISTIC_RATE.get(architecture, 1.0)
    deterministic = {"torch_workspace": _DETERMINISTIC_WORKSPACE, "attention_rate": rate}
    switches = Switches(
        implementation=implementation,
        bytes={"gradient": float(c.grad_bytes)},
        framework={
            "gathers": gathers,
            "quantised_weights": bool(names.get("fp8_param_gather")),
            "optimizer_instances": instances(names),
            "accumulated_bytes": MEGATRON_LOCAL.accumulated_bytes if added_apart else base.accumulated_bytes,
            "graphed": GRAPHED[c.cuda_graphs],
            "microbatch_group": c.group if c.group != c.pp else 0,  # 0: as many as stages, as without the option
            **(deterministic if names.get("deterministic_mode") else {}),
        },
        reduces_beside=c.overlap_grad_reduce or not shared,
        sends_beside=names.get("overlap_p2p_comm") is not False,
        cuts_products=c.overlap_tp_comm,
        pairs_microbatches=bool(names.get("overlap_moe_expert_parallel_comm")),
    )
    return switched(stepped, architecture, switches)


FULL_ITERATION = "full_iteration"  # of --cuda-graph-impl, before of --cuda-graph-scope: one graph, none of a layer


def graphed(names: Mapping[str, Value], experts: bool) -> Graphed | None:
    """Return which parts of a layer CUDA graphs replay; None if none, or a combination that is not modelled.

    "full iteration": by either option. "all": no modules or `full` ones named, or attention and the MLP (`moe` with
    `experts`, else `mlp`). With `experts` and the router named: "outside experts" if attention is, too, else "router".
    Rules are those of transformer_config.py. experts: whether the model has any.
    """
    if not graphs(names):
        return None
    modules = graphed_modules(names)
    if names.get("cuda_graph_impl") == FULL_ITERATION or FULL_ITERATION in modules:
        return "full iteration"
    if not modules or "full" in modules or {"attn", "moe" if experts else "mlp"} <= modules:
        return "all"
    if not experts or "moe_router" not in modules:
        return None
    return "outside experts" if "attn" in modules else "router"


def graphs(names: Mapping[str, Value]) -> bool:
    """Return whether an option switches CUDA graphs on."""
    return bool(names.get("enable_cuda_graph") or names.get("external_cuda_graph")) or names.get(
        "cuda_graph_impl"
    ) not in (None, "none")


def graphed_modules(names: Mapping[str, Value]) -> frozenset[str]:
    """Return the modules of a layer that CUDA graphs replay, in any release's spelling; empty if none are named."""
    spellings = (names.get(dest) for dest in ("cuda_graph_modules", "cuda_graph_scope_deprecated", "cuda_graph_scope"))
    named = (value if isinstance(value, tuple | list) else (value or "",) for value in spellings)
    return frozenset(word for parts in named for part in parts for word in str(part).split(",") if word)


def instances(names: Mapping[str, Value]) -> int:
    """Return the number of optimizer instances: groups of replicas with a whole optimizer state each; 1 by default."""
    value = names.get("num_distributed_optimizer_instances")
    return value if isinstance(value, int) and value > 0 else 1


def weight_shards(names: Mapping[str, Value]) -> int:
    """Return gtp, shards // tp: how many ranks share the linear weights of a tensor-parallel rank; 1 by default."""
    shards, tp = (names.get(f"tensor_{dest}") for dest in ("parallel_num_weight_shards", "model_parallel_size"))
    return max(1, shards // (tp if isinstance(tp, int) and tp > 0 else 1)) if isinstance(shards, int) else 1


def expert_capacity(names: Mapping[str, Value]) -> float:
    """Return the tokens that a rank's experts have buffers for, over the mean; 0 if it has them for all that come."""
    value = names.get("moe_expert_rank_capacity_factor")
    return float(value) if isinstance(value, int | float) and value > 0 else 0.0


def fuses_loss(names: Mapping[str, Value]) -> bool:
    """Return whether Transformer Engine's kernel computes the loss with its softmax in 16 bits."""
    return bool(names.get("cross_entropy_loss_fusion")) and names.get("cross_entropy_fusion_impl") == "te"


def flex_backend(names: Mapping[str, Value]) -> Literal["deepep", "hybridep"] | None:
    """Return whose kernels the dispatcher flex runs; None for another dispatcher."""
    if names.get("moe_token_dispatcher_type") != "flex":
        return None
    return "hybridep" if names.get("moe_flex_dispatcher_backend") == "hybridep" else "deepep"


def kernels(names: Mapping[str, Value], base: Framework, latent: bool, experts: bool) -> Iterator[tuple[str, Any]]:
    """Yield (option of `behaviour.changed`, value) for each kernel that differs from the usual one.

    These are of attention, loss, rope (not of `latent` attention), the gated activation, and, if `experts`, experts one
    by one and the dispatcher. Megatron-LM's own fused cross-entropy (--cross-entropy-fusion-impl native, the default)
    is not among them: it keeps the softmax in fp32 as the usual one does (core/fusions/fused_cross_entropy.py).
    """
    backend = str(names.get("attention_backend") or "auto")
    if backend in ("unfused", "local") and base.implementation.attention.kernel is Kernel.FLASH:
        yield "attention", "fused_softmax"
    elif not base.engine and names.get("use_flash_attn"):
        yield "attention", "flash"
    elif not base.engine and names.get("masked_softmax_fusion") is False:
        yield "attention", "torch"
    if fuses_loss(names):
        yield "loss", "fused"
    if names.get("apply_rope_fusion") is False and not latent:
        yield "fused_rope", False
    if names.get("bias_swiglu_fusion") is False:
        yield "fused_activation", False
    if not experts:
        return
    if not names.get("moe_grouped_gemm"):
        yield "sequential_experts", True
    if (backend_of_experts := flex_backend(names)) is not None:
        yield "dispatcher", backend_of_experts
    elif names.get("moe_token_dispatcher_type") == "allgather":
        yield "dispatcher", "allgather"


PRECISE = "use_precision_aware_optimizer"
MUON = ("muon", "dist_muon")  # the second with ranks that share it, by its old name
# As an option has them, and as PyTorch prints them.
_WIDTH_NAMES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "uint8": "fp8"}
_OF_MUON = {
    "momentum": ("muon_momentum",),
    "nesterov": ("muon_nesterov", "muon_use_nesterov"),
    "ns_steps": ("muon_num_ns_steps",),
    "scale_mode": ("muon_scale_mode",),
    "extra_scale_factor": ("muon_extra_scale_factor",),
    "tp_mode": ("muon_tp_mode",),
}


def optimizer(names: Mapping[str, Value]) -> Optimizer | None:
    """Return the optimizer that the options ask for, adam by default; None if not modelled or its settings are invalid.

    names: values by destination. Widths of states are read only for adam with the precision-aware optimizer, Muon's
    settings in the spelling of any release.
    """
    name = str(names.get("optimizer") or "adam")
    fields: dict[str, Any] = {"name": "muon" if name in MUON else name}
    if name == "adam" and precise(names):
        fields |= {
            "main_params": _width(names, "main_params_dtype"),
            "exp_avg": _width(names, "exp_avg_dtype"),
            "exp_avg_sq": _width(names, "exp_avg_sq_dtype"),
        }
    if name == "sgd":
        fields["momentum"] = names.get("sgd_momentum")
    if name in MUON:
        given = {
            field: next((names[d] for d in dests if names.get(d) is not None), None)
            for field, dests in _OF_MUON.items()
        }
        fields |= {field: value for field, value in given.items() if value is not None}
    try:
        return Optimizer.model_validate(fields) if name in ("adam", "sgd", *MUON) else None
    except ValidationError:
        return None


def precise(names: Mapping[str, Value]) -> bool:
    """Return whether the precision-aware optimizer is on.

    False with an optimizer on the host, whose states are fp32.
    """
    return bool(names.get(PRECISE)) and not names.get("optimizer_cpu_offload")


def _width(names: Mapping[str, Value], dest: str) -> str:
    word = str(names.get(dest) or "fp32").removeprefix("torch.")
    return _WIDTH_NAMES.get(word, word)
