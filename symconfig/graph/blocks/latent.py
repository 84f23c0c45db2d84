"""Multi-head latent attention (DeepSeek-V2/V3): low-rank queries, keys and values with a decoupled rope part."""

from __future__ import annotations

from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import Attention, Keys, LayerKind
from symconfig.graph import dims as d
from symconfig.graph.blocks.attention import apply_gate, core, saved_angles
from symconfig.graph.blocks.common import IN_LINEAR, linear, norm, projected, to_stream
from symconfig.graph.blocks.sparse_attention import indexer_sizes, keys_read, with_loss
from symconfig.graph.implementation import Choosing
from symconfig.graph.operator import Tensor, Use
from symconfig.graph.parts import Context, Mixer

# Names of the projections in Transformers' classes, by which adapters target them.
_Q_DOWN, _Q_UP, _KV_DOWN, _KV_UP = ("q_a_proj",), ("q_b_proj",), ("kv_a_proj_with_mqa",), ("kv_b_proj",)

Q_RANK, KV_RANK = "q_lora_rank", "kv_lora_rank"
NOPE, ROPE, VALUE = "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"
KV_DOWN, QK, KV_UP = "kv_down_width", "qk_head_dim", "kv_up_head_width"
ONE_HEAD = "latent_heads"  # of the latent keys and values that all heads of a query read


def latent_attention(ctx: Context, x: Tensor, kind: LayerKind) -> Tensor:
    """Append multi-head latent attention and return o[B, S, D] from x[B, S, D].

    Queries come from a low rank if the model has a rank for them, else from x. Low-rank queries and keys are normed,
    inside the recomputed module mla_up_proj if norms are part of linear layers. tp does not split the down projections,
    so that their results stay split by sequence. If the layer does not read all keys and the implementation's choice is
    ABSORBED, attention is over latent keys instead (`_absorbed`). Sinks and a gate are added if the model has them.
    """
    rows = (d.BATCH, d.SEQUENCE)
    q_source, q_names = x, ("q_proj",)
    if ctx.model.latent is not None and ctx.model.latent.q_lora_rank is not None:
        low, bias = Tensor("q_low", (*rows, Q_RANK)), ctx.model.qkv_bias
        q_source, q_names = projected(ctx, "q_down_proj", x, low, bias, aliases=_Q_DOWN), _Q_UP
    kv_low, shared = _kv_down(ctx, x)
    if kind.keys is not Keys.ALL and ctx.how.attention.choosing is Choosing.ABSORBED:
        o = _absorbed(ctx, x, kind, (q_source, kv_low, shared))
        return to_stream(ctx, "o_proj", apply_gate(ctx, x, o, None), ctx.model.attention_out_bias)
    if not ctx.how.linear.norm_inside:
        q_source, kv_low = _low_norms(ctx, q_source, kv_low, "latent_norm")
    # Megatron's core copies values out of what both are parts of (multi_latent_attention.py, value.contiguous()).
    storage = "kv_up" if ctx.how.linear.views and not ctx.how.linear.joined else ""
    q, k, v = (
        Tensor("q", (*rows, d.HEADS, QK)),
        Tensor("k", (*rows, d.HEADS, QK)),
        Tensor("v", (*rows, d.HEADS, VALUE), storage=storage),
    )
    k_part = Tensor("k_nope", (*rows, d.HEADS, NOPE), storage=storage)
    with ctx.build.within("mla_up_proj"):
        if ctx.how.linear.norm_inside:
            q_source, kv_low = _low_norms(ctx, q_source, kv_low, IN_LINEAR)
        raw = projected(ctx, "q_up_proj", q_source, Tensor("q_unrotated", q.dims), aliases=q_names)
        both = [Use(k_part).renamed((NOPE, KV_UP)), Use(v).renamed((VALUE, KV_UP))]
        k_part, v = linear(ctx, "kv_up_proj", kv_low, (KV_RANK,), (d.HEADS, KV_UP), both, aliases=_KV_UP)
        ctx.build.elementwise("rope_q", [raw], q, saves=saved_angles(ctx, "rope_q", ROPE), whole=(QK,), linear=True)
        ctx.build.elementwise(
            "rope_k",
            [k_part, shared],
            k,
            loops=(d.HEADS,),
            saves=saved_angles(ctx, "rope_k", ROPE),
            whole=(k_part.dims[-1], ROPE, QK),
            linear=True,
        )
    read = keys_read(ctx, kind, x, q_source)
    o = core(ctx, q, k, v, read, ctx.model.attention_sinks)
    return to_stream(ctx, "o_proj", apply_gate(ctx, x, o, None), ctx.model.attention_out_bias)


