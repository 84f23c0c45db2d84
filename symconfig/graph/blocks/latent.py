"""Multi-head latent attention (DeepSeek-V2/V3): low-rank queries, keys and values with a decoupled rope part."""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace

from symconfig.descriptor.layers import Keys, LayerKind
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import Attention
from symconfig.graph import dims as d
from symconfig.graph.blocks.attention import apply_gate, contiguous, core, saved_angles
from symconfig.graph.blocks.common import IN_LINEAR, linear, norm, projected, to_stream
from symconfig.graph.blocks.sparse_attention import indexer_sizes, keys_read, with_loss
from symconfig.graph.builder import Context
from symconfig.graph.implementation import Choosing
from symconfig.graph.operator import Tensor, Use
from symconfig.graph.parts import Mixer

# Names of the projections in Transformers' classes, by which adapters target them.
_Q_DOWN, _Q_UP, _KV_DOWN, _KV_UP = ("q_a_proj",), ("q_b_proj",), ("kv_a_proj_with_mqa",), ("kv_b_proj",)

Sizes = dict[str, float]
ONE_HEAD = "latent_heads"  # of the latent keys and values that all heads of a query read


@dataclass(frozen=True, slots=True)
class Widths:
    """Hold the names of the dims of one latent attention."""

    heads: str
    q_rank: str
    kv_rank: str
    nope: str
    rope: str
    value: str
    kv_down: str
    qk: str
    kv_up: str
    q_both: str = "q_low_both_width"
    q_gate: str = "q_gate_head_width"

    @staticmethod
    def of(heads: str, before: str = "") -> Widths:
        """Return the dims' usual names. heads: the dim of heads, used as it is. before: a prefix of the others."""
        names = [
            "q_lora_rank",
            "kv_lora_rank",
            "qk_nope_head_dim",
            "qk_rope_head_dim",
            "v_head_dim",
            "kv_down_width",
            "qk_head_dim",
            "kv_up_head_width",
        ]
        return Widths(heads, *(before + name for name in names))

    def sizes(self, heads: float, q_rank: float, kv_rank: float, nope: float, rope: float, value: float) -> Sizes:
        """Return the size of every dim by name, including those that follow from these six."""
        follow = (kv_rank + rope, nope + rope, nope + value, 2 * q_rank, nope + rope + value)
        return dict(zip(astuple(self), (heads, q_rank, kv_rank, nope, rope, value, *follow), strict=True))


OWN = Widths.of(d.HEADS)


def latent_attention(ctx: Context, x: Tensor, kind: LayerKind) -> Tensor:
    """Append multi-head latent attention and return o[B, S, D] from x[B, S, D]."""
    latent = ctx.model.latent
    assert latent is not None
    return attend(ctx, x, kind, OWN, low_queries=latent.q_lora_rank is not None)


