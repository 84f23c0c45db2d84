"""The plan's own numbers, degrees, batch and switches, against what Megatron resolved and would build."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any

from symconfig.descriptor.model import ModelDescriptor
from symconfig.errors import Problem
from symconfig.frameworks.megatron import hybrid, options
from symconfig.plans.plan import Plan
from symconfig.verify.megatron_resolved import Resolved
from symconfig.verify.megatron_sameness import Row, differing
from symconfig.verify.megatron_session import Result

BUILT_AT_THE_ENDS = frozenset({"embedding", "head"})  # on the first and last chunk, whatever a layout says


def _switched(field: str, where: str, neutral: Any = None) -> Row:
    """Return the row of a boolean option, false if Megatron has no value. neutral: for releases without the option."""
    return Row(field, where, got=lambda _, r: bool(r(where, neutral)))


def _zero_stage(r: Resolved) -> int:
    # What shares Muon by whole matrices is the distributed optimizer by another name (validate_args).
    return options.zero_stage(r.args) or int(bool(r.arg("use_layer_wise_distributed_optimizer")))


def _graphed(r: Resolved) -> str:
    """Return the scope of CUDA graphs as plans name it, "none", or a text for scopes that no plan has."""
    scope = options.graphed(r.args, bool(r.arg("num_experts"))) or "parts of a layer that no plan has"
    return scope if options.graphs(r.args) else "none"


def _grad_bytes(r: Resolved) -> int:
    """Return the bytes per element of the accumulated gradient, 2 or 4; Megatron-FSDP has an option of its own."""
    own = "megatron_fsdp_main_grads_dtype"
    fsdp = r.arg("use_megatron_fsdp") or r.arg("use_custom_fsdp")
    if fsdp and r.arg(own, "absent") != "absent":
        return 4 if "32" in str(r.arg(own)) else 2
    return 4 if r.arg("accumulate_allreduce_grads_in_fp32") else 2


def _full(plan: Plan) -> bool:
    return plan.best.configuration.recompute == "full"


ROWS: tuple[Row, ...] = (
    Row("best.configuration.tp", "tensor_model_parallel_size"),
    Row("best.configuration.pp", "pipeline_model_parallel_size"),
    Row("best.configuration.cp", "context_parallel_size"),
    # Of the arguments without the ranks of weight shards, which are data-parallel ones here.
    Row("best.configuration.dp", "data_parallel_size",
        got=lambda _, r: r.arg("data_parallel_size") * r.arg("gtp_weight_remat_size", 1)),
    Row("best.configuration.gtp", "tensor_parallel_num_weight_shards",
        got=lambda _, r: r.arg("gtp_weight_remat_size", 1)),
    Row("best.configuration.ep", "expert_model_parallel_size"),
    Row("best.configuration.etp", "expert_tensor_parallel_size",
        got=lambda _, r: r.arg("expert_tensor_parallel_size", 1),
        applies=lambda plan: plan.model.experts is not None),
    Row("best.configuration.vpp", "virtual_pipeline_model_parallel_size",
        got=lambda _, r: r.arg("virtual_pipeline_model_parallel_size") or 1),
    Row("best.configuration.micro", "micro_batch_size"),
    Row("best.configuration.global_batch", "global_batch_size"),
    Row("best.configuration.seq_length", "seq_length"),
    Row("best.configuration.sequence_parallel", "sequence_parallel",
        lambda plan, _: plan.best.configuration.sequence_parallel and plan.best.configuration.tp > 1,
        lambda _, r: bool(r("sequence_parallel"))),
    Row("best.configuration.instances", "num_distributed_optimizer_instances", neutral=1),
    Row("best.configuration.zero_stage", "use_distributed_optimizer, data_parallel_sharding_strategy",
        got=lambda _, r: _zero_stage(r)),
    Row("best.configuration.precision", "bf16, fp16, fp8, fp4", got=lambda _, r: options.precision(r.args) or "fp32"),
    Row("best.configuration.recompute", "recompute_granularity",
        got=lambda _, r: r("recompute_granularity") or "none"),
    Row("best.configuration.recompute_method", "recompute_method",
        lambda plan, _: plan.best.configuration.recompute_method or "uniform", applies=_full),
    Row("best.configuration.recompute_layers", "recompute_num_layers",
        lambda plan, _: (plan.best.configuration.recompute_layers or 1) * (hybrid.parts_of_layer(plan.model) or 1),
        applies=_full),
    # Megatron's default where nothing is named; the order has no meaning.
    Row("best.configuration.recompute_modules", "recompute_modules",
        lambda plan, _: sorted(plan.best.configuration.recompute_modules or ("core_attn",)),
        lambda _, r: sorted(r("recompute_modules") or ["core_attn"]),
        lambda plan: plan.best.configuration.recompute == "selective"),
    Row("best.configuration.overlap_grad_reduce", "overlap_grad_reduce",
        lambda plan, _: plan.best.configuration.dp * plan.best.configuration.cp > 1
        and (plan.best.configuration.overlap_grad_reduce or plan.best.configuration.zero_stage >= 2),
        lambda _, r: bool(r.arg("overlap_grad_reduce"))),
    _switched("best.configuration.overlap_tp_comm", "tp_comm_overlap"),
    Row("best.configuration.grad_bytes", "accumulate_allreduce_grads_in_fp32, megatron_fsdp_main_grads_dtype",
        got=lambda _, r: _grad_bytes(r)),
    _switched("best.configuration.overlap_moe_a2a", "overlap_moe_expert_parallel_comm", False),
    Row("best.configuration.optimizer_offload", "optimizer_offload_fraction",
        got=lambda _, r: r.arg("optimizer_offload_fraction") if r.arg("optimizer_cpu_offload") else 0.0),
    _switched("best.configuration.activation_offload", "fine_grained_activation_offloading", False),
    Row("best.configuration.moe_flex_backend",
        "moe_token_dispatcher_type, moe_flex_dispatcher_backend, moe_enable_deepep",
        got=lambda _, r: options.flex_backend(r.args) if r.arg("num_experts") else None),
    Row("best.configuration.cuda_graphs", "cuda_graph_impl, cuda_graph_modules, cuda_graph_scope, external_cuda_graph",
        got=lambda _, r: _graphed(r)),
    Row("best.configuration.expert_capacity", "moe_expert_rank_capacity_factor",
        got=lambda _, r: options.expert_capacity(r.args)),
    _switched("best.configuration.paged_stash", "moe_paged_stash", False),
    _switched("best.configuration.fp8_param_gather", "fp8_param_gather"),
    Row("best.configuration.fused_loss", "cross_entropy_loss_fusion, cross_entropy_fusion_impl",
        got=lambda _, r: options.fuses_loss(r.args)),
)  # fmt: skip


def compare(plan: Plan, result: Result, file: str) -> Iterator[Problem]:
    """Yield a problem for each of ROWS that applies to the plan and whose value Megatron resolved differently, and for
    another number of microbatches. Options without a row are not compared. file: the file that the problems name.
    """
    yield from differing(ROWS, plan, result, file, "plan")
    need = plan.best.configuration.num_microbatches
    if (got := result.num_microbatches) != need:
        what = "Megatron's calculator gives another number"
        yield Problem(what, file=file, field="batch.num_microbatches", got=repr(got), need=repr(need))


def stages(plan: Plan, result: Result, file: str) -> Iterator[Problem]:
    """Yield a problem for every stage on which Megatron will build other kinds of layers in its chunks than planned
    (embedding and head aside). If layers are lost or repeated, that is the only problem.
    """
    kinds = _counted(plan.model, plan.model.layer_kinds)
    layers = range(len(kinds))
    held = sorted(
        layer for stage in result.stages for first, count, _ in stage for layer in range(first, first + count)
    )
    if held != list(layers):
        lost, twice = sorted(set(layers) - set(held)), [layer for layer in layers if held.count(layer) > 1]
        got = f"{len(held)} layers" + _listed("without", lost) + _listed("twice", twice)
        what, need = "the stages do not hold every layer once", str(len(kinds))
        yield Problem(what, file=file, field="stages", got=got, need=need)
        return
    wanted = [
        [_counted(plan.model, [kind for kind in chunk if kind not in BUILT_AT_THE_ENDS]) for chunk in stage.chunks]
        for stage in plan.best.stages
    ]
    built = [
        [(*kinds[first : first + count], *["mtp"] * more) for first, count, more in stage] for stage in result.stages
    ]
    none: list[tuple[str, ...]] = []
    for place, (planned, got_here) in enumerate(zip_longest(wanted, built, fillvalue=none)):
        if planned != got_here:
            what = "Megatron builds other layers on this stage"
            yield Problem(what, file=file, field=f"stages.{place}", got=_counts(got_here), need=_counts(planned))


def _counted(model: ModelDescriptor, kinds: Sequence[str]) -> tuple[str, ...]:
    """Return the kind of each of Megatron's layers; a hybrid model's layer counts as several."""
    if not hybrid.hybrid(model):
        return tuple(kinds)
    parts = {kind.name: len(hybrid.symbols(kind)) for kind in model.kind_of_layer}
    return tuple(kind for kind in kinds for _ in range(parts.get(kind, 1)))


def _listed(word: str, layers: list[int]) -> str:
    """Return ", WORD" with up to eight layer numbers (from 0), or "" without any."""
    return f", {word} {', '.join(map(str, layers[:8]))}{', …' if len(layers) > 8 else ''}" if layers else ""


def _counts(stage: Sequence[Sequence[str]]) -> str:
    """Return the number of layers of each kind per chunk as text: 5 dense | 3 dense + 2 moe."""
    return " | ".join(
        " + ".join(f"{chunk.count(kind)} {kind}" for kind in dict.fromkeys(chunk)) or "nothing" for chunk in stage
    )
