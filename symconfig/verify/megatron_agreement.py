"""The plan's own numbers, degrees, batch and switches, against what Megatron resolved and would build."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from symconfig.descriptor.model import ModelDescriptor
from symconfig.errors import Problem
from symconfig.frameworks.megatron import hybrid
from symconfig.frameworks.megatron.flags import Value
from symconfig.frameworks.megatron.options import graphed, graphs
from symconfig.frameworks.megatron.releases import SHARDING_STAGES
from symconfig.plans.plan import Plan
from symconfig.verify.megatron_resolved import Resolved
from symconfig.verify.megatron_session import Result

BUILT_AT_THE_ENDS = frozenset({"embedding", "head"})  # on the first and last chunk, whatever a layout says


@dataclass(frozen=True, slots=True)
class Row:
    """One number of the plan. `field`: as in plan.json."""

    field: str
    where: str
    need: Callable[[Plan], Any]
    got: Callable[[Resolved], Any]


def _degree(name: str, where: str) -> Row:
    return Row(f"parallel.{name}", where, lambda plan: getattr(plan.best.parallel, name), lambda r: r.arg(where))


def _etp(plan: Plan) -> int | None:
    return plan.best.parallel.etp if plan.model.experts else None


def _fsdp(r: Resolved) -> bool:
    return bool(r.arg("use_megatron_fsdp") or r.arg("use_custom_fsdp"))


def _zero_stage(r: Resolved) -> int:
    if _fsdp(r):
        return SHARDING_STAGES.get(r.arg("data_parallel_sharding_strategy"), 0)
    # What shares Muon by whole matrices is the distributed optimizer by another name (validate_args).
    return int(bool(r.arg("use_distributed_optimizer") or r.arg("use_layer_wise_distributed_optimizer")))


def _precision(r: Resolved) -> str:
    if r.arg("fp4"):
        return "nvfp4"
    if r.arg("fp8"):
        return "mxfp8" if r.arg("fp8_recipe") == "mxfp8" else "fp8"
    return "bf16" if r.arg("bf16") else "fp16" if r.arg("fp16") else "fp32"


def _flex_backend(r: Resolved) -> str | None:
    if not r.arg("num_experts") or r.arg("moe_token_dispatcher_type") != "flex":
        return None
    backend: str = r.arg("moe_flex_dispatcher_backend") or "deepep"
    return backend


# Of CUDA graphs, in one release or another.
_GRAPHS = (
    "enable_cuda_graph",
    "external_cuda_graph",
    "cuda_graph_impl",
    "cuda_graph_modules",
    "cuda_graph_scope",
    "num_experts",
)
_OTHER_GRAPHS = "parts of a layer that no plan has"


def _graphed(r: Resolved) -> str:
    """Return what CUDA graphs replay, as plans call it."""
    values = {name: r.arg(name) for name in _GRAPHS}
    names: dict[str, Value] = {k: tuple(value) if isinstance(value, list) else value for k, value in values.items()}
    return (graphed(names) or _OTHER_GRAPHS) if graphs(names) else "none"


def _grad_bytes(r: Resolved) -> int:
    """Return the bytes of a gradient as it is added up; Megatron-FSDP has a number format of its own (None: bf16)."""
    own = "megatron_fsdp_main_grads_dtype"
    if _fsdp(r) and r.arg(own, "absent") != "absent":
        return 4 if "32" in str(r.arg(own)) else 2
    return 4 if r.arg("accumulate_allreduce_grads_in_fp32") else 2


def _replicated(plan: Plan) -> bool:
    return plan.best.parallel.dp * plan.best.parallel.cp > 1


ROWS: tuple[Row, ...] = (
    _degree("tp", "tensor_model_parallel_size"),
    _degree("pp", "pipeline_model_parallel_size"),
    _degree("cp", "context_parallel_size"),
    _degree("dp", "data_parallel_size"),
    _degree("ep", "expert_model_parallel_size"),
    Row(
        "parallel.vpp",
        "virtual_pipeline_model_parallel_size",
        lambda plan: plan.best.parallel.vpp,
        lambda r: r.arg("virtual_pipeline_model_parallel_size") or 1,
    ),
    Row("batch.micro", "micro_batch_size", lambda plan: plan.best.batch.micro, lambda r: r.arg("micro_batch_size")),
    Row(
        "batch.global", "global_batch_size", lambda plan: plan.best.batch.global_, lambda r: r.arg("global_batch_size")
    ),
    Row("batch.seq_length", "seq_length", lambda plan: plan.best.batch.seq_length, lambda r: r.arg("seq_length")),
    Row(
        "options.sequence_parallel",
        "sequence_parallel",
        lambda plan: plan.best.options.sequence_parallel and plan.best.parallel.tp > 1,
        lambda r: bool(r("sequence_parallel")),
    ),
    Row(
        "options.zero_stage",
        "use_distributed_optimizer, data_parallel_sharding_strategy",
        lambda plan: plan.best.options.zero_stage,
        _zero_stage,
    ),
    Row("options.precision", "bf16, fp16, fp8, fp4", lambda plan: plan.best.options.precision, _precision),
    Row(
        "options.recompute.granularity",
        "recompute_granularity",
        lambda plan: plan.best.options.recompute.granularity,
        lambda r: r("recompute_granularity") or "none",
    ),
    Row(
        "options.overlap.grad_reduce",
        "overlap_grad_reduce",
        lambda plan: _replicated(plan) and (plan.best.options.overlap.grad_reduce or plan.best.options.zero_stage >= 2),
        lambda r: bool(r.arg("overlap_grad_reduce")),
    ),
    Row(
        "options.overlap.tp_comm",
        "tp_comm_overlap",
        lambda plan: plan.best.options.overlap.tp_comm,
        lambda r: bool(r("tp_comm_overlap")),
    ),
    Row(
        "options.grad_bytes",
        "accumulate_allreduce_grads_in_fp32, megatron_fsdp_main_grads_dtype",
        lambda plan: plan.best.options.grad_bytes,
        _grad_bytes,
    ),
    Row(
        "options.overlap.moe_a2a",
        "overlap_moe_expert_parallel_comm",
        lambda plan: plan.best.options.overlap.moe_a2a,
        lambda r: bool(r("overlap_moe_expert_parallel_comm", False)),
    ),
    Row(
        "options.optimizer_offload",
        "optimizer_offload_fraction",
        lambda plan: plan.best.options.optimizer_offload,
        lambda r: r.arg("optimizer_offload_fraction") if r.arg("optimizer_cpu_offload") else 0.0,
    ),
    Row(
        "options.activation_offload",
        "fine_grained_activation_offloading",
        lambda plan: plan.best.options.activation_offload,
        lambda r: bool(r("fine_grained_activation_offloading", False)),
    ),
    Row(
        "options.moe_flex_backend",
        "moe_token_dispatcher_type, moe_flex_dispatcher_backend, moe_enable_deepep",
        lambda plan: plan.best.options.moe_flex_backend,
        _flex_backend,
    ),
    Row(
        "options.cuda_graphs",
        "cuda_graph_impl, cuda_graph_modules, cuda_graph_scope, external_cuda_graph",
        lambda plan: plan.best.options.cuda_graphs,
        _graphed,
    ),
    Row(
        "options.fp8_param_gather",
        "fp8_param_gather",
        lambda plan: plan.best.options.fp8_param_gather,
        lambda r: bool(r.arg("fp8_param_gather")),
    ),
    Row(
        "options.fused_loss",
        "cross_entropy_loss_fusion, cross_entropy_fusion_impl",
        lambda plan: plan.best.options.fused_loss,
        lambda r: bool(r.arg("cross_entropy_loss_fusion")) and r.arg("cross_entropy_fusion_impl") == "te",
    ),
)


def compare(plan: Plan, result: Result, file: str) -> Iterator[Problem]:
    """Compare the plan with Megatron: yield every number that Megatron resolved differently."""
    resolved = Resolved(result)
    for row in ROWS:
        need, got = row.need(plan), row.got(resolved)
        if need != got:
            yield Problem(
                f"Megatron resolves {row.where} to another plan",
                file=file,
                field=row.field,
                got=repr(got),
                need=repr(need),
            )
    yield from _recompute(plan, resolved, file)
    if (etp := _etp(plan)) is not None and resolved.arg("expert_tensor_parallel_size", 1) != etp:
        yield Problem(
            "Megatron resolves expert_tensor_parallel_size to another plan",
            file=file,
            field="parallel.etp",
            got=repr(resolved.arg("expert_tensor_parallel_size")),
            need=repr(etp),
        )
    if result.num_microbatches != plan.best.batch.num_microbatches:
        yield Problem(
            "Megatron's calculator gives another number",
            file=file,
            field="batch.num_microbatches",
            got=repr(result.num_microbatches),
            need=repr(plan.best.batch.num_microbatches),
        )


def _recompute(plan: Plan, resolved: Resolved, file: str) -> Iterator[Problem]:
    wanted = plan.best.options.recompute
    pairs: dict[str, tuple[Any, Any]] = {}
    if wanted.granularity == "full":
        pairs = {
            "method": (wanted.method or "uniform", resolved("recompute_method")),
            "num_layers": (
                (wanted.num_layers or 1) * (hybrid.parts_of_layer(plan.model) or 1),
                resolved("recompute_num_layers"),
            ),
        }
    elif wanted.granularity == "selective":
        # Megatron's default where nothing is named; the order has no meaning.
        pairs = {
            "modules": (
                sorted(wanted.modules or ("core_attn",)),
                sorted(resolved("recompute_modules") or ["core_attn"]),
            )
        }
    for name, (need, got) in pairs.items():
        if need != got:
            yield Problem(
                f"Megatron resolves recompute_{name} to another plan",
                file=file,
                field=f"options.recompute.{name}",
                got=repr(got),
                need=repr(need),
            )


def stages(plan: Plan, result: Result, file: str) -> Iterator[Problem]:
    """Compare the layers that Megatron will build on each stage and virtual stage with the plan's and the model's."""
    kinds = _counted(plan.model, plan.model.layer_kinds)
    layers, predictions = range(len(kinds)), plan.model.num_nextn_predict_layers
    held = sorted(
        layer for stage in result.stages for first, count, _ in stage for layer in range(first, first + count)
    )
    if held != list(layers):
        lost, twice = sorted(set(layers) - set(held)), [layer for layer in layers if held.count(layer) > 1]
        yield Problem(
            "the stages do not hold every layer once",
            file=file,
            field="stages",
            got=f"{len(held)} layers" + _listed("without", lost) + _listed("twice", twice),
            need=str(len(kinds)),
        )
        return
    if (predicted := sum(more for stage in result.stages for *_, more in stage)) != predictions:
        yield Problem(
            "the stages do not hold every multi-token prediction once",
            file=file,
            field="stages",
            got=str(predicted),
            need=str(predictions),
        )
    need = [
        [
            list(_counted(plan.model, [kind for kind in chunk if kind not in BUILT_AT_THE_ENDS]))
            for chunk in stage.chunks
        ]
        for stage in plan.best.stages
    ]
    got = [
        [[*kinds[first : first + count], *["mtp"] * more] for first, count, more in stage] for stage in result.stages
    ]
    for place, (planned, built) in enumerate(zip(need, got, strict=False)):
        if planned != built:
            yield Problem(
                "Megatron builds other layers on this stage",
                file=file,
                field=f"stages.{place}",
                got=_counts(built),
                need=_counts(planned),
            )
    if len(need) != len(got):
        yield Problem(
            "Megatron builds another number of stages",
            file=file,
            field="stages",
            got=str(len(got)),
            need=str(len(need)),
        )


def _counted(model: ModelDescriptor, kinds: Sequence[str]) -> tuple[str, ...]:
    """Return the kind of each of Megatron's layers."""
    if not hybrid.hybrid(model):
        return tuple(kinds)
    parts = {kind.name: len(hybrid.symbols(kind)) for kind in model.kind_of_layer}
    return tuple(kind for kind in kinds for _ in range(parts.get(kind, 1)))


def _listed(word: str, layers: list[int]) -> str:
    """List the first few layers, counted from 0."""
    return f", {word} {', '.join(map(str, layers[:8]))}{', …' if len(layers) > 8 else ''}" if layers else ""


def _counts(stage: list[list[str]]) -> str:
    """Count kinds of layers: 5 dense | 3 dense + 2 moe"""
    return " | ".join(
        " + ".join(f"{chunk.count(kind)} {kind}" for kind in dict.fromkeys(chunk)) or "nothing" for chunk in stage
    )