def attend(ctx: Context, x: Tensor, kind: LayerKind, w: Widths, low_queries: bool) -> Tensor:
    """Append latent attention over the dims `w` and return o[B, S, D] from x[B, S, D].

    The down projections have no dim that tp splits, so that they stay split by sequence. low_queries: queries are
    low-rank, too. An ABSORBED implementation with an indexer attends over latent keys instead.
    """
    rows = (d.BATCH, d.SEQUENCE)
    q_source, q_names = x, ("q_proj",)
    if low_queries:
        low, bias = Tensor("q_low", (*rows, w.q_rank)), ctx.model.qkv_bias
        q_source, q_names = projected(ctx, "q_down_proj", x, low, bias, aliases=_Q_DOWN), _Q_UP
    q_low, gate = q_source, None
    kv_low, shared = _low_keys(ctx, x, w)
    if kind.keys is not Keys.ALL and ctx.how.attention.choosing is Choosing.ABSORBED:
        o = _absorbed(ctx, x, kind, w, (q_source, kv_low, shared))
        return to_stream(ctx, "o_proj", o, ctx.model.attention_out_bias)
    if not ctx.how.linear.norm_inside:
        q_source, kv_low = _low_norms(ctx, q_source, kv_low, w, "latent_norm")
    # Megatron's core copies values out of what both are parts of (multi_latent_attention.py, value.contiguous()).
    storage = "kv_up" if ctx.how.linear.views and not ctx.how.linear.joined else ""
    q, k, v = (
        Tensor("q", (*rows, w.heads, w.qk)),
        Tensor("k", (*rows, w.heads, w.qk)),
        Tensor("v", (*rows, w.heads, w.value), storage=storage),
    )
    k_part = Tensor("k_nope", (*rows, w.heads, w.nope), storage=storage)
    with ctx.build.module("mla_up_proj"):
        if ctx.how.linear.norm_inside:
            q_source, kv_low = _low_norms(ctx, q_source, kv_low, w, IN_LINEAR)
        raw = Tensor("q_unrotated", q.dims, storage=_joint(ctx))
        if _queries_of_both(ctx):
            gate = _queries_and_gate(ctx, q_low, q_source, raw, w)
        else:
            raw = projected(ctx, "q_up_proj", q_source, raw, aliases=q_names)
        both = [Use(k_part).renamed((w.nope, w.kv_up)), Use(v).renamed((w.value, w.kv_up))]
        k_part, v = linear(ctx, "kv_up_proj", kv_low, (w.kv_rank,), (w.heads, w.kv_up), both, aliases=_KV_UP)
        ctx.build.elementwise("rope_q", [raw], q, saves=saved_angles(ctx, "rope_q", w.rope), whole=(w.qk,), linear=True)
        ctx.build.elementwise(
            "rope_k",
            [k_part, shared],
            k,
            loops=(w.heads,),
            saves=saved_angles(ctx, "rope_k", w.rope),
            whole=(k_part.dims[-1], w.rope, w.qk),
            linear=True,
        )
    read = keys_read(ctx, kind, x, q_source)
    o = contiguous(ctx, core(ctx, q, k, v, read, ctx.model.attention_sinks))
    return to_stream(ctx, "o_proj", apply_gate(ctx, x, o, gate), ctx.model.attention_out_bias)


