"""Multi-head latent attention (DeepSeek-V2/V3): low-rank queries, keys and values with a decoupled rope part."""

from __future__ import annotations

from dataclasses import dataclass

from symconfig.descriptor.model import Attention, LayerKind, ModelDescriptor
from symconfig.graph import dims as d
from symconfig.graph.blocks import indexer
from symconfig.graph.blocks.attention import copied, core, gated, rotation
from symconfig.graph.blocks.common import IN_LINEAR, linear, norm, with_adapter
from symconfig.graph.blocks.context import Context
from symconfig.graph.operator import Tensor, Use
from symconfig.graph.parts import Mixer

# Names of the projections in Transformers' classes, by which adapters target them.
_Q_DOWN, _Q_UP, _KV_DOWN, _KV_UP = ("q_a_proj",), ("q_b_proj",), ("kv_a_proj_with_mqa",), ("kv_b_proj",)


@dataclass(frozen=True, slots=True)
class Widths:
    """The dims of one latent attention."""

    heads: str
    q_rank: str
    kv_rank: str
    kv_down: str
    qk: str
    value: str
    kv_up: str
    rope: str
    nope: str
    q_both: str = "q_low_both_width"
    q_gate: str = "q_gate_head_width"


OWN = Widths(
    heads=d.HEADS,
    q_rank="q_lora_rank",
    kv_rank="kv_lora_rank",
    kv_down="kv_down_width",
    qk="qk_head_dim",
    value="v_head_dim",
    kv_up="kv_up_head_width",
    rope="qk_rope_head_dim",
    nope="qk_nope_head_dim",
)


def latent_attention(ctx: Context, x: Tensor, kind: LayerKind) -> Tensor:
    """o[B, S, D] from x[B, S, D]."""
    latent = ctx.model.latent
    assert latent is not None
    return attend(ctx, x, kind, OWN, low_queries=latent.q_lora_rank is not None)


def attend(ctx: Context, x: Tensor, kind: LayerKind, w: Widths, low_queries: bool) -> Tensor:
    """o[B, S, D] from x[B, S, D]. The down projections have no dim that tp splits, so they stay with the sequence."""
    rows = (d.BATCH, d.SEQUENCE)
    q_source, q_inner, q_names = x, d.HIDDEN, ("q_proj",)
    if low_queries:
        low, bias = Tensor("q_low", (*rows, w.q_rank)), ctx.model.qkv_bias
        linear(ctx, "q_down_proj", x, (d.HIDDEN,), (w.q_rank,), [Use(low)], bias, aliases=_Q_DOWN)
        q_source, q_inner, q_names = with_adapter(ctx, "q_down_proj", low, _Q_DOWN), w.q_rank, _Q_UP
    q_low, gate = q_source, None
    kv_low, shared = _low_keys(ctx, x, w)
    if not ctx.how.linear.norm_inside:
        q_source, kv_low = _low_norms(ctx, q_source, kv_low, w, "latent_norm")
    q, k, v = (
        Tensor("q", (*rows, w.heads, w.qk)),
        Tensor("k", (*rows, w.heads, w.qk)),
        Tensor("v", (*rows, w.heads, w.value)),
    )
    k_part = Tensor("k_nope", (*rows, w.heads, w.nope))
    with ctx.build.module("mla_up_proj"):
        if ctx.how.linear.norm_inside:
            q_source, kv_low = _low_norms(ctx, q_source, kv_low, w, IN_LINEAR)
        raw = Tensor("q_unrotated", q.dims, storage=_joint(ctx))
        if _of_both(ctx):
            gate = _queries_and_gate(ctx, q_low, q_source, raw, w)
        else:
            linear(ctx, "q_up_proj", q_source, (q_inner,), (w.heads, w.qk), [Use(raw)], aliases=q_names)
            raw = with_adapter(ctx, "q_up_proj", raw, q_names)
        linear(
            ctx,
            "kv_up_proj",
            kv_low,
            (w.kv_rank,),
            (w.heads, w.kv_up),
            [Use(k_part, ((w.nope, w.kv_up),)), Use(v, ((w.value, w.kv_up),))],
            aliases=_KV_UP,
        )
        k_part, v = (with_adapter(ctx, "kv_up_proj", part, _KV_UP) for part in (k_part, v))
        ctx.build.elementwise("rope_q", [raw], q, saves=rotation(ctx, "rope_q", w.rope), whole=(w.qk,), linear=True)
        ctx.build.elementwise(
            "rope_k",
            [k_part, shared],
            k,
            loops=(w.heads,),
            saves=rotation(ctx, "rope_k", w.rope),
            whole=(k_part.dims[-1], w.rope, w.qk),
            linear=True,
        )
    read = indexer.keys_read(ctx, kind, x, q_source)
    o = gated(ctx, x, copied(ctx, core(ctx, q, k, v, read, ctx.model.attention_sinks)), gate)
    out = Tensor("attention_out", x.dims)
    bias = ctx.model.attention_out_bias
    linear(ctx, "o_proj", o, inner=(w.heads, w.value), width=(d.HIDDEN,), outputs=[Use(out)], bias=bias)
    return out


