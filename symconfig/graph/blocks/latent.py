"""Multi-head latent attention (DeepSeek-V2/V3): low-rank queries, keys and values with a decoupled rope part."""

from __future__ import annotations

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

Q_RANK, KV_RANK, KV_DOWN = "q_lora_rank", "kv_lora_rank", "kv_down_width"
QK_DIM, V_DIM, KV_UP = "qk_head_dim", "v_head_dim", "kv_up_head_width"
ROPE_DIM, NOPE_DIM = "qk_rope_head_dim", "qk_nope_head_dim"


def latent_attention(ctx: Context, x: Tensor, kind: LayerKind) -> Tensor:
    """o[B, S, D] from x[B, S, D]. The down projections have no dim that tp splits, so they stay with the sequence."""
    rows = (d.BATCH, d.SEQUENCE)
    latent = ctx.model.latent
    assert latent is not None
    q_source, q_inner, q_names = x, d.HIDDEN, ("q_proj",)
    if latent.q_lora_rank is not None:
        low, bias = Tensor("q_low", (*rows, Q_RANK)), ctx.model.qkv_bias
        linear(ctx, "q_down_proj", x, (d.HIDDEN,), (Q_RANK,), [Use(low)], bias, aliases=_Q_DOWN)
        q_source, q_inner, q_names = with_adapter(ctx, "q_down_proj", low, _Q_DOWN), Q_RANK, _Q_UP
    storage = "kv_down" if ctx.how.linear.views else ""
    kv_low = Tensor("kv_low", (*rows, KV_RANK), storage=storage)
    shared = Tensor("k_rope_shared", (*rows, ROPE_DIM), storage=storage)
    linear(
        ctx,
        "kv_down_proj",
        x,
        inner=(d.HIDDEN,),
        width=(KV_DOWN,),
        outputs=[Use(kv_low, ((KV_RANK, KV_DOWN),)), Use(shared, ((ROPE_DIM, KV_DOWN),))],
        bias=ctx.model.qkv_bias,
        aliases=_KV_DOWN,
    )
    kv_low, shared = (with_adapter(ctx, "kv_down_proj", part, _KV_DOWN) for part in (kv_low, shared))
    if not ctx.how.linear.norm_inside:
        q_source, kv_low = _low_norms(ctx, q_source, kv_low, "latent_norm")
    q, k, v = (
        Tensor("q", (*rows, d.HEADS, QK_DIM)),
        Tensor("k", (*rows, d.HEADS, QK_DIM)),
        Tensor("v", (*rows, d.HEADS, V_DIM)),
    )
    k_part = Tensor("k_nope", (*rows, d.HEADS, NOPE_DIM))
    with ctx.build.module("mla_up_proj"):
        if ctx.how.linear.norm_inside:
            q_source, kv_low = _low_norms(ctx, q_source, kv_low, IN_LINEAR)
        raw = Tensor("q_unrotated", q.dims)
        linear(ctx, "q_up_proj", q_source, (q_inner,), (d.HEADS, QK_DIM), [Use(raw)], aliases=q_names)
        raw = with_adapter(ctx, "q_up_proj", raw, q_names)
        linear(
            ctx,
            "kv_up_proj",
            kv_low,
            (KV_RANK,),
            (d.HEADS, KV_UP),
            [Use(k_part, ((NOPE_DIM, KV_UP),)), Use(v, ((V_DIM, KV_UP),))],
            aliases=_KV_UP,
        )
        k_part, v = (with_adapter(ctx, "kv_up_proj", part, _KV_UP) for part in (k_part, v))
        ctx.build.elementwise("rope_q", [raw], q, saves=rotation(ctx, "rope_q", ROPE_DIM), whole=(QK_DIM,), linear=True)
        ctx.build.elementwise(
            "rope_k",
            [k_part, shared],
            k,
            loops=(d.HEADS,),
            saves=rotation(ctx, "rope_k", ROPE_DIM),
            whole=(k_part.dims[-1], ROPE_DIM, QK_DIM),
            linear=True,
        )
    read = indexer.keys_read(ctx, kind, x, q_source)
    o = gated(ctx, x, copied(ctx, core(ctx, q, k, v, read)), None)
    out = Tensor("attention_out", x.dims)
    linear(
        ctx,
        "o_proj",
        o,
        inner=(d.HEADS, V_DIM),
        width=(d.HIDDEN,),
        outputs=[Use(out)],
        bias=ctx.model.attention_out_bias,
    )
    return out


def _low_norms(ctx: Context, q_source: Tensor, kv_low: Tensor, module: str) -> tuple[Tensor, Tensor]:
    """What the up projections read: low-rank queries, where there are any, and low-rank keys and values."""
    if Q_RANK in q_source.dims:
        q_source = norm(ctx, "q_low_norm", q_source, Q_RANK, module)
    return q_source, norm(ctx, "kv_low_norm", kv_low, KV_RANK, module)


def _sizes(model: ModelDescriptor) -> dict[str, float]:
    low = model.latent
    if low is None:
        return {}
    return {
        Q_RANK: low.q_lora_rank or 0,
        KV_RANK: low.kv_lora_rank,
        ROPE_DIM: low.qk_rope_head_dim,
        KV_DOWN: low.kv_lora_rank + low.qk_rope_head_dim,
        NOPE_DIM: low.qk_nope_head_dim,
        QK_DIM: low.qk_nope_head_dim + low.qk_rope_head_dim,
        V_DIM: low.v_head_dim,
        KV_UP: low.qk_nope_head_dim + low.v_head_dim,
        **indexer.sizes(model),
    }


PARTS = (Mixer(name=Attention.MLA, build=latent_attention, sizes=_sizes, norm_apart=True),)
