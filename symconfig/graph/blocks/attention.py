"""Grouped-query attention (multi-head and multi-query included), also with key/value heads and head widths other than
the model's in some layers (Gemma 4, MiMo); and the core that every attention has.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import Any

from symconfig.descriptor.sections import Attention, LayerKind, Pairs, Position
from symconfig.graph import dims as d
from symconfig.graph.blocks.common import beside_fused, linear, norm, projected, to_stream
from symconfig.graph.implementation import Angles, Choosing, Kernel, RotationKernel
from symconfig.graph.operator import Element, Tensor, Use, Weight
from symconfig.graph.parts import Context, Mixer

# A mixer with key/value heads and widths of its own.
WIDE = "wide_attention"
KV_HEADS, WIDTH, ROTARY = "wide_key_value_heads", "wide_head_dim", "wide_rotary_dim"
VALUE_WIDTH = "wide_value_dim"  # of values, where it is not that of queries and keys
KEYS_ARE_VALUES = "keys_are_values"


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


_TO_KEYS = ((d.SEQUENCE, d.KEYS),)
_ROWS = {d.KEYS: 2}  # a softmax reduces the maximum and the sum of each row


def core(
    ctx: Context, q: Tensor, k: Tensor, v: Tensor, read: Read, has_sinks: bool = False, channels: str | None = None
) -> Tensor:
    """Append softmax(q k') v in the module core_attn and return it per head, [B, S, heads, channels], copied into the
    memory order of the output projection if the implementation needs that.

    The kernel is fused (FLASH) or a chain of operators, as the implementation says. A fused one under a MASKED choice
    first repeats keys and values if they have fewer heads. Key and value sequences are dims of their own, so that cp
    splits queries only.

    Args:
        read: keys per query, and the choice of keys; a chain ignores it.
        has_sinks: add a learned sink per head.
        channels: the dim of the values if these are only the first channels of v, and then nothing is copied; None:
            all of v.
    """
    how, build = ctx.how.attention, ctx.build
    part = () if channels is None else ((v.dims[-1], channels),)
    sinks = [ctx.weight("sinks", q.dims[-2])] if has_sinks else []
    one_head = ctx.model.num_key_value_heads == 1 < ctx.model.num_attention_heads
    kernel = Kernel.WIDE if how.one_head_apart and one_head and how.kernel is Kernel.FLASH else how.kernel
    with build.within("core_attn"):
        if kernel is not Kernel.FLASH:
            o = _unfused(ctx, kernel, q, k, Use(v).renamed(*part), sinks)
        else:
            if read.chosen is not None and how.choosing is Choosing.MASKED and k.dims[-2] != q.dims[-2]:
                k, v = _repeat_kv(ctx, q, k, Use(v).renamed(*part))
                part = ()  # sdpa_attention.py, use_gqa_in_sdpa: none under a mask
            o = build.attention(
                Use(q),
                Use(k).renamed(*_TO_KEYS),
                v=Use(v).renamed(*_TO_KEYS, *part),
                keys=read.keys,
                weights=sinks,
                in_fp8=how.in_fp8,
                sparse=[] if read.chosen is None else [Use(read.chosen)],
                keeps=[read.chosen] if read.chosen is not None and read.kept else [],
            )
    if channels is not None or not how.copies_result:
        return o
    return build.elementwise("copy_heads", [o], Tensor("attention_copied", o.dims), linear=True)


def _unfused(ctx: Context, kernel: Kernel, q: Tensor, k: Tensor, v: Use, sinks: list[Weight]) -> Tensor:
    """Append attention as separate products with softmax and, if the model has it, dropout, which saves a mask; return
    it per head, [B, S, heads, channels of v]. Before that, keys and values are repeated per query head if the
    implementation copies them. A WIDE kernel widens q, k and v to fp32 (and scores in fp32); with `wide_products` only
    q and k. A MASKED kernel's scores have a buffer of their size.
    """
    width = v.loops[-1]
    if copies_kv(ctx, k):
        k, copies = _repeat_kv(ctx, q, k, v)
        v = Use(copies)
    scores_in = Element.ACTIVATION
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
    weights = _softmax(ctx, kernel, scores, sinks)
    if ctx.model.attention_dropout:
        mask = Tensor("attention_mask", square, Element.MASK)
        dropped = Tensor("attention_dropped", square)
        weights = ctx.build.elementwise("attention_dropout", [weights], dropped, saves=[mask])
    result = Tensor("attention_heads", (*q.dims[:-1], width))
    return ctx.build.product("context", Use(weights), v.renamed(*expand), (d.KEYS,), result)


def _repeat_kv(ctx: Context, q: Tensor, k: Tensor, v: Use) -> tuple[Tensor, Tensor]:
    """Append copies of keys and values for each query head that shares them, and return both, with q's heads."""
    heads, copies = [(q.dims[-2], k.dims[-2])], Tensor("v_repeated", (*q.dims[:-1], v.loops[-1]))
    k = ctx.build.elementwise("repeat_keys", [k], Tensor("k_repeated", q.dims), together=heads, linear=True)
    return k, ctx.build.elementwise("repeat_values", [v], copies, together=heads, linear=True)


def _to_fp32(ctx: Context, x: Tensor) -> Tensor:
    return ctx.build.elementwise(f"widen_{x.name}", [x], Tensor(f"{x.name}_wide", x.dims, Element.FP32), linear=True)


def _softmax(ctx: Context, kernel: Kernel, scores: Tensor, sinks: list[Weight]) -> Tensor:
    """Append scaling, masking and softmax of the scores as the kernel does them, and return the attention weights.

    MASKED: a mask, written over the (already scaled) scores and saved by every layer, then a softmax; sinks are joined
    to the scores by a copy, which doubles its traffic. FUSED_SOFTMAX: one kernel, with an in-place backward. Others:
    one kernel per step: scaling, a soft cap that saves its tanh (if the model has one), mask, softmax, which NARROW and
    WIDE run in the scores' type and any other between a widening to fp32 and a narrowing. With sinks, weights of the
    softmax, it also saves a column and, for 16-bit weights, the index of the greatest score.
    """
    rows, weights = scores.dims[:-1], Tensor("attention_weights", scores.dims, scores.element)

    def softmax(given: Tensor, out: Tensor, saves: list[Tensor], **more: Any) -> Tensor:
        return ctx.build.elementwise("softmax", [given], out, saves=saves, weights=sinks, reduces=_ROWS, **more)

    def step(name: str, given: Tensor, out: str, element: Element | float = scores.element, **more: Any) -> Tensor:
        return ctx.build.elementwise(name, [given], Tensor(out, scores.dims, element), **more)

    if kernel is Kernel.MASKED:
        mask = Tensor("causal_mask", (d.SEQUENCE, d.KEYS), Element.MASK)
        masked = step("mask_scores", scores, "masked_scores", saves=[mask], in_place=True)
        column = [Tensor("sink_weights", rows)] if sinks else []
        return softmax(masked, weights, [weights, *column], traffic=(1 + len(column), 1 + len(column)))
    if kernel is Kernel.FUSED_SOFTMAX:
        return softmax(scores, weights, [weights], in_place=True)
    scaled = step("scale_scores", scores, "scaled_scores", linear=True)
    if ctx.model.attn_logit_softcapping is not None:
        scaled = step("cap_scores", scaled, "capped_scores", saves=[replace(scores, name="scores_tanh")])
    masked = step("mask_scores", scaled, "masked_scores")
    narrow = kernel in (Kernel.NARROW, Kernel.WIDE)
    normed = weights if narrow else Tensor("wide_attention_weights", scores.dims, Element.FP32)
    saves = [normed]
    if sinks:
        saves.append(Tensor("sink_weights", rows, normed.element))
        saves += [Tensor("greatest", rows, Element.INDEX)] if normed.element is Element.ACTIVATION else []
    if narrow:
        return softmax(masked, weights, saves)
    softmax(step("widen_scores", masked, "wide_scores", Element.FP32, linear=True), normed, saves)
    return step("narrow_weights", normed, weights.name, linear=True)


def copies_kv(ctx: Context, k: Tensor) -> bool:
    """Return whether the implementation repeats keys and values for query heads: it does so (`copies_shared_heads`),
    the model's query and key/value heads differ in number, and k does not have the query heads' dim.
    """
    grouped = ctx.model.num_attention_heads != ctx.model.num_key_value_heads
    return ctx.how.attention.copies_shared_heads and grouped and k.dims[-2] != d.HEADS


def attention(ctx: Context, x: Tensor, kind: LayerKind, own_heads: bool = False) -> Tensor:
    """Append grouped-query attention and return o[B, S, D] from x[B, S, D].

    In order: projections, a copy of the queries if keys are repeated, query/key norm if the model has it (of kind
    "unit" only in layers with rope), value norm, rope where model and layer have it, the core over a window or all
    keys, gate and output projection. A layer that borrows keys and values makes queries only; one that lends them makes
    them inputs of later layers. own_heads: key/value heads and head widths are those of the mixer WIDE (layers with a
    shape of their own) in place of the model's; there are no sinks.
    """
    model, borrowed = ctx.model, kind.pairs is Pairs.BORROWED
    lent = [f"lent_{'window' if kind.window else kind.mixer}_{name}" for name in "kv"]  # one pair for all with a window
    if borrowed:
        q, *pair = _heads(ctx, own_heads)
        q, gate = projected(ctx, "q_proj", x, q, model.qkv_bias), None
        k, v = (ctx.build.from_elsewhere(replace(one, name=name)) for one, name in zip(pair, lent, strict=True))
    else:
        q, k, v, gate = projections(ctx, x, own_heads)
        if copies_kv(ctx, k):
            q = ctx.build.elementwise("copy_queries", [q], Tensor("q_copied", q.dims), linear=True)
    own = {"q": q} if borrowed else {"q": q, "k": k}
    if model.qk_norm and (kind.rope or model.qk_norm_of != "unit"):
        own = {name: _head_norm(ctx, f"{name}_norm", one) for name, one in own.items()}
    if model.v_norm and not borrowed:
        v = norm(ctx, "v_norm", v, v.dims[-1], "qk_norm", weight=())
    if model.position is Position.ROPE and kind.rope:
        channels, times = ROTARY if own_heads else d.ROTARY, _rope_traffic(ctx)
        own = {
            name: apply_rope(ctx, f"rope_{name}", one, f"{name}_rotated", channels, times) for name, one in own.items()
        }
    q, k = own["q"], own.get("k", k)
    if kind.pairs is Pairs.LENT:
        k, v = (
            ctx.build.view(f"lend_{name}", [one], Tensor(name, one.dims, storage=one.name))
            for one, name in zip((k, v), lent, strict=True)
        )
    read = Read(d.KEYS_WINDOW if kind.window else d.KEYS_FULL)
    o = core(ctx, q, k, v, read, model.attention_sinks and not own_heads)
    o = apply_gate(ctx, x, o, gate, model.qkv_bias)
    return to_stream(ctx, "o_proj", o, model.attention_out_bias, aliases=("c_proj",))


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
    return norm(ctx, name, x, heads[1], "qk_norm", weight=weight, over=heads if of == "all_heads" else heads[1:])


def apply_gate(ctx: Context, x: Tensor, o: Tensor, gate: Tensor | None, bias: bool = False) -> Tensor:
    """Append the product of o and the sigmoid of a gate, which saves o and the gate, and return it; o itself if the
    model has no attention gate. gate: None: a projection of the layer's input x, per channel or per head as the model
    has it, with a bias if `bias`, is appended; an adapter may target it as gate_proj.
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


def _rope_traffic(ctx: Context) -> tuple[int | Fraction, int | Fraction]:
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


def _heads(
    ctx: Context, own_heads: bool = False, kv_heads: str = d.KV_HEADS, storage: str = ""
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the tensors of queries, keys and values, [B, S, heads, channels], without appending anything. own_heads:
    key/value heads and widths are those of the mixer WIDE, which has its own. kv_heads: the dim of key/value heads
    otherwise. storage: the name of the tensor of which they are views; "": of none.
    """
    width, value = d.HEAD_DIM, d.HEAD_DIM if ctx.model.v_head_dim is None else d.VALUE_DIM
    if own_heads:
        kv_heads, width = KV_HEADS, WIDTH
        value = VALUE_WIDTH if ctx.model.mixer(WIDE).sizes.get(VALUE_WIDTH) else WIDTH
    shapes = {"q": (d.HEADS, width), "k": (kv_heads, width), "v": (kv_heads, value)}
    q, k, v = (Tensor(name, (d.BATCH, d.SEQUENCE, *shape), storage=storage) for name, shape in shapes.items())
    return q, k, v


def projections(ctx: Context, x: Tensor, own_heads: bool = False) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Append the projections of x[B, S, D] and return (q, k, v, gate), each [B, S, heads, channels].

    With `own_heads` three products, or two if the mixer's keys are its values. With `ctx.shared_heads` (fewer key/value
    heads than tp ranks) one product that is gathered over tp (`_of_shared_heads`). Else one fused product, or three
    (`Context.separate`, by adapters and implementation). A fused product also makes a gate per channel if the model has
    one, adds adapters of its parts, and its parts are views if the implementation has `views`. gate: None without a
    fused product or such a gate.
    """
    bias, named = ctx.model.qkv_bias, ("c_attn",)
    if own_heads:
        q, k, v = _heads(ctx, own_heads)
        q, k = (projected(ctx, f"{one.name}_proj", x, one, bias) for one in (q, k))
        shared = KEYS_ARE_VALUES in ctx.model.mixer(WIDE).switches
        return q, k, k if shared else projected(ctx, "v_proj", x, v, bias), None
    if ctx.shared_heads:
        return _of_shared_heads(ctx, x)
    storage = "qkv" if ctx.how.linear.views else ""
    q, k, v = _heads(ctx, storage=storage)
    if ctx.separate("qkv_proj", ("q_proj", "k_proj", "v_proj")):
        q, k, v = (projected(ctx, f"{one.name}_proj", x, one, bias, aliases=named) for one in (q, k, v))
        return q, k, v, None
    gates = _gates(ctx, q, v)
    fused = [Use(t).renamed((t.dims[-2], d.QKV)) for t in (q, *gates, k, v)]
    q, *gates, k, v = linear(ctx, "qkv_proj", x, (d.HIDDEN,), (d.QKV,), fused, bias, aliases=named)
    parts = {"q_proj": q, "k_proj": k, "v_proj": v}
    q, k, v = (beside_fused(ctx, name, x, one.dims[-2:], one) for name, one in parts.items())
    return q, k, v, next(iter(gates), None)


def _gates(ctx: Context, q: Tensor, v: Tensor) -> list[Tensor]:
    """Return the gate [B, S, A, value channels] that the fused QKV product computes, in a list; empty unless the model
    has a gate per channel (Megatron-LM, transformer/attention.py).
    """
    gate = replace(q, name="attention_gate", dims=(*q.dims[:-1], v.dims[-1]))
    return [gate] if ctx.model.attention_gate == "channel" else []


def _of_shared_heads(ctx: Context, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Append a QKV projection that is gathered over tp, for fewer key/value heads than ranks; return (q, k, v, gate),
    gate None unless the model has one per channel.

    Each rank takes one key/value head and its queries of that head; gradients are summed over the ranks that share a
    head. The gathered tensor is read and joined; backward it is filled with zeros, added to, and put in the ranks'
    order (Megatron-LM core_v0.16, transformer/attention.py, get_query_key_value_tensors). q, k, v are views that keep
    the gathered tensor alive, unless a query/key norm or rope copies them and the implementation has no `views`.
    """
    rows, build = (d.BATCH, d.SEQUENCE), ctx.build
    copied_result = ctx.model.position is Position.ROPE or ctx.model.qk_norm
    storage = "" if copied_result and not ctx.how.linear.views else "qkv_gathered"
    joined, bias = Tensor("qkv", (*rows, d.QKV)), ctx.model.qkv_bias
    whole = Use(projected(ctx, "qkv_proj", x, joined, bias, aliases=("c_attn",))).renamed((d.QKV, d.GATHERED_QKV))
    q, k, v = _heads(ctx, kv_heads=d.SHARED_KV_HEADS, storage=storage)
    gathered = Tensor("qkv_gathered", (*rows, d.GATHERED_QKV), storage=storage)
    build.elementwise("take_v", [whole], v, further=[gathered], traffic=(1, Fraction(3, 2)), linear=True)
    build.view("take_k", [whole], k)
    build.view("take_q", [whole], q)
    return q, k, v, next((build.view("take_gate", [whole], gate) for gate in _gates(ctx, q, v)), None)


PARTS = (
    Mixer(name=Attention.GQA, build=attention),
    Mixer(
        name=WIDE,
        build=partial(attention, own_heads=True),
        sizes=lambda model: model.mixer(WIDE).sizes,
        tensor_dims=(KV_HEADS,),
        pieces=(KV_HEADS,),
        needs=(KV_HEADS, WIDTH, ROTARY),
        may=(VALUE_WIDTH,),
        switches=(KEYS_ARE_VALUES,),
    ),
)