def _absorbed(ctx: Context, x: Tensor, kind: LayerKind, w: Widths, low: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """Append attention over latent keys, which all heads share, and return its heads [B, S, A, value channels].

    The part of the up projection that makes keys is applied to queries, and the part that makes values to the result
    (Megatron-LM core_v0.19, absorbed_mla.py). low: (low-rank queries, latent keys and values, the keys' rotary
    part).
    """
    rows = (d.BATCH, d.SEQUENCE)
    q_source, kv_low = _low_norms(ctx, *low[:2], w, "latent_norm")
    with ctx.build.module("mla_up_proj"):
        plain, turned = (Tensor(f"q_{dim}", (*rows, w.heads, dim), storage="q_up") for dim in (w.nope, w.rope))
        parts = [Use(part).renamed((part.dims[-1], w.qk)) for part in (plain, turned)]
        linear(ctx, "q_up_proj", q_source, (w.q_rank,), (w.heads, w.qk), parts, aliases=_Q_UP)
        latent = Tensor("q_latent", (*rows, w.heads, w.kv_rank))
        moved = _up_part(ctx, "keys", plain, (w.heads, w.nope, w.kv_rank), latent)
        q, k = Tensor("q", (*rows, w.heads, w.kv_down)), Tensor("k", (*rows, ONE_HEAD, w.kv_down))
        whole, angles = (w.kv_rank, w.rope, w.kv_down), saved_angles(ctx, "rope_q", w.rope)
        ctx.build.elementwise("rope_q", [moved, turned], q, saves=angles, whole=whole, linear=True)
        angles = saved_angles(ctx, "rope_k", w.rope)
        ctx.build.elementwise(
            "rope_k", [kv_low, low[2]], k, saves=angles, loops=(d.GATHERED,), whole=whole, linear=True
        )
    read = keys_read(ctx, kind, x, q_source)
    o = core(ctx, q, k, k, read, channels=w.kv_rank)
    with ctx.build.module("core_attn"):
        o = with_loss(ctx, o, q, k, read)
        return _up_part(ctx, "values", o, (w.heads, w.kv_rank, w.value), Tensor("heads", (*rows, w.heads, w.value)))


def _up_part(ctx: Context, name: str, x: Tensor, dims: tuple[str, str, str], out: Tensor) -> Tensor:
    """Append the product of each head with its part of the KV up projection (`dims`: head, contracted, result); return
    `out`.
    """
    weight = ctx.weight(f"kv_up_proj.weight.{name}", *dims)
    ctx.build.matmul(f"kv_up_{name}", x, weight, contracted=dims[1:2], outputs=[Use(out)])
    return out


def _queries_of_both(ctx: Context) -> bool:
    return ctx.model.latent is not None and ctx.model.latent.queries_of_both


def _joint(ctx: Context) -> str:
    """Return the storage name of queries and gate if both are views of one projection's result; else ""."""
    return "q_and_gate" if ctx.how.linear.views and _queries_of_both(ctx) else ""


def _queries_and_gate(ctx: Context, low: Tensor, normed: Tensor, queries: Tensor, w: Widths) -> Tensor:
    """Append the projection of the low-rank queries joined with their norm (AXK2Attention) to `queries`, and return the
    gate.
    """
    joined = Tensor("q_low_both", (*low.dims[:-1], w.q_both))
    ctx.build.elementwise("join_low_queries", [normed, low], joined, together=[(w.q_both, w.q_rank)], linear=True)
    gate = Tensor("attention_gate", (*queries.dims[:-1], w.value), storage=_joint(ctx))
    uses = [Use(queries).renamed((w.qk, w.q_gate)), Use(gate).renamed((w.value, w.q_gate))]
    linear(ctx, "q_gate_proj", joined, (w.q_both,), (w.heads, w.q_gate), uses)
    return gate


def _low_keys(ctx: Context, x: Tensor, w: Widths) -> tuple[Tensor, Tensor]:
    """Append the KV down projection and return (low-rank keys and values, the keys' rotary part, which all heads
    share).
    """
    storage, rows = "kv_down" if ctx.how.linear.views else "", (d.BATCH, d.SEQUENCE)
    kv_low = Tensor("kv_low", (*rows, w.kv_rank), storage=storage)
    shared = Tensor("k_rope_shared", (*rows, w.rope), storage=storage)
    both, bias = [Use(part).renamed((part.dims[-1], w.kv_down)) for part in (kv_low, shared)], ctx.model.qkv_bias
    kv_low, shared = linear(ctx, "kv_down_proj", x, (d.HIDDEN,), (w.kv_down,), both, bias, aliases=_KV_DOWN)
    if ctx.model.latent is not None and ctx.model.latent.rope_key_norm:
        shared = norm(ctx, "k_rope_norm", shared, w.rope, "latent_norm")
    return kv_low, shared


def _low_norms(ctx: Context, q_source: Tensor, kv_low: Tensor, w: Widths, module: str) -> tuple[Tensor, Tensor]:
    """Return the norms of low-rank queries and of low-rank keys and values; queries that are not low-rank are
    unchanged.
    """
    if w.q_rank in q_source.dims:
        q_source = norm(ctx, "q_low_norm", q_source, w.q_rank, module)
    return q_source, norm(ctx, "kv_low_norm", kv_low, w.kv_rank, module)


def _sizes(model: ModelDescriptor) -> Sizes:
    low = model.latent
    if low is None:
        return {}
    own = (low.q_lora_rank or 0, low.kv_lora_rank, low.qk_nope_head_dim, low.qk_rope_head_dim, low.v_head_dim)
    return {**OWN.sizes(model.num_attention_heads, *own), ONE_HEAD: 1, **indexer_sizes(model)}


WINDOW_LATENT = "window_latent_attention"
WINDOW = Widths.of("window_heads", "window_")
WINDOW_SIZES = astuple(WINDOW)[:6]  # which a model states


def window_latent_attention(ctx: Context, x: Tensor, kind: LayerKind) -> Tensor:
    """Append latent attention within a window and return o[B, S, D] from x[B, S, D]; `kind` counts as one with a
    window.

    Some layers have it with heads, ranks and widths of their own (dots.3).

    It has the gate and the norms that the model's latent attention has, and no indexer.
    """
    return attend(ctx, x, replace(kind, window=True), WINDOW, low_queries=True)


PARTS = (
    Mixer(name=Attention.MLA, build=latent_attention, sizes=_sizes, norm_apart=True),
    Mixer(
        name=WINDOW_LATENT,
        build=window_latent_attention,
        sizes=lambda model: WINDOW.sizes(*(model.mixer(WINDOW_LATENT).sizes[name] for name in WINDOW_SIZES)),
        tensor_dims=(WINDOW.heads,),
        pieces=(WINDOW.heads,),
        norm_apart=True,
        needs=WINDOW_SIZES,
    ),
)
