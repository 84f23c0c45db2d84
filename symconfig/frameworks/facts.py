"""What constraints ask about: the facts that all points of a search share, and those of a point.

Every fact may be UNKNOWN, and those that are not given are.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Self

from symconfig.descriptor.model import Attention, ModelDescriptor
from symconfig.frameworks.megatron import adapters
from symconfig.frameworks.unknown import UNKNOWN
from symconfig.plans.plan import Candidate

# Transformer Engine 2.x, pytorch/attention/dot_product_attention/utils.py, get_attention_backend: flash and fused
# attention are disabled below compute capability 8.0, and unfused attention under context parallelism.
NO_FLASH = ("volta",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    """The model, by the names of ModelDescriptor (sizes that it has not are 0), and the kernels that there are.

    sliding_window: tokens; 0: none. column_rank: of adapters beside column-parallel layers, where tp splits the rank.
    flash: whether flash attention runs.
    """

    model_type: Any = UNKNOWN
    hidden_size: Any = UNKNOWN
    intermediate_size: Any = UNKNOWN
    num_hidden_layers: Any = UNKNOWN
    num_attention_heads: Any = UNKNOWN
    num_key_value_heads: Any = UNKNOWN
    latent: Any = UNKNOWN
    attention_sinks: Any = UNKNOWN
    sliding_window: Any = UNKNOWN
    num_nextn_predict_layers: Any = UNKNOWN
    num_experts: Any = UNKNOWN
    moe_intermediate_size: Any = UNKNOWN
    shared_expert_intermediate_size: Any = UNKNOWN
    expert_bias: Any = UNKNOWN
    adapted: Any = UNKNOWN
    column_rank: Any = UNKNOWN
    flash: Any = UNKNOWN

    @classmethod
    def of(cls, model: ModelDescriptor, flash: Any = UNKNOWN) -> Self:
        """Return a model's facts."""
        experts = model.experts
        return cls(
            model_type=model.model_type,
            hidden_size=model.hidden_size,
            intermediate_size=model.intermediate_size,
            num_hidden_layers=model.num_hidden_layers,
            num_attention_heads=model.num_attention_heads,
            num_key_value_heads=model.num_key_value_heads,
            latent=model.attention is Attention.MLA,
            attention_sinks=model.attention_sinks,
            sliding_window=(model.sliding_window or 0) if any(model.sliding_layers) else 0,
            num_nextn_predict_layers=model.num_nextn_predict_layers,
            num_experts=experts.num_experts if experts else 0,
            moe_intermediate_size=experts.moe_intermediate_size if experts else 0,
            shared_expert_intermediate_size=experts.shared_expert_intermediate_size if experts else 0,
            expert_bias=experts is not None and experts.expert_bias,
            adapted=model.adapter is not None,
            column_rank=_column_rank(model),
            flash=flash,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Degrees, batch and choices of one plan, or arrays of them.

    group: micro-batches of an interleaved schedule's round. moe_overlap: the experts' all-to-all runs beside another
    micro-batch. modules: those that selective recompute runs again.
    """

    gpus: Any = UNKNOWN
    tp: Any = UNKNOWN
    pp: Any = UNKNOWN
    vpp: Any = UNKNOWN
    cp: Any = UNKNOWN
    ep: Any = UNKNOWN
    etp: Any = UNKNOWN
    dp: Any = UNKNOWN
    micro: Any = UNKNOWN
    global_batch: Any = UNKNOWN
    num_microbatches: Any = UNKNOWN
    group: Any = UNKNOWN
    seq_length: Any = UNKNOWN
    sequence_parallel: Any = UNKNOWN
    ring: Any = UNKNOWN
    all_to_all: Any = UNKNOWN
    cp_comm: Any = UNKNOWN
    precision: Any = UNKNOWN
    zero: Any = UNKNOWN
    grad_bytes: Any = UNKNOWN
    optimizer_offload: Any = UNKNOWN
    param_offload: Any = UNKNOWN
    activation_offload: Any = UNKNOWN
    recompute: Any = UNKNOWN
    recompute_method: Any = UNKNOWN
    recompute_layers: Any = UNKNOWN
    modules: Any = UNKNOWN
    moe_overlap: Any = UNKNOWN
    moe_dispatcher: Any = UNKNOWN

    @classmethod
    def of(cls, candidate: Candidate) -> Self:
        """Return a candidate's facts."""
        parallel, batch, options = candidate.parallel, candidate.batch, candidate.options
        return cls(
            gpus=parallel.world_size,
            tp=parallel.tp,
            pp=parallel.pp,
            vpp=parallel.vpp,
            cp=parallel.cp,
            ep=parallel.ep,
            etp=parallel.etp,
            dp=parallel.dp,
            micro=batch.micro,
            global_batch=batch.global_,
            num_microbatches=batch.num_microbatches,
            group=options.microbatch_group_size or parallel.pp,
            seq_length=batch.seq_length,
            sequence_parallel=options.sequence_parallel,
            ring=options.cp_comm in (None, "p2p"),
            all_to_all=options.cp_comm == "a2a",
            cp_comm=options.cp_comm,
            precision=options.precision,
            zero=options.zero_stage,
            grad_bytes=options.grad_bytes,
            optimizer_offload=options.optimizer_offload,
            param_offload=options.param_offload,
            activation_offload=options.activation_offload,
            recompute=options.recompute.granularity,
            recompute_method=options.recompute.method or "",
            recompute_layers=options.recompute.num_layers or 1,
            modules=options.recompute.modules,
            moe_overlap=options.overlap.moe_a2a,
            moe_dispatcher=options.moe_dispatcher or "",
        )


def flash(architecture: str, attention: str | None, engine: bool) -> bool:
    """Return whether flash attention runs. attention: the kernel that the job asks for. engine: Transformer Engine's,
    which an old GPU keeps from it; Transformers' own is another matter."""
    return attention != "unfused" and not (engine and architecture in NO_FLASH)


def _column_rank(model: ModelDescriptor) -> int:
    found = adapters.targets(model)
    return 0 if found is None or model.adapter is None or not found.by_columns else model.adapter.r


FIXED = tuple(one.name for one in fields(Fixed))
POINT = tuple(one.name for one in fields(Point))
