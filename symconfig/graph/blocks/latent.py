"""Multi-head latent attention (DeepSeek-V2/V3): low-rank queries, keys and values with a decoupled rope part."""

from __future__ import annotations

from symconfig.descriptor.layers import Keys
from symconfig.descriptor.model import Attention, LayerKind, ModelDescriptor
from symconfig.graph import dims as d
from symconfig.graph.blocks import indexer
from symconfig.graph.blocks.attention import copied, core, gated, rotation
from symconfig.graph.blocks.common import linear, with_adapter
from symconfig.graph.blocks.context import Context
from symconfig.graph.blocks.norms import IN_LINEAR, norm
from symconfig.graph.implementation import Choosing
from symconfig.graph.operator import Tensor, Use
from symconfig.graph.parts import Mixer

# Names of the projections in Transformers' classes, by which adapters target them.
_Q_DOWN, _Q_UP, _KV_DOWN, _KV_UP = ("q_a_proj",), ("q_b_proj",), ("kv_a_proj_with_mqa",), ("kv_b_proj",)

Q_RANK, KV_RANK, KV_DOWN = "q_lora_rank", "kv_lora_rank", "kv_down_width"
QK_DIM, V_DIM, KV_UP = "qk_head_dim", "v_head_dim", "kv_up_head_width"
ROPE_DIM, NOPE_DIM = "qk_rope_head_dim", "qk_nope_head_dim"
ONE_HEAD = "latent_heads"  # of the latent keys and values that all heads of a query read


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
    if kind.keys is not Keys.ALL and ctx.how.attention.choosing is Choosing.ABSORBED:
        return _projected(ctx, _absorbed(ctx, x, kind, (q_source, kv_low, shared)))
    if not ctx.how.linear.norm_inside:
        q_source, kv_low = _low_norms(ctx, q_source, kv_low, "latent_norm")
    q, k, v = (
        Tensor("q", (*rows, d.HEADS, QK_DIM)),
        Tensor("k", (*rows, d.HEADS, QK_DIM)),
        Tensor("v", (*rows, d.HEADS, V_DIM), storage="kv_up" if ctx.how.linear.views else ""),
    )
    storage = "kv_up" if ctx.how.linear.views else ""
    k_part = Tensor("k_nope", (*rows, d.HEADS, NOPE_DIM), storage=storage)
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
    return _projected(ctx, gated(ctx, x, copied(ctx, core(ctx, q, k, v, read)), None))


def _projected(ctx: Context, o: Tensor) -> Tensor:
    """Bring heads back to the stream."""
    out, bias = Tensor("attention_out", (d.BATCH, d.SEQUENCE, d.HIDDEN)), ctx.model.attention_out_bias
    linear(ctx, "o_proj", o, inner=(d.HEADS, V_DIM), width=(d.HIDDEN,), outputs=[Use(out)], bias=bias)
    return out


def _absorbed(ctx: Context, x: Tensor, kind: LayerKind, low: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """Return heads of attention over latent keys, which all heads share: the part of the up projection that makes keys
    is applied to queries, and the part that makes values to what attention gives (Megatron-LM core_v0.19,
    absorbed_mla.py). low: queries, latent keys and values, and the keys' part that is turned.
    """
    rows = (d.BATCH, d.SEQUENCE)
    q_source, kv_low = _low_norms(ctx, *low[:2], "latent_norm")
    with ctx.build.module("mla_up_proj"):
        plain, turned = (Tensor(f"q_{dim}", (*rows, d.HEADS, dim), storage="q_up") for dim in (NOPE_DIM, ROPE_DIM))
        parts = [Use(part, ((part.dims[-1], QK_DIM),)) for part in (plain, turned)]
        linear(ctx, "q_up_proj", q_source, (Q_RANK,), (d.HEADS, QK_DIM), parts, aliases=_Q_UP)
        latent = Tensor("q_latent", (*rows, d.HEADS, KV_RANK))
        moved = _up_part(ctx, "keys", plain, (d.HEADS, NOPE_DIM, KV_RANK), latent)
        q, k = Tensor("q", (*rows, d.HEADS, KV_DOWN)), Tensor("k", (*rows, ONE_HEAD, KV_DOWN))
        whole, angles = (KV_RANK, ROPE_DIM, KV_DOWN), rotation(ctx, "rope_q", ROPE_DIM)
        ctx.build.elementwise("rope_q", [moved, turned], q, saves=angles, whole=whole, linear=True)
        angles = rotation(ctx, "rope_k", ROPE_DIM)
        ctx.build.elementwise(
            "rope_k", [kv_low, low[2]], k, saves=angles, loops=(d.GATHERED,), whole=whole, linear=True
        )
    read = indexer.keys_read(ctx, kind, x, q_source)
    o = core(ctx, q, k, k, read, channels=KV_RANK)
    with ctx.build.module("core_attn"):
        o = indexer.with_loss(ctx, o, q, k, read)
        return _up_part(ctx, "values", o, (d.HEADS, KV_RANK, V_DIM), Tensor("heads", (*rows, d.HEADS, V_DIM)))


def _up_part(ctx: Context, name: str, x: Tensor, dims: tuple[str, str, str], out: Tensor) -> Tensor:
    """Multiply each head with its part of the up projection, whose parameter is of both parts."""
    weight = ctx.weight(f"kv_up_proj.weight.{name}", *dims)
    ctx.build.matmul(f"kv_up_{name}", x, weight, contracted=dims[1:2], outputs=[Use(out)])
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
        ONE_HEAD: 1,
        **indexer.sizes(model),
    }


PARTS = (Mixer(name=Attention.MLA, build=latent_attention, sizes=_sizes, norm_apart=True),)
