"""Grouped-query attention (multi-head and multi-query included): projections, norms, rotation, gate."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from symconfig.descriptor.layers import LayerKind, Pairs
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import Attention, Position
from symconfig.graph import dims as d
from symconfig.graph.attended import FULL, WINDOW
from symconfig.graph.blocks.attention_core import copied, core, repeated
from symconfig.graph.blocks.common import beside_fused, linear, projected
from symconfig.graph.blocks.context import Context
from symconfig.graph.blocks.convolved_attention import convolved, key_scale
from symconfig.graph.blocks.hypersphere import scaled
from symconfig.graph.blocks.indexer import Read
from symconfig.graph.blocks.norms import norm
from symconfig.graph.implementation import Angles, RotationKernel
from symconfig.graph.operator import Element, Tensor, Use
from symconfig.graph.parts import Mixer


def attention(ctx: Context, x: Tensor, kind: LayerKind) -> Tensor:
    """Return o[B, S, D] from x[B, S, D]."""
    if kind.pairs is Pairs.BORROWED:
        return _with_borrowed(ctx, x, kind)
    (q, k, v), gate = projections(ctx, x)
    if ctx.model.qk_convolutions is not None:
        q, k, v = convolved(ctx, q, k, v)
    if repeated(ctx, k):
        q = ctx.build.elementwise("copy_queries", [q], Tensor("q_copied", q.dims), linear=True)
    if ctx.model.qk_norm and (kind.rope or ctx.model.qk_norm_of != "unit"):
        q, k = _head_norm(ctx, "q_norm", q), _head_norm(ctx, "k_norm", k)
    if ctx.model.qk_convolutions is not None:
        k = key_scale(ctx, k)
    if ctx.model.v_norm:
        v = norm(ctx, "v_norm", v, v.dims[-1], "qk_norm", weight=())
    if ctx.model.position is Position.ROPE and kind.rope:
        q, k = turned(ctx, q, k)
    q = scaled(ctx, q, *q.dims[-2:])
    if kind.pairs is Pairs.LENT:
        k, v = lent(ctx, k, v, kind)
    return result(ctx, x, core(ctx, q, k, v, Read(WINDOW if kind.window else FULL), ctx.model.attention_sinks), gate)


def _with_borrowed(ctx: Context, x: Tensor, kind: LayerKind) -> Tensor:
    """Return o[B, S, D] from queries of this layer and keys and values of an earlier one."""
    q = Tensor("q", (*x.dims[:-1], d.HEADS, d.HEAD_DIM))
    q = projected(ctx, "q_proj", x, q, ctx.model.qkv_bias)
    if ctx.model.qk_norm:
        q = _head_norm(ctx, "q_norm", q)
    if ctx.model.position is Position.ROPE and kind.rope:
        q = _turned(ctx, "q", q)
    k, v = borrowed(ctx, (*x.dims[:-1], d.KV_HEADS), (d.HEAD_DIM, value_dim(ctx.model)), kind)
    return result(ctx, x, core(ctx, q, k, v, Read(WINDOW if kind.window else FULL), ctx.model.attention_sinks), None)


def lent(ctx: Context, k: Tensor, v: Tensor, kind: LayerKind) -> tuple[Tensor, Tensor]:
    """Return keys and values under the names by which later layers read them."""
    names = borrowed_names(kind)
    theirs = [Tensor(name, one.dims, storage=one.name) for name, one in zip(names, (k, v), strict=True)]
    for one, other in zip((k, v), theirs, strict=True):
        ctx.build.view(f"lend_{other.name}", [one], other)
    return theirs[0], theirs[1]


def borrowed(ctx: Context, rows: Sequence[str], widths: tuple[str, str], kind: LayerKind) -> tuple[Tensor, Tensor]:
    """Return keys and values of the last layer of its kind that has some, which holds them."""
    k, v = (Tensor(name, (*rows, width)) for name, width in zip(borrowed_names(kind), widths, strict=True))
    return ctx.build.from_elsewhere(k), ctx.build.from_elsewhere(v)


def borrowed_names(kind: LayerKind) -> tuple[str, str]:
    """Return what keys and values are called that layers of a kind share."""
    own = "window" if kind.window else kind.mixer
    return f"lent_{own}_k", f"lent_{own}_v"


def result(ctx: Context, x: Tensor, o: Tensor, gate: Tensor | None) -> Tensor:
    """Return the heads, gated and projected."""
    o, out = gated(ctx, x, copied(ctx, o), gate, ctx.model.qkv_bias), Tensor("attention_out", x.dims)
    if ctx.model.inner_norm:
        weight = o.dims[-2:] if ctx.model.norm_weight else ()
        o = norm(ctx, "attention_inner_norm", o, module="inner_norm", weight=weight, over=o.dims[-2:])
    return projected(ctx, "o_proj", o, out, ctx.model.attention_out_bias, over=2, aliases=("c_proj",))


def normed_and_turned(ctx: Context, q: Tensor, k: Tensor, kind: LayerKind) -> tuple[Tensor, Tensor]:
    """Return queries and keys after the model's norms of heads and its rotation."""
    if ctx.model.qk_norm:
        q, k = _head_norm(ctx, "q_norm", q), _head_norm(ctx, "k_norm", k)
    return turned(ctx, q, k) if ctx.model.position is Position.ROPE and kind.rope else (q, k)


