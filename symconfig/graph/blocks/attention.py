"""Grouped-query attention (multi-head and multi-query included), and the core that every attention has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from symconfig.descriptor.layers import LayerKind, Pairs
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import Attention, Position
from symconfig.graph import dims as d
from symconfig.graph.blocks.common import beside_fused, linear, norm, projected, to_stream
from symconfig.graph.builder import Context
from symconfig.graph.implementation import Angles, Choosing, Kernel, RotationKernel
from symconfig.graph.operator import Element, Tensor, Use, Weight
from symconfig.graph.parts import Mixer


@dataclass(frozen=True, slots=True)
class Read:
    """Describe the keys that a layer's attention reads. keys: the symbol for keys per query, see `graph.model.keys`.
    chosen: indices of the keys, or a mask over all; None: no selection. kept: the backward needs `chosen` from this
    layer. learned: (queries, keys, head weights) of an indexer that is trained by a loss against the attention's
    scores; else None.
    """

    keys: str
    chosen: Tensor | None = None
    kept: bool = False
    learned: tuple[Tensor, Tensor, Tensor] | None = None


def _read(kind: LayerKind) -> Read:
    return Read(d.KEYS_WINDOW if kind.window else d.KEYS_FULL)


_TO_KEYS = ((d.SEQUENCE, d.KEYS),)
_ROWS = {d.KEYS: 2}  # a softmax reduces the maximum and the sum of each row


def core(
    ctx: Context, q: Tensor, k: Tensor, v: Tensor, read: Read, has_sinks: bool = False, channels: str | None = None
) -> Tensor:
    """Append softmax(q k') v in the module core_attn and return it per head, [B, S, heads, channels].

    The kernel is fused (FLASH) or a chain of operators, as the implementation says. A fused one under a MASKED choice
    first repeats keys and values if they have fewer heads. Key and value sequences are dims of their own, so that cp
    splits queries only.

    Args:
        read: keys per query, and the choice of keys; a chain ignores it.
        has_sinks: add a learned sink per head.
        channels: the dim of the values if these are only the first channels of v; None: all of v.
    """
    part = () if channels is None else ((v.dims[-1], channels),)
    sinks = [ctx.weight("sinks", q.dims[-2])] if has_sinks else []
    with ctx.build.module("core_attn"):
        if _kernel(ctx) is Kernel.FLASH:
            if read.chosen is not None and ctx.how.attention.choosing is Choosing.MASKED and k.dims[-2] != q.dims[-2]:
                k, v = repeat_kv(ctx, q, k, Use(v).renamed(*part))
                part = ()  # sdpa_attention.py, use_gqa_in_sdpa: none under a mask
            return ctx.build.attention(
                Use(q),
                Use(k).renamed(*_TO_KEYS),
                v=Use(v).renamed(*_TO_KEYS, *part),
                keys=read.keys,
                weights=sinks,
                in_fp8=ctx.how.attention.in_fp8,
                sparse=[] if read.chosen is None else [Use(read.chosen)],
                keeps=[read.chosen] if read.chosen is not None and read.kept else [],
            )
        return _unfused(ctx, q, k, Use(v).renamed(*part), sinks)


def contiguous(ctx: Context, o: Tensor) -> Tensor:
    """Return a copy of the attention result in the memory order of the output projection, appended; o itself if the
    implementation needs no copy (`copies_result`).
    """
    if not ctx.how.attention.copies_result:
        return o
    return ctx.build.elementwise("copy_heads", [o], Tensor("attention_copied", o.dims), linear=True)


def _kernel(ctx: Context) -> Kernel:
    how = ctx.how.attention
    alone = how.one_head_apart and ctx.model.num_key_value_heads == 1 < ctx.model.num_attention_heads
    return Kernel.WIDE if alone and how.kernel is Kernel.FLASH else how.kernel


def _unfused(ctx: Context, q: Tensor, k: Tensor, v: Use, sinks: list[Weight]) -> Tensor:
    """Append attention as separate products with softmax and, if the model has it, dropout, which saves a mask; return
    it per head, [B, S, heads, channels of v]. Before that, keys and values are repeated per query head if the
    implementation copies them. A WIDE kernel widens q, k and v to fp32 (and scores in fp32); with `wide_products` only
    q and k. A MASKED kernel's scores have a buffer of their size.
    """
    width = v.loops[-1]
    if copies_kv(ctx, k):
        k, copies = repeat_kv(ctx, q, k, v)
        v = Use(copies)
    kernel, scores_in = _kernel(ctx), Element.ACTIVATION
    if kernel is Kernel.WIDE:
        v = Use(_to_fp32(ctx, v.tensor), v.along)
        q, k, scores_in = _to_fp32(ctx, q), _to_fp32(ctx, k), Element.FP32
    elif ctx.how.attention.wide_products:
        q, k = _to_fp32(ctx, q), _to_fp32(ctx, k)
    expand = _TO_KEYS if k.dims[-2] == q.dims[-2] else (*_TO_KEYS, (k.dims[-2], q.dims[-2]))
    square = (d.BATCH, q.dims[-2], d.SEQUENCE, d.KEYS)
    result = Tensor("scores", square, scores_in)
    buffered = kernel is Kernel.MASKED  # for an addend of zero times
    scores = ctx.build.product("scores", Use(q), Use(k).renamed(*expand), (q.dims[-1],), result, buffered)
    weights = _softmax(ctx, scores, sinks)
    if ctx.model.attention_dropout:
        dropped = Tensor("attention_dropped", square)
        weights = ctx.build.elementwise(
            "attention_dropout", [weights], dropped, saves=[Tensor("attention_mask", square, Element.MASK)]
        )
    result = Tensor("attention_heads", (*q.dims[:-1], width))
    return ctx.build.product("context", Use(weights), v.renamed(*expand), (d.KEYS,), result)


def repeat_kv(ctx: Context, q: Tensor, k: Tensor, v: Use) -> tuple[Tensor, Tensor]:
    """Append copies of keys and values for each query head that shares them, and return both, with q's heads."""
    heads, copies = [(q.dims[-2], k.dims[-2])], Tensor("v_repeated", (*q.dims[:-1], v.loops[-1]))
    k = ctx.build.elementwise("repeat_keys", [k], Tensor("k_repeated", q.dims), together=heads, linear=True)
    return k, ctx.build.elementwise("repeat_values", [v], copies, together=heads, linear=True)


def _to_fp32(ctx: Context, x: Tensor) -> Tensor:
    return ctx.build.elementwise(f"widen_{x.name}", [x], Tensor(f"{x.name}_wide", x.dims, Element.FP32), linear=True)


def _softmax(ctx: Context, scores: Tensor, sinks: list[Weight]) -> Tensor:
    """Append scaling, masking and softmax of the scores as the kernel does them, and return the attention weights.

    MASKED: see `_masked_softmax`. FUSED_SOFTMAX: one kernel, with an in-place backward. Others: one kernel per step:
    scaling, a soft cap that saves its tanh (if the model has one), mask, softmax, which NARROW and WIDE run in the
    scores' type and any other between a widening to fp32 and a narrowing. Sinks are weights of the softmax.
    """
    weights, kernel = Tensor("attention_weights", scores.dims, scores.element), _kernel(ctx)
    if kernel is Kernel.MASKED:
        return _masked_softmax(ctx, scores, weights, sinks)
    if kernel is Kernel.FUSED_SOFTMAX:
        return ctx.build.elementwise(
            "softmax", [scores], weights, saves=[weights], weights=sinks, in_place=True, reduces=_ROWS
        )
    scaled = ctx.build.elementwise("scale_scores", [scores], replace(scores, name="scaled_scores"), linear=True)
    if ctx.model.attn_logit_softcapping is not None:
        tanh = replace(scores, name="scores_tanh")
        scaled = ctx.build.elementwise("cap_scores", [scaled], replace(scores, name="capped_scores"), saves=[tanh])
    masked = ctx.build.elementwise("mask_scores", [scaled], replace(scores, name="masked_scores"))
    if kernel in (Kernel.NARROW, Kernel.WIDE):
        kept = [weights, *_saved_by_sinks(sinks, weights)]
        return ctx.build.elementwise("softmax", [masked], weights, saves=kept, weights=sinks, reduces=_ROWS)
    wide = Tensor("wide_scores", scores.dims, Element.FP32)
    ctx.build.elementwise("widen_scores", [masked], wide, linear=True)
    normed = Tensor("wide_attention_weights", scores.dims, Element.FP32)
    kept = [normed, *_saved_by_sinks(sinks, normed)]
    ctx.build.elementwise("softmax", [wide], normed, saves=kept, weights=sinks, reduces=_ROWS)
    return ctx.build.elementwise("narrow_weights", [normed], weights, linear=True)


def _saved_by_sinks(sinks: list[Weight], weights: Tensor) -> list[Tensor]:
    """Return the tensors that a softmax saves because of sinks: one column of weights and, for 16-bit weights, the
    index of the greatest score; empty without sinks.
    """
    if not sinks:
        return []
    rows = weights.dims[:-1]
    column = Tensor("sink_weights", rows, weights.element)
    return [column, *([Tensor("greatest", rows, Element.INDEX)] if weights.element is Element.ACTIVATION else [])]


def _masked_softmax(ctx: Context, scores: Tensor, weights: Tensor, sinks: list[Weight]) -> Tensor:
    """Append a mask, written over the (already scaled) scores and saved by every layer, and the softmax of the result,
    which saves the weights; return the weights. With sinks one more column is saved, and traffic is doubled, since they
    are joined to the scores by a copy.
    """
    masked = Tensor("masked_scores", scores.dims)
    mask = Tensor("causal_mask", (d.SEQUENCE, d.KEYS), Element.MASK)
    ctx.build.elementwise("mask_scores", [scores], masked, saves=[mask], in_place=True)
    kept, times = [weights], 1
    if sinks:
        kept, times = [weights, Tensor("sink_weights", scores.dims[:-1])], 2
    return ctx.build.elementwise(
        "softmax", [masked], weights, saves=kept, weights=sinks, traffic=(times, times), reduces=_ROWS
    )


def copies_kv(ctx: Context, k: Tensor) -> bool:
    """Return whether the implementation repeats keys and values for query heads: it does so (`copies_shared_heads`),
    the model's query and key/value heads differ in number, and k does not have the query heads' dim.
    """
    grouped = ctx.model.num_attention_heads != ctx.model.num_key_value_heads
    return ctx.how.attention.copies_shared_heads and grouped and k.dims[-2] != d.HEADS


def attention(ctx: Context, x: Tensor, kind: LayerKind) -> Tensor:
    """Append grouped-query attention and return o[B, S, D] from x[B, S, D].

    If `kind` borrows keys and values, only queries are computed (`_with_borrowed`). Else, in order: projections, a copy
    of the queries if keys are repeated, query/key norm if the model has it (of kind "unit" only in layers with rope),
    value norm, rope where model and layer have it, lending of keys and values, the core over a window or all keys, gate
    and output projection.
    """
    if kind.pairs is Pairs.BORROWED:
        return _with_borrowed(ctx, x, kind)
    (q, k, v), gate = projections(ctx, x)
    if copies_kv(ctx, k):
        q = ctx.build.elementwise("copy_queries", [q], Tensor("q_copied", q.dims), linear=True)
    if ctx.model.qk_norm and (kind.rope or ctx.model.qk_norm_of != "unit"):
        q, k = _head_norm(ctx, "q_norm", q), _head_norm(ctx, "k_norm", k)
    if ctx.model.v_norm:
        v = norm(ctx, "v_norm", v, v.dims[-1], "qk_norm", weight=())
    if ctx.model.position is Position.ROPE and kind.rope:
        q, k = rotate(ctx, q, k)
    if kind.pairs is Pairs.LENT:
        k, v = lend_kv(ctx, k, v, kind)
    return output(ctx, x, core(ctx, q, k, v, _read(kind), ctx.model.attention_sinks), gate)


def _with_borrowed(ctx: Context, x: Tensor, kind: LayerKind) -> Tensor:
    """Append attention with queries of this layer (normed and rotated where model and layer say so) and keys and values
    of an earlier one; return o[B, S, D]. A gate is projected from x if the model has one.
    """
    q = Tensor("q", (*x.dims[:-1], d.HEADS, d.HEAD_DIM))
    q = projected(ctx, "q_proj", x, q, ctx.model.qkv_bias)
    if ctx.model.qk_norm:
        q = _head_norm(ctx, "q_norm", q)
    if ctx.model.position is Position.ROPE and kind.rope:
        q = _rotated(ctx, "q", q)
    k, v = borrow_kv(ctx, (*x.dims[:-1], d.KV_HEADS), (d.HEAD_DIM, value_dim(ctx.model)), kind)
    return output(ctx, x, core(ctx, q, k, v, _read(kind), ctx.model.attention_sinks), None)


def lend_kv(ctx: Context, k: Tensor, v: Tensor, kind: LayerKind) -> tuple[Tensor, Tensor]:
    """Append views of keys and values and return them under the names by which later layers read them
    (`shared_kv_names`).
    """
    names = shared_kv_names(kind)
    theirs = [Tensor(name, one.dims, storage=one.name) for name, one in zip(names, (k, v), strict=True)]
    for one, other in zip((k, v), theirs, strict=True):
        ctx.build.view(f"lend_{other.name}", [one], other)
    return theirs[0], theirs[1]


def borrow_kv(ctx: Context, rows: Sequence[str], widths: tuple[str, str], kind: LayerKind) -> tuple[Tensor, Tensor]:
    """Return the (keys, values) that an earlier layer lends to layers of this kind, recorded as inputs from another
    block. rows: their dims but the channels. widths: dims of the channels of keys and of values.
    """
    k, v = (Tensor(name, (*rows, width)) for name, width in zip(shared_kv_names(kind), widths, strict=True))
    return ctx.build.from_elsewhere(k), ctx.build.from_elsewhere(v)


def shared_kv_names(kind: LayerKind) -> tuple[str, str]:
    """Return the names of the (keys, values) that layers of a kind share: one pair for layers with a window, else one
    per mixer.
    """
    own = "window" if kind.window else kind.mixer
    return f"lent_{own}_k", f"lent_{own}_v"


def output(ctx: Context, x: Tensor, o: Tensor, gate: Tensor | None) -> Tensor:
    """Append gate (if the model has one) and output projection to the heads o[B, S, A, C], copied first if the
    implementation needs it, and return o[B, S, D]. gate: the projected gate; None: it is projected from the layer's
    input x.
    """
    o = apply_gate(ctx, x, contiguous(ctx, o), gate, ctx.model.qkv_bias)
    return to_stream(ctx, "o_proj", o, ctx.model.attention_out_bias, aliases=("c_proj",))


def rotate(ctx: Context, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Return queries and keys after rotary embedding."""
    return _rotated(ctx, "q", q), _rotated(ctx, "k", k)


def _rotated(ctx: Context, name: str, given: Tensor) -> Tensor:
    return apply_rope(ctx, f"rope_{name}", given, f"{name}_rotated", times=_turning(ctx))


def apply_rope(
    ctx: Context,
    name: str,
    given: Tensor,
    to: str,
    channels: str = d.ROTARY,
    times: tuple[int | Fraction, int | Fraction] = (1, 1),
) -> Tensor:
    """Append a rotary embedding of x[..., C] and return it under the name `to`; it saves `saved_angles`, and C cannot
    be split. channels: the dim of the rotated channels. times: (forward, backward) traffic as a multiple of one read
    and one write.
    """
    kept, out, whole = saved_angles(ctx, name, channels), Tensor(to, given.dims), given.dims[-1:]
    return ctx.build.elementwise(name, [given], out, traffic=times, saves=kept, whole=whole, linear=True)


def _head_norm(ctx: Context, name: str, x: Tensor) -> Tensor:
    """Append the query/key norm of x[B, S, A, C] in the module qk_norm and return it. By qk_norm_of: "head" norms C
    with a weight [C], "unit" norms C without one, "all_heads" norms A and C together with a weight [A, C], any other
    norms C with a weight [A, C].
    """
    of, heads = ctx.model.qk_norm_of, x.dims[-2:]
    weight = {"head": heads[1:], "unit": ()}.get(of, heads)
    return norm(ctx, name, x, d.HEAD_DIM, "qk_norm", weight=weight, over=heads if of == "all_heads" else heads[1:])


def apply_gate(ctx: Context, x: Tensor, o: Tensor, gate: Tensor | None, bias: bool = False) -> Tensor:
    """Return o multiplied by the sigmoid of a gate, which saves both; o itself if the model has no attention gate.
    gate: None: it is projected from the layer's input x, per channel or per head as the model has it, with a bias if
    `bias`; an adapter may target it as gate_proj.
    """
    if ctx.model.attention_gate is None:
        return o
    if gate is None:
        width = o.dims[-2:] if ctx.model.attention_gate == "channel" else o.dims[-2:-1]
        gate = Tensor("attention_gate", (*o.dims[:-2], *width))
        named = ("gate_proj",)  # an MLP's has that name in the same layer
        gate = projected(ctx, "attention_gate_proj", x, gate, bias, aliases=named)
    return ctx.build.elementwise("attention_gating", [o, gate], Tensor("attention_gated", o.dims), saves=[o, gate])


def saved_angles(ctx: Context, name: str, channels: str) -> list[Tensor]:
    """Return the [cosines, sines] ([S, channels], fp32 if `wide_angles`) that the rotation `name` saves; empty if they
    are computed once for all layers (Angles.ONCE). With Angles.APART they are named after the rotation; else all
    rotations of a layer return the same two tensors.
    """
    angles, element = ctx.how.rotation.angles, Element.FP32 if ctx.how.rotation.wide_angles else Element.ACTIVATION
    if angles is Angles.ONCE:
        return []
    of = name if angles is Angles.APART else "rope"
    return [Tensor(f"{of}.{part}", (d.SEQUENCE, channels), element) for part in ("cosines", "sines")]


def value_dim(model: ModelDescriptor) -> str:
    """Return the name of the dim of a value's channels: head_dim unless the model has its own."""
    return d.HEAD_DIM if model.v_head_dim is None else d.VALUE_DIM


def _turning(ctx: Context) -> tuple[int | Fraction, int | Fraction]:
    """Return the (forward, backward) traffic of rotating queries or keys, as a multiple of one read and one write.

    An EAGER kernel: 5, 5. A fused one: 1, 1; but under YaRN with a factor above 1, unless it is FUSED_STRETCHED, 6 and
    17/2 of an eager chain: forward negates (1 pass), joins (2), multiplies twice (4), adds (3), joins an empty rest
    (2); backward multiplies twice (4), negates (1), joins halves (2), adds (3), and fills, copies and adds slices (7).
    """
    scaling = ctx.model.rope_scaling
    if ctx.how.rotation.kernel is RotationKernel.EAGER:
        return 5, 5
    stretched = scaling is not None and scaling.rope_type == "yarn" and scaling.factor > 1
    if not stretched or ctx.how.rotation.kernel is RotationKernel.FUSED_STRETCHED:
        return 1, 1
    return 6, Fraction(17, 2)


def projections(ctx: Context, x: Tensor) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor | None]:
    """Append the projections of x[B, S, D] and return ((q, k, v), gate), each tensor with heads and channels.

    With `ctx.shared_heads` see `_of_shared_heads`. Else one fused product, or three (`Context.separate`, by adapters
    and implementation). A fused product also makes a gate per channel if the model has one, adds adapters of its parts,
    and its parts are views if the implementation has `views`. gate: None with three products or without such a gate.
    """
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
    """Return the gate [B, S, A, C] that the fused QKV product computes, in a list; empty unless the model has a gate
    per channel (Megatron-LM, transformer/attention.py).
    """
    if ctx.model.attention_gate != "channel":
        return []
    width = (d.HEADS, value_dim(ctx.model))
    return [Tensor("attention_gate", (d.BATCH, d.SEQUENCE, *width), storage=storage)]


def _of_shared_heads(ctx: Context, x: Tensor) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor | None]:
    """Append a QKV projection that is gathered over tp, for fewer key/value heads than ranks; return ((q, k, v), gate),
    gate None unless the model has one per channel.

    Each rank takes one key/value head and its queries of that head; gradients are summed over the ranks that share a
    head. The gathered tensor is read and joined; backward it is filled with zeros, added to, and put in the ranks'
    order (Megatron-LM core_v0.16, transformer/attention.py, get_query_key_value_tensors). q, k, v are views that keep
    the gathered tensor alive, unless a query/key norm or rope copies them and the implementation has no `views`.
    """
    rows, named = (d.BATCH, d.SEQUENCE), ("c_attn",)
    copied_result = ctx.model.position is Position.ROPE or ctx.model.qk_norm
    storage = "" if copied_result and not ctx.how.linear.views else "qkv_gathered"
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
