"""Streams that are predicted before a layer and corrected behind it (AltUp, arXiv:2301.13310; Gemma 3n), and LAuReL.

A layer works on the first stream alone. Before it all streams are mixed by N N numbers of each token; behind it what
the layer changed is added to each stream by a number of its own. Both follow from a narrow projection of the normed
first stream, of the same weights. Beside attention a low-rank path leads around it (LAuReL, arXiv:2411.07501).
Transformers' Gemma3nTextAltUp, Gemma3nTextLaurelBlock, Gemma3nTextModel.
"""

from __future__ import annotations

from collections.abc import Callable

from symconfig.graph import dims as d
from symconfig.graph.blocks.common import linear, projected
from symconfig.graph.blocks.context import Context
from symconfig.graph.blocks.layer_inputs import let_through
from symconfig.graph.blocks.norms import norm, normed
from symconfig.graph.blocks.stream_dims import MADE, MODES, OTHERS, STREAM_IN, STREAM_OUT, STREAMS
from symconfig.graph.operator import Element, Tensor, Use

LAUREL = "laurel_rank"
_ROWS = (d.BATCH, d.SEQUENCE)
_ALL, _STREAM = (*_ROWS, STREAMS, d.HIDDEN), (*_ROWS, d.HIDDEN)


def around(ctx: Context, x: Tensor, inner: Callable[[Tensor], Tensor]) -> Tensor:
    """Return all streams behind a layer, which makes its result of the first one's prediction."""
    modes = _modes(ctx, "predict", _first(ctx, "first", x), reused=False)
    weights = projected(ctx, "prediction_coefs", modes, Tensor("predict_weights", (*_ROWS, STREAMS, MADE)))
    mixed = Tensor("mixed_streams", (*_ROWS, MADE, d.HIDDEN))
    ctx.build.product("predict_product", Use(x), Use(weights), (STREAMS,), mixed)
    same = Use(mixed).renamed((MADE, STREAMS))
    predicted = ctx.build.elementwise("predictions", [same, x], Tensor("predictions", _ALL), linear=True)
    done = inner(_first(ctx, "active", predicted))
    corrected = _corrected(ctx, predicted, done)
    if ctx.model.layer_inputs is None:
        return corrected
    first = _first(ctx, "corrected_first", corrected)
    if ctx.model.streams is not None and ctx.model.streams.scaled:
        scale = ctx.weight("correct_output_scale", d.HIDDEN)
        first = ctx.build.elementwise("correct_scale", [first], Tensor("scaled_first", _STREAM), saves=[first],
                                      weights=[scale])  # fmt: skip
    added = let_through(ctx, first)
    return ctx.build.elementwise("layer_input_sum", [corrected, added], Tensor("layer_out", _ALL), linear=True)


def laurel(ctx: Context, x: Tensor) -> Tensor:
    """Return x[B, S, D] and a low-rank path of it, normed."""
    low, wide = Tensor("laurel_low", (*_ROWS, LAUREL)), Tensor("laurel_wide", x.dims)
    low = projected(ctx, "laurel_left", x, low)
    path = norm(ctx, "laurel_norm", projected(ctx, "laurel_right", low, wide))
    return ctx.build.elementwise("laurel_sum", [x, path], Tensor("laurel_out", x.dims), linear=True)


def _first(ctx: Context, name: str, x: Tensor) -> Tensor:
    """Return the first stream: a view."""
    return ctx.build.view(name, [x], Tensor(name, _STREAM), whole=(STREAMS,))


def _modes(ctx: Context, name: str, x: Tensor, reused: bool) -> Tensor:
    """Return the numbers that tell a token, in the activations' precision; their hyperbolic tangent is made in fp32.
    reused: with the weights that this layer has used before.
    """
    weight = ctx.weight("router_norm.weight", d.HIDDEN, shared=reused)
    given = normed(ctx, f"{name}_router_norm", x, (d.HIDDEN,), [weight], False, "layernorm")
    out, wide = Tensor(f"{name}_routed", (*_ROWS, MODES)), Tensor(f"{name}_tanh", (*_ROWS, MODES), Element.FP32)
    router = ctx.weight("modality_router.weight", d.HIDDEN, MODES, shared=reused)
    ctx.build.matmul(f"{name}_router", given, router, (d.HIDDEN,), [Use(out)])
    modes = Tensor(f"{name}_modes", out.dims)
    return ctx.build.elementwise(f"{name}_tanh", [out], modes, saves=[wide], launches=(3, 3))


def _corrected(ctx: Context, predicted: Tensor, done: Tensor) -> Tensor:
    modes = _modes(ctx, "correct", done, reused=True)
    weights = projected(ctx, "correction_coefs", modes, Tensor("correct_weights", (*_ROWS, STREAMS)))
    change = Tensor("innovation", _ALL)
    ctx.build.elementwise("innovation", [done, predicted], change, linear=True)
    scaled = ctx.build.elementwise("correct_product", [change, weights], Tensor("corrections", _ALL),
                                   saves=[change, weights])  # fmt: skip
    return ctx.build.elementwise("corrected", [predicted, scaled], Tensor("corrected", _ALL), linear=True)


def spread(ctx: Context, x: Tensor) -> Tensor:
    """Return the embedding and N - 1 projections of it, as long as it."""
    others = Tensor("projected_streams", (*_ROWS, OTHERS, d.HIDDEN))
    uses = [Use(others).renamed((d.HIDDEN, STREAM_OUT))]
    (others,) = linear(ctx, "stream_projections", x, (d.HIDDEN,), (OTHERS, STREAM_OUT), uses)
    return _as_long(ctx, "spread", [x, others], x, others, Tensor("spread", _ALL))


def gathered(ctx: Context, x: Tensor) -> Tensor:
    """Return the mean of the first stream and of projections of the others, as long as it."""
    first, rest = _first(ctx, "last_first", x), Tensor("last_others", (*_ROWS, OTHERS, STREAM_IN))
    ctx.build.view("last_others", [x], rest, whole=(STREAMS,))
    back = Tensor("gathered_streams", (*_ROWS, OTHERS, d.HIDDEN))
    weight = ctx.weight("unembed_projections.weight", OTHERS, STREAM_IN, STREAM_OUT)
    ctx.build.matmul("unembed_projections", rest, weight, (STREAM_IN,), [Use(back).renamed((d.HIDDEN, STREAM_OUT))])
    return _as_long(ctx, "gather", [first, back], first, back, Tensor("gathered", _STREAM))


def _as_long(ctx: Context, name: str, given: list[Tensor], first: Tensor, others: Tensor, out: Tensor) -> Tensor:
    """Scale streams to the first one's length, and put them together: it keeps all, and a length of each."""
    lengths = [Tensor(f"{name}.lengths", others.dims[:-1]), Tensor(f"{name}.length", first.dims[:-1])]
    return ctx.build.elementwise(
        name, given, out, saves=[first, others, *lengths], traffic=(4, 5), launches=(8, 12), whole=(OTHERS,)
    )