def turned(ctx: Context, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Return queries and keys after their rotation."""
    return _turned(ctx, "q", q), _turned(ctx, "k", k)


def _turned(ctx: Context, name: str, given: Tensor) -> Tensor:
    return rotated(ctx, f"rope_{name}", given, f"{name}_rotated", times=_turning(ctx))


def rotated(
    ctx: Context,
    name: str,
    given: Tensor,
    to: str,
    channels: str = d.ROTARY,
    times: tuple[int | Fraction, int | Fraction] = (1, 1),
) -> Tensor:
    """Return a query or key turned by its position. channels: that have angles. times: of one kernel's traffic."""
    kept, out, whole = rotation(ctx, name, channels), Tensor(to, given.dims), given.dims[-1:]
    return ctx.build.elementwise(name, [given], out, traffic=times, saves=kept, whole=whole, linear=True)


def _head_norm(ctx: Context, name: str, x: Tensor) -> Tensor:
    """Norm x[B, S, A, C] by head, or over all heads, with the weights that the model has."""
    of, heads = ctx.model.qk_norm_of, x.dims[-2:]
    weight = {"head": heads[1:], "unit": ()}.get(of, heads)
    over, bias = heads if of == "all_heads" else heads[1:], ctx.model.qk_norm_bias
    return norm(ctx, name, x, d.HEAD_DIM, "qk_norm", weight=weight, over=over, bias=bias)


def gated(ctx: Context, x: Tensor, o: Tensor, gate: Tensor | None, bias: bool = False) -> Tensor:
    """Return o times the sigmoid of a gate for each channel or head, from the layer's input; None: it is made here, by
    a projection that may have a bias.
    """
    if ctx.model.attention_gate is None:
        return o
    if gate is None:
        width = o.dims[-2:] if ctx.model.attention_gate == "channel" else o.dims[-2:-1]
        gate = Tensor("attention_gate", (*o.dims[:-2], *width))
        named = ("gate_proj",)  # an MLP's has that name in the same layer
        gate = projected(ctx, "attention_gate_proj", x, gate, bias, aliases=named)
    gate = scaled(ctx, gate, *gate.dims[2:])
    return ctx.build.elementwise("attention_gating", [o, gate], Tensor("attention_gated", o.dims), saves=[o, gate])


def rotation(ctx: Context, name: str, channels: str) -> list[Tensor]:
    """Return cosines and sines that a rotation keeps, where every layer makes them again. Those of both rotations
    together are one tensor, which both need.
    """
    angles, element = ctx.how.rotation.angles, Element.FP32 if ctx.how.rotation.wide_angles else Element.ACTIVATION
    if angles is Angles.ONCE:
        return []
    of = name if angles is Angles.APART else "rope"
    return [Tensor(f"{of}.{part}", (d.SEQUENCE, channels), element) for part in ("cosines", "sines")]


def value_dim(model: ModelDescriptor) -> str:
    """Return the dim of a value's channels."""
    return d.HEAD_DIM if model.v_head_dim is None else d.VALUE_DIM


def _turning(ctx: Context) -> tuple[int | Fraction, int | Fraction]:
    """Return the traffic of turning a query or key, forward and backward, over one kernel's two passes over the tensor.

    YaRN also lengthens them, which a fused kernel need not know; then the chain is eager. Eager
    forward negates (1 pass), joins (2), multiplies twice (4), adds (3) and joins an empty rest (2); backward multiplies
    twice (4), negates (1), joins the halves (2), adds up (3), and fills, copies and adds two slices' gradients (7).
    """
    scaling = ctx.model.rope_scaling
    if ctx.how.rotation.kernel is RotationKernel.EAGER:
        return 5, 5
    stretched = scaling is not None and scaling.rope_type == "yarn" and scaling.factor > 1
    if not stretched or ctx.how.rotation.kernel is RotationKernel.FUSED_STRETCHED:
        return 1, 1
    return 6, Fraction(17, 2)


def projections(ctx: Context, x: Tensor) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor | None]:
    """Project queries, keys and values, and a gate of each channel where it is part of their fused linear."""
    if ctx.shared_heads:
        return _of_shared_heads(ctx, x)
    separate = ctx.separate("qkv_proj", ("q_proj", "k_proj", "v_proj"))
    rows, storage = (d.BATCH, d.SEQUENCE), "qkv" if ctx.how.linear.views else ""
    q = Tensor("q", (*rows, d.HEADS, d.HEAD_DIM), storage=storage)
    k = Tensor("k", (*rows, d.KV_HEADS, d.HEAD_DIM), storage=storage)
    v = Tensor("v", (*rows, d.KV_HEADS, value_dim(ctx.model)), storage=storage)
    bias = ctx.model.qkv_bias
    if not separate:
        gates = _fused_gates(ctx, storage)
        fused = [Use(t).renamed((t.dims[-2], d.QKV)) for t in (q, *gates, k, v)]
        q, *gates, k, v = linear(ctx, "qkv_proj", x, (d.HIDDEN,), (d.QKV,), fused, bias, aliases=("c_attn",))
        parts = (("q_proj", q), ("k_proj", k), ("v_proj", v))
        q, k, v = (beside_fused(ctx, name, x, t.dims[-2:], t) for name, t in parts)
        return (q, k, v), gates[0] if gates else None
    q, k, v = (projected(ctx, f"{one.name}_proj", x, one, bias, aliases=("c_attn",)) for one in (q, k, v))
    return (q, k, v), None