def _absorbed(ctx: Context, x: Tensor, kind: LayerKind, low: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """Append attention over latent keys, which all heads share, and return its heads [B, S, A, value channels]. The
    part of the up projection that makes keys is applied to queries, the part that makes values to the result
    (Megatron-LM core_v0.19, absorbed_mla.py). The indexer that chooses keys, and its loss if it is trained, are
    appended, too. low: (low-rank queries, latent keys and values, the keys' rotary part), not yet normed.
    """
    rows = (d.BATCH, d.SEQUENCE)
    q_source, kv_low = _low_norms(ctx, *low[:2], "latent_norm")
    with ctx.build.within("mla_up_proj"):
        plain, turned = (Tensor(f"q_{dim}", (*rows, d.HEADS, dim), storage="q_up") for dim in (NOPE, ROPE))
        parts = [Use(part).renamed((part.dims[-1], QK)) for part in (plain, turned)]
        linear(ctx, "q_up_proj", q_source, (Q_RANK,), (d.HEADS, QK), parts, aliases=_Q_UP)
        latent = Tensor("q_latent", (*rows, d.HEADS, KV_RANK))
        moved = _up_part(ctx, "keys", plain, (d.HEADS, NOPE, KV_RANK), latent)
        q, k = Tensor("q", (*rows, d.HEADS, KV_DOWN)), Tensor("k", (*rows, ONE_HEAD, KV_DOWN))
        whole, angles = (KV_RANK, ROPE, KV_DOWN), saved_angles(ctx, "rope_q", ROPE)
        ctx.build.elementwise("rope_q", [moved, turned], q, saves=angles, whole=whole, linear=True)
        angles = saved_angles(ctx, "rope_k", ROPE)
        ctx.build.elementwise(
            "rope_k", [kv_low, low[2]], k, saves=angles, loops=(d.GATHERED,), whole=whole, linear=True
        )
    read = keys_read(ctx, kind, x, q_source)
    o = core(ctx, q, k, k, read, ctx.model.attention_sinks, channels=KV_RANK)
    with ctx.build.within("core_attn"):
        o = with_loss(ctx, o, q, k, read)
        return _up_part(ctx, "values", o, (d.HEADS, KV_RANK, VALUE), Tensor("heads", (*rows, d.HEADS, VALUE)))


def _up_part(ctx: Context, name: str, x: Tensor, dims: tuple[str, str, str], out: Tensor) -> Tensor:
    """Append the product of x with one part of the KV up projection, one matrix per head, and return `out`. name:
    "keys" or "values", in the weight's name. dims: of the weight: head, contracted, result.
    """
    weight = ctx.weight(f"kv_up_proj.weight.{name}", *dims)
    ctx.build.matmul(f"kv_up_{name}", x, weight, contracted=dims[1:2], outputs=[Use(out)])
    return out


def _kv_down(ctx: Context, x: Tensor) -> tuple[Tensor, Tensor]:
    """Append x's KV down projection, one product with two outputs, and return (low-rank keys and values [B, S, rank],
    keys' rotary part [B, S, rope], shared by all heads); views of one tensor if the implementation has `views`.
    """
    storage, rows = "kv_down" if ctx.how.linear.views else "", (d.BATCH, d.SEQUENCE)
    kv_low = Tensor("kv_low", (*rows, KV_RANK), storage=storage)
    shared = Tensor("k_rope_shared", (*rows, ROPE), storage=storage)
    both, bias = [Use(part).renamed((part.dims[-1], KV_DOWN)) for part in (kv_low, shared)], ctx.model.qkv_bias
    kv_low, shared = linear(ctx, "kv_down_proj", x, (d.HIDDEN,), (KV_DOWN,), both, bias, aliases=_KV_DOWN)
    return kv_low, shared


def _low_norms(ctx: Context, q_source: Tensor, kv_low: Tensor, module: str) -> tuple[Tensor, Tensor]:
    """Return (q_source, kv_low), both normed in the recompute module `module`; q_source is returned as given if it has
    no low-rank dim.
    """
    if Q_RANK in q_source.dims:
        q_source = norm(ctx, "q_low_norm", q_source, Q_RANK, module)
    return q_source, norm(ctx, "kv_low_norm", kv_low, KV_RANK, module)


def _sizes(model: ModelDescriptor) -> dict[str, float]:
    """Return the sizes of latent attention's dims, with those of the indexer; empty for a model without latent
    attention. A missing rank of queries is 0.
    """
    if (low := model.latent) is None:
        return {}
    nope, rope, value = low.qk_nope_head_dim, low.qk_rope_head_dim, low.v_head_dim
    return {
        Q_RANK: low.q_lora_rank or 0,
        KV_RANK: low.kv_lora_rank,
        NOPE: nope,
        ROPE: rope,
        VALUE: value,
        KV_DOWN: low.kv_lora_rank + rope,
        QK: nope + rope,
        KV_UP: nope + value,
        ONE_HEAD: 1,
        **indexer_sizes(model),
    }


PARTS = (Mixer(name=Attention.MLA, build=latent_attention, sizes=_sizes, norm_apart=True),)