def _of_both(ctx: Context) -> bool:
    return ctx.model.latent is not None and ctx.model.latent.queries_of_both


def _joint(ctx: Context) -> str:
    """The storage of queries and gates where both are views of one projection's result."""
    return "q_and_gate" if ctx.how.linear.views and _of_both(ctx) else ""


def _queries_and_gate(ctx: Context, low: Tensor, normed: Tensor, queries: Tensor, w: Widths) -> Tensor:
    """One projection of the low-rank queries and their norm, joined, to queries and a gate (AXK2Attention)."""
    joined = Tensor("q_low_both", (*low.dims[:-1], w.q_both))
    ctx.build.elementwise("join_low_queries", [normed, low], joined, together=[(w.q_both, w.q_rank)], linear=True)
    gate = Tensor("attention_gate", (*queries.dims[:-1], w.value), storage=_joint(ctx))
    uses = [Use(queries, ((w.qk, w.q_gate),)), Use(gate, ((w.value, w.q_gate),))]
    linear(ctx, "q_gate_proj", joined, (w.q_both,), (w.heads, w.q_gate), uses)
    return gate


def _low_keys(ctx: Context, x: Tensor, w: Widths) -> tuple[Tensor, Tensor]:
    """Low-rank keys and values, and the part of keys that rope turns, which all heads share."""
    storage, rows = "kv_down" if ctx.how.linear.views else "", (d.BATCH, d.SEQUENCE)
    kv_low = Tensor("kv_low", (*rows, w.kv_rank), storage=storage)
    shared = Tensor("k_rope_shared", (*rows, w.rope), storage=storage)
    linear(
        ctx,
        "kv_down_proj",
        x,
        inner=(d.HIDDEN,),
        width=(w.kv_down,),
        outputs=[Use(kv_low, ((w.kv_rank, w.kv_down),)), Use(shared, ((w.rope, w.kv_down),))],
        bias=ctx.model.qkv_bias,
        aliases=_KV_DOWN,
    )
    kv_low, shared = (with_adapter(ctx, "kv_down_proj", part, _KV_DOWN) for part in (kv_low, shared))
    if ctx.model.latent is not None and ctx.model.latent.rope_key_norm:
        shared = norm(ctx, "k_rope_norm", shared, w.rope, "latent_norm")
    return kv_low, shared


def _low_norms(ctx: Context, q_source: Tensor, kv_low: Tensor, w: Widths, module: str) -> tuple[Tensor, Tensor]:
    """What the up projections read: low-rank queries, where there are any, and low-rank keys and values."""
    if w.q_rank in q_source.dims:
        q_source = norm(ctx, "q_low_norm", q_source, w.q_rank, module)
    return q_source, norm(ctx, "kv_low_norm", kv_low, w.kv_rank, module)


def widths(w: Widths, *, heads: int, q_rank: int, kv_rank: int, nope: int, rope: int, value: int) -> dict[str, float]:
    """Return the sizes of the dims of one latent attention."""
    return {
        w.heads: heads,
        w.q_rank: q_rank,
        w.kv_rank: kv_rank,
        w.rope: rope,
        w.kv_down: kv_rank + rope,
        w.nope: nope,
        w.qk: nope + rope,
        w.value: value,
        w.kv_up: nope + value,
        w.q_both: 2 * q_rank,
        w.q_gate: nope + rope + value,
    }


def _sizes(model: ModelDescriptor) -> dict[str, float]:
    low = model.latent
    if low is None:
        return {}
    own = widths(
        OWN,
        heads=model.num_attention_heads,
        q_rank=low.q_lora_rank or 0,
        kv_rank=low.kv_lora_rank,
        nope=low.qk_nope_head_dim,
        rope=low.qk_rope_head_dim,
        value=low.v_head_dim,
    )
    return {**own, **indexer.sizes(model)}


PARTS = (Mixer(name=Attention.MLA, build=latent_attention, sizes=_sizes, norm_apart=True),)
