"""The core of an attention, softmax(q k') v, with a flash or an unfused kernel."""

from __future__ import annotations

from dataclasses import replace

from symconfig.graph import dims as d
from symconfig.graph.blocks.context import Context
from symconfig.graph.blocks.indexer import Read
from symconfig.graph.implementation import Choosing, Kernel
from symconfig.graph.operator import Element, Tensor, Use, Weight

_TO_KEYS = ((d.SEQUENCE, d.KEYS),)
_ROWS = {d.KEYS: 2}  # a softmax reduces the maximum and the sum of each row


def core(
    ctx: Context, q: Tensor, k: Tensor, v: Tensor, read: Read, has_sinks: bool = False, channels: str | None = None
) -> Tensor:
    """Return softmax(q k') v, per head. Key and value sequences are dims of their own, so cp splits queries only.

    channels: of values that are the first channels of v, and not all of them.
    """
    part = () if channels is None else ((v.dims[-1], channels),)
    sinks = [ctx.weight("sinks", q.dims[-2])] if has_sinks else []
    with ctx.build.module("core_attn"):
        if _kernel(ctx) is Kernel.FLASH:
            if read.chosen is not None and ctx.how.attention.choosing is Choosing.MASKED and k.dims[-2] != q.dims[-2]:
                k, v = of_each_head(
                    ctx, q, k, Use(v).renamed(*part)
                )  # sdpa_attention.py, use_gqa_in_sdpa: none under a mask
                part = ()
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


def copied(ctx: Context, o: Tensor) -> Tensor:
    """Return the core's result in the order that the projection wants."""
    if not ctx.how.attention.copies_result:
        return o
    return ctx.build.elementwise("copy_heads", [o], Tensor("attention_copied", o.dims), linear=True)


def _kernel(ctx: Context) -> Kernel:
    how = ctx.how.attention
    alone = how.one_head_apart and ctx.model.num_key_value_heads == 1 < ctx.model.num_attention_heads
    return Kernel.WIDE if alone and how.kernel is Kernel.FLASH else how.kernel


def _unfused(ctx: Context, q: Tensor, k: Tensor, v: Use, sinks: list[Weight]) -> Tensor:
    width = v.loops[-1]
    if repeated(ctx, k):
        k, copies = of_each_head(ctx, q, k, v)
        v = Use(copies)
    kernel, scores_in = _kernel(ctx), Element.ACTIVATION
    if kernel is Kernel.WIDE:
        v = Use(_widened(ctx, v.tensor), v.along)
        q, k, scores_in = _widened(ctx, q), _widened(ctx, k), Element.FP32
    elif ctx.how.attention.wide_products:
        q, k = _widened(ctx, q), _widened(ctx, k)
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
    o = ctx.build.product("context", Use(weights), v.renamed(*expand), (d.KEYS,), result)
    if sinks and ctx.how.attention.scales_by_sinks:
        scale = Tensor("sink_scale", (d.BATCH, d.SEQUENCE, d.HEADS))
        o = ctx.build.elementwise("scale_by_sinks", [o], Tensor("attention_scaled", o.dims), saves=[o, scale])
    return o


def of_each_head(ctx: Context, q: Tensor, k: Tensor, v: Use) -> tuple[Tensor, Tensor]:
    """Return keys and values, copied for each query head that shares them."""
    heads, copies = [(q.dims[-2], k.dims[-2])], Tensor("v_repeated", (*q.dims[:-1], v.loops[-1]))
    k = ctx.build.elementwise("repeat_keys", [k], Tensor("k_repeated", q.dims), together=heads, linear=True)
    return k, ctx.build.elementwise("repeat_values", [v], copies, together=heads, linear=True)


def _widened(ctx: Context, x: Tensor) -> Tensor:
    return ctx.build.elementwise(f"widen_{x.name}", [x], Tensor(f"{x.name}_wide", x.dims, Element.FP32), linear=True)


def _softmax(ctx: Context, scores: Tensor, sinks: list[Weight]) -> Tensor:
    """Write the softmax. A fused kernel reads the scores once, and its backward is in place; in turn a kernel each
    scales, masks, widens, normalises and narrows them. A cap keeps its tanh.
    """
    weights, kernel = Tensor("attention_weights", scores.dims, scores.element), _kernel(ctx)
    if kernel is Kernel.MASKED:
        return _masked(ctx, scores, weights, sinks)
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
        kept = [weights, *_sunk(ctx, sinks, masked, weights)]
        return ctx.build.elementwise("softmax", [masked], weights, saves=kept, weights=sinks, reduces=_ROWS)
    wide = Tensor("wide_scores", scores.dims, Element.FP32)
    ctx.build.elementwise("widen_scores", [masked], wide, linear=True)
    normed = Tensor("wide_attention_weights", scores.dims, Element.FP32)
    kept = [normed, *_sunk(ctx, sinks, masked, normed)]
    ctx.build.elementwise("softmax", [wide], normed, saves=kept, weights=sinks, reduces=_ROWS)
    return ctx.build.elementwise("narrow_weights", [normed], weights, linear=True)


def _sunk(ctx: Context, sinks: list[Weight], masked: Tensor, weights: Tensor) -> list[Tensor]:
    """Return what sinks make a softmax keep: a column of weights, and in 16 bits which score was greatest; or, where
    they scale the result, the scores, the logarithm of each row's sum, and the scale in fp32.
    """
    rows = masked.dims[:-1]
    if not sinks:
        return []
    if ctx.how.attention.scales_by_sinks:
        return [masked, Tensor("sum_of_scores", rows), Tensor("wide_sink_scale", rows, Element.FP32)]
    column = Tensor("sink_weights", rows, weights.element)
    return [column, *([Tensor("greatest", rows, Element.INDEX)] if weights.element is Element.ACTIVATION else [])]


def _masked(ctx: Context, scores: Tensor, weights: Tensor, sinks: list[Weight]) -> Tensor:
    """Write scores whose product scales them; every layer writes its mask over the scores, and their softmax keeps
    their precision.

    Sinks are one more key of each query, joined to the scores by a copy.
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


def repeated(ctx: Context, k: Tensor) -> bool:
    """Tell whether keys and values are copied for each query head that shares them."""
    grouped = ctx.model.num_attention_heads != ctx.model.num_key_value_heads
    return ctx.how.attention.copies_shared_heads and grouped and k.dims[-2] != d.HEADS