def _fused_gates(ctx: Context, storage: str) -> list[Tensor]:
    """Return the gate that a fused linear gives beside the queries, if any (Megatron-LM, transformer/attention.py)."""
    if ctx.model.attention_gate != "channel":
        return []
    width = (d.HEADS, value_dim(ctx.model))
    return [Tensor("attention_gate", (d.BATCH, d.SEQUENCE, *width), storage=storage)]


def _of_shared_heads(ctx: Context, x: Tensor) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor | None]:
    """Gather the queries, keys and values of all heads, of which every rank takes its own: a key/value head, and the
    queries of it that are not another rank's. Their gradients are summed over the ranks that share a head.

    Megatron-LM core_v0.16, transformer/attention.py, get_query_key_value_tensors. What is gathered is read and joined;
    backward it is filled with zeros, added to, and put in the ranks' order. Unless a norm or a rotation copies them
    first, the attention keeps views of what was gathered, and so all of it.
    """
    rows, named = (d.BATCH, d.SEQUENCE), ("c_attn",)
    copied = ctx.model.position is Position.ROPE or ctx.model.qk_norm
    storage = "" if copied and not ctx.how.linear.views else "qkv_gathered"
    joined, bias = Tensor("qkv", (*rows, d.QKV)), ctx.model.qkv_bias
    whole = Use(projected(ctx, "qkv_proj", x, joined, bias, aliases=named)).renamed((d.QKV, d.GATHERED_QKV))
    value = value_dim(ctx.model)
    q, k, v = (
        Tensor(name, (*rows, heads, width), storage=storage)
        for name, heads, width in (
            ("q", d.HEADS, d.HEAD_DIM),
            ("k", d.SHARED_KV_HEADS, d.HEAD_DIM),
            ("v", d.SHARED_KV_HEADS, value),
        )
    )
    gathered = Tensor("qkv_gathered", (*rows, d.GATHERED_QKV), storage=storage)
    ctx.build.elementwise("take_v", [whole], v, further=[gathered], traffic=(1, Fraction(3, 2)), linear=True)
    ctx.build.view("take_k", [whole], k)
    ctx.build.view("take_q", [whole], q)
    for gate in _fused_gates(ctx, storage):
        ctx.build.view("take_gate", [whole], gate)
        return (q, k, v), gate
    return (q, k, v), None


PARTS = (Mixer(name=Attention.GQA, build=attention),)
