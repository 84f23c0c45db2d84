"""Several residual streams in place of one, and the embedding of each token for every layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from symconfig.descriptor.layers import Mixing
from symconfig.descriptor.model import ModelDescriptor
from symconfig.graph import dims as d
from symconfig.graph.blocks.common import linear, norm, normed, projected, residual
from symconfig.graph.builder import Context
from symconfig.graph.operator import Element, Tensor, Use

STREAMS = "residual_streams"
MADE = "made_streams"  # the streams as a product gives them
MODES = "stream_modes"  # as many again, by which a token is told
OTHERS = "other_streams"  # all but the first
STREAM_IN, STREAM_OUT = "stream_in_size", "stream_out_size"  # the hidden size, as projections between streams have it
READ = "stream_weights"  # numbers of a token that weigh its streams
WRITTEN = "written_streams"
LOW = "stream_rank"
DIVISIONS = "stream_divisions"  # by the sums of rows or columns of a mixing matrix, in turn


INPUT_LAYERS, INPUT_SIZE, INPUT_ROWS = "input_layers", "layer_input_size", "layer_inputs_vocab_size"
_ROWS = (d.BATCH, d.SEQUENCE)
INPUT = Tensor("layer_input", (*_ROWS, INPUT_SIZE))


def layer_inputs(ctx: Context, tokens: Tensor, embedded: Tensor) -> None:
    """Append the per-layer inputs of all layers, as one tensor of which each layer reads a slice; nothing for a model
    without them.

    An embedding of each token for every layer (Gemma 3n and 4; Transformers' Gemma4TextModel,
    project_per_layer_inputs). A table gives all layers' at once; a projection of the token's usual embedding, normed
    by layer, is added to them. The whole tensor stays until the backward. At a layer's end its slice gates a narrow
    projection of the stream, whose widened and normed result joins the stream. L input_layers, P layer_input_size.
    """
    if ctx.model.layer_inputs is None:
        return
    looked, made, whole = (
        Tensor(name, (*_ROWS, INPUT_LAYERS, INPUT_SIZE)) for name in ("looked_up", "layer_projected", "layer_inputs")
    )
    table = ctx.weight("layer_embedding.weight", INPUT_ROWS, INPUT_LAYERS, INPUT_SIZE)
    ctx.build.elementwise(
        "layer_embedding", [tokens], looked, saves=[tokens], contracted=(INPUT_ROWS,), weights=[table],
        whole=(INPUT_ROWS,), linear=True,
    )  # fmt: skip
    normed = norm(ctx, "layer_projection_norm", projected(ctx, "layer_projection", embedded, made), INPUT_SIZE)
    ctx.build.elementwise("layer_inputs", [normed, looked], whole, linear=True)
    ctx.build.view("slice", [whole], INPUT, holds=[whole])


def add_layer_input(ctx: Context, stream: Tensor) -> Tensor:
    """Append the branch of the layer's own input and return its sum with the stream."""
    return residual(ctx, "layer_input_residual", stream, layer_input_branch(ctx, stream))


def layer_input_branch(ctx: Context, stream: Tensor) -> Tensor:
    """Append a narrow projection of the stream, gated by the layer's own input, widened and normed; return it."""
    given = ctx.build.from_elsewhere(INPUT)
    gate, active, product = (Tensor(f"layer_input_{name}", given.dims) for name in ("gate", "active", "product"))
    gate = projected(ctx, "layer_input_gate", stream, gate)
    ctx.build.elementwise("layer_input_activation", [gate], active, saves=[gate])
    ctx.build.elementwise("layer_input_product", [active, given], product, saves=[active, given])
    out = projected(ctx, "layer_input_projection", product, Tensor("layer_input_out", stream.dims))
    return norm(ctx, "layer_input_norm", out, module="post_norm")


def layer_input_sizes(model: ModelDescriptor) -> dict[str, float]:
    """Return the sizes of the per-layer inputs' dims; empty for a model without them."""
    has = model.layer_inputs
    return (
        {} if has is None else {INPUT_LAYERS: model.num_hidden_layers, INPUT_SIZE: has.size, INPUT_ROWS: has.vocab_size}
    )


_ALL, _STREAM = (*_ROWS, STREAMS, d.HIDDEN), (*_ROWS, d.HIDDEN)
SCALES = "stream_scales"  # numbers that scale the weights of reading, writing and mixing
PARTS_OF = {Mixing.HYPER: 3, Mixing.INJECTED: 2}


@dataclass(frozen=True, slots=True)
class Link:
    """Say how a sublayer's result joins the streams. post: a weight of each stream; None: it does not join them. mixed:
    N x N numbers that mix the streams; None: they are not mixed.
    """

    post: Tensor | None = None
    mixed: Tensor | None = None


def read_streams(ctx: Context, name: str, x: Tensor) -> tuple[Tensor, Link]:
    """Append the reading of all streams by a sublayer, or by the head (name `gather`), and return (its input [B, S, D],
    the link by which its result joins the streams).

    Hyper-connections (arXiv:2409.19606; with doubly stochastic mixing mHC, arXiv:2512.24880): each sublayer reads a
    weighed sum of the streams and is written into each of them by a weight.

    Weights follow from all streams of a token together: normed without weights, a product with a matrix of 2 N (+ N
    N) columns, scaled by a few numbers, and a bias. With the N N, streams are mixed, too, by a matrix whose rows and
    columns sum to one after some iterations (DeepSeek-V4); without, each goes on as it is (Hunyuan 4). Qwen 4's
    weigh each channel by a low-rank projection. All of it is made in fp32. Transformers' DeepseekV4HyperConnection,
    HYV4HyperConnection, Qwen4ExpTextGatedResidual. N residual_streams.
    """
    mixing = ctx.model.streams.mixing if ctx.model.streams else Mixing.HYPER
    return _gated(ctx, name, x) if mixing is Mixing.GATED else _weighed(ctx, name, x, mixing)


def _weighed(ctx: Context, name: str, x: Tensor, mixing: Mixing) -> tuple[Tensor, Link]:
    """Append a sum of the streams by a weight of each and return (the sum, how the sublayer's result joins the
    streams).

    Sigmoids and the softmax save their results; a division saves dividend and divisor in each of the iterations that
    make a mixing matrix doubly stochastic. For the head (`gather`) the link is empty.
    """
    last, wide = name == "gather", Element.FP32
    raw = _raw_weights(ctx, name, x, mixing, WRITTEN if last else READ)
    pre = Tensor(f"{name}_pre", (*_ROWS, STREAMS), wide)
    post = Tensor(f"{name}_post", pre.dims, Element.ACTIVATION if mixing is Mixing.HYPER else wide)
    mixed, mixes = Tensor(f"{name}_mixed", (*_ROWS, STREAMS, MADE)), mixing is Mixing.HYPER and not last
    made = [] if last else [post, *([mixed] if mixes else [])]
    kept = [Tensor(f"{one.name}.active", one.dims, wide) for one in (pre, *made)]
    if mixes:
        kept.append(Tensor(f"{name}_divided", (*_ROWS, DIVISIONS, STREAMS, MADE), wide))
        kept.append(Tensor(f"{name}_divisors", (*_ROWS, DIVISIONS, STREAMS), wide))
    weights = [ctx.weight(f"{name}_base", raw.dims[-1]), ctx.weight(f"{name}_scale", *(() if last else (SCALES,)))]
    whole = (raw.dims[-1], STREAMS, *([MADE] if mixes else []))
    ctx.build.elementwise(
        f"{name}_weights", [raw], pre, further=made, saves=[raw, *kept], weights=weights, whole=whole, launches=(12, 20)
    )
    read_streams = Tensor(f"{name}_read", _STREAM)
    out = ctx.build.elementwise(f"{name}_sum", [x, pre], read_streams, saves=[x, pre], contracted=(STREAMS,))
    return out, Link(post=None if last else post, mixed=mixed if mixes else None)


def _raw_weights(ctx: Context, name: str, x: Tensor, mixing: Mixing, width: str) -> Tensor:
    """Append the projection of all streams of a token to its raw weights, and return them in fp32. DeepSeek norms the
    projection's input, Hunyuan its result.
    """
    wide, lengths = Tensor(f"{name}_wide", _ALL, Element.FP32), Tensor(f"{name}.statistics", _ROWS, Element.FP32)
    raw, over = Tensor(f"{name}_raw", (*_ROWS, width), Element.FP32), {STREAMS: 1, d.HIDDEN: 1}
    if mixing is Mixing.HYPER:
        normed = Tensor(f"{name}_normed", _ALL, Element.FP32)
        ctx.build.elementwise(f"{name}_norm", [x], normed, saves=[wide, lengths], reduces=over, traffic=(2, 3))
        return projected(ctx, f"{name}_fn", normed, raw, over=2)
    ctx.build.elementwise(f"{name}_widen", [x], wide, linear=True)
    raw = projected(ctx, f"{name}_fn", wide, raw, over=2)
    scaled = Tensor(f"{name}_scaled", raw.dims, Element.FP32)
    return ctx.build.elementwise(f"{name}_norm", [raw, wide], scaled, saves=[raw, lengths], reduces=over)


def _gated(ctx: Context, name: str, x: Tensor) -> tuple[Tensor, Link]:
    """Append a mean of the normed streams, each channel gated by a low-rank projection of all; return (the mean, the
    link). For the head (`gather`) the link is empty.
    """
    normed = norm(ctx, f"{name}_norm", x, weight=(STREAMS, d.HIDDEN), over=(d.HIDDEN,))
    low, active = Tensor(f"{name}_low", (*_ROWS, LOW)), Tensor(f"{name}_low_active", (*_ROWS, LOW))
    low = projected(ctx, f"{name}_down", normed, low, over=2)
    ctx.build.elementwise(f"{name}_activation", [low], active, saves=[low])
    gate, opened = Tensor(f"{name}_gate", _ALL), Tensor(f"{name}_opened", _ALL)
    gate = projected(ctx, f"{name}_up", active, gate)
    ctx.build.elementwise(f"{name}_sigmoid", [gate], opened, saves=[opened])
    out = ctx.build.elementwise(f"{name}_mean", [opened, normed], Tensor(f"{name}_read", _STREAM),
                                saves=[opened, normed], contracted=(STREAMS,))  # fmt: skip
    if name == "gather":
        return out, Link()
    raw, post = (Tensor(f"{name}_{of}", (*_ROWS, WRITTEN)) for of in ("injection", "post"))
    raw = projected(ctx, f"{name}_inject", normed, raw, over=2)
    kept = [Tensor(f"{name}_post.active", raw.dims)]
    return out, Link(post=ctx.build.elementwise(f"{name}_double_sigmoid", [raw], post, saves=kept))


def write_streams(ctx: Context, name: str, x: Tensor, done: Tensor, link: Link) -> Tensor:
    """Append the sublayer's result `done` to all streams x, mixing them if the link says so, and return the streams."""
    assert link.post is not None
    post = Use(link.post).renamed((WRITTEN, STREAMS))
    share, kept = Tensor(f"{name}_share", _ALL), done
    if link.post.element is Element.FP32:
        kept = Tensor(f"{done.name}.fp32", done.dims, Element.FP32)
    ctx.build.elementwise(f"{name}_share", [done, post], share, saves=[kept, link.post])
    if link.mixed is None:
        return ctx.build.elementwise(name, [x, share], Tensor(name, _ALL), linear=True)
    mixed = Tensor(f"{name}_streams", (*_ROWS, MADE, d.HIDDEN))
    ctx.build.product(f"{name}_mix", Use(x), Use(link.mixed), (STREAMS,), mixed)
    return ctx.build.elementwise(name, [Use(mixed).renamed((MADE, STREAMS)), share], Tensor(name, _ALL), linear=True)


LAUREL = "laurel_rank"


def altup(ctx: Context, x: Tensor, inner: Callable[[Tensor], Tensor]) -> Tensor:
    """Append a whole AltUp layer and return all streams. inner: appends the layer's sublayers to the first stream's
    prediction and returns their result.

    Streams that are predicted before a layer and corrected behind it (AltUp, arXiv:2301.13310; Gemma 3n), and
    LAuReL.

    A layer works on the first stream alone. Before it all streams are mixed by N N numbers of each token; behind it
    what the layer changed is added to each stream by a number of its own. Both follow from a narrow projection of
    the normed first stream, of the same weights. Beside attention a low-rank path leads around it (LAuReL,
    arXiv:2411.07501). Transformers' Gemma3nTextAltUp, Gemma3nTextLaurelBlock, Gemma3nTextModel.
    """
    modes = _modes(ctx, "predict", _first_stream(ctx, "first", x), reused=False)
    weights = projected(ctx, "prediction_coefs", modes, Tensor("predict_weights", (*_ROWS, STREAMS, MADE)))
    mixed = Tensor("mixed_streams", (*_ROWS, MADE, d.HIDDEN))
    ctx.build.product("predict_product", Use(x), Use(weights), (STREAMS,), mixed)
    same = Use(mixed).renamed((MADE, STREAMS))
    predicted = ctx.build.elementwise("predictions", [same, x], Tensor("predictions", _ALL), linear=True)
    done = inner(_first_stream(ctx, "active", predicted))
    corrected = _corrected(ctx, predicted, done)
    if ctx.model.layer_inputs is None:
        return corrected
    first = _first_stream(ctx, "corrected_first", corrected)
    if ctx.model.streams is not None and ctx.model.streams.scaled:
        scale = ctx.weight("correct_output_scale", d.HIDDEN)
        first = ctx.build.elementwise("correct_scale", [first], Tensor("scaled_first", _STREAM), saves=[first],
                                      weights=[scale])  # fmt: skip
    added = layer_input_branch(ctx, first)
    return ctx.build.elementwise("layer_input_sum", [corrected, added], Tensor("layer_out", _ALL), linear=True)


def laurel(ctx: Context, x: Tensor) -> Tensor:
    """Append x[B, S, D] plus a low-rank path of it, normed, and return the sum."""
    low, wide = Tensor("laurel_low", (*_ROWS, LAUREL)), Tensor("laurel_wide", x.dims)
    low = projected(ctx, "laurel_left", x, low)
    path = norm(ctx, "laurel_norm", projected(ctx, "laurel_right", low, wide))
    return ctx.build.elementwise("laurel_sum", [x, path], Tensor("laurel_out", x.dims), linear=True)


def _first_stream(ctx: Context, name: str, x: Tensor) -> Tensor:
    """Return a view of the first stream, named `name`."""
    return ctx.build.view(name, [x], Tensor(name, _STREAM), whole=(STREAMS,))


def _modes(ctx: Context, name: str, x: Tensor, reused: bool) -> Tensor:
    """Append the token's modalities (tanh of a narrow projection of the normed stream) and return them in 16 bits; the
    tanh is fp32.

    reused: the weights are those that this layer has already used.
    """
    weight = ctx.weight("router_norm.weight", d.HIDDEN, shared=reused)
    given = normed(ctx, f"{name}_router_norm", x, (d.HIDDEN,), [weight], False, "layernorm")
    out, wide = Tensor(f"{name}_routed", (*_ROWS, MODES)), Tensor(f"{name}_tanh", (*_ROWS, MODES), Element.FP32)
    router = ctx.weight("modality_router.weight", d.HIDDEN, MODES, shared=reused)
    ctx.build.matmul(f"{name}_router", given, router, (d.HIDDEN,), [Use(out)])
    modes = Tensor(f"{name}_modes", out.dims)
    return ctx.build.elementwise(f"{name}_tanh", [out], modes, saves=[wide], launches=(3, 3))


def _corrected(ctx: Context, predicted: Tensor, done: Tensor) -> Tensor:
    """Append AltUp's correction of all predicted streams by the layer's result, and return the streams."""
    modes = _modes(ctx, "correct", done, reused=True)
    weights = projected(ctx, "correction_coefs", modes, Tensor("correct_weights", (*_ROWS, STREAMS)))
    change = Tensor("innovation", _ALL)
    ctx.build.elementwise("innovation", [done, predicted], change, linear=True)
    scaled = ctx.build.elementwise("correct_product", [change, weights], Tensor("corrections", _ALL),
                                   saves=[change, weights])  # fmt: skip
    return ctx.build.elementwise("corrected", [predicted, scaled], Tensor("corrected", _ALL), linear=True)


def _expand_by_projection(ctx: Context, x: Tensor) -> Tensor:
    """Append N - 1 projections of the embedding, scaled to its length, and return all N streams."""
    others = Tensor("projected_streams", (*_ROWS, OTHERS, d.HIDDEN))
    uses = [Use(others).renamed((d.HIDDEN, STREAM_OUT))]
    (others,) = linear(ctx, "stream_projections", x, (d.HIDDEN,), (OTHERS, STREAM_OUT), uses)
    return _at_equal_length(ctx, "spread", [x, others], x, others, Tensor("spread", _ALL))


def _merge_by_projection(ctx: Context, x: Tensor) -> Tensor:
    """Append the mean of the first stream and projections of the others, scaled to its length, and return it."""
    first, rest = _first_stream(ctx, "last_first", x), Tensor("last_others", (*_ROWS, OTHERS, STREAM_IN))
    ctx.build.view("last_others", [x], rest, whole=(STREAMS,))
    back = Tensor("gathered_streams", (*_ROWS, OTHERS, d.HIDDEN))
    weight = ctx.weight("unembed_projections.weight", OTHERS, STREAM_IN, STREAM_OUT)
    ctx.build.matmul("unembed_projections", rest, weight, (STREAM_IN,), [Use(back).renamed((d.HIDDEN, STREAM_OUT))])
    return _at_equal_length(ctx, "gather", [first, back], first, back, Tensor("gathered", _STREAM))


def _at_equal_length(
    ctx: Context, name: str, given: list[Tensor], first: Tensor, others: Tensor, out: Tensor
) -> Tensor:
    """Append the scaling of streams to the first one's length and their combination `out`; all are saved, with a length
    of each.
    """
    lengths = [Tensor(f"{name}.lengths", others.dims[:-1]), Tensor(f"{name}.length", first.dims[:-1])]
    return ctx.build.elementwise(
        name, given, out, saves=[first, others, *lengths], traffic=(4, 5), launches=(8, 12), whole=(OTHERS,)
    )


def stream_dims(ctx: Context) -> tuple[str, ...]:
    """Return the dims of the tensor that layers pass on: [B, S, D], or [B, S, streams, D]."""
    own = () if ctx.model.streams is None else (STREAMS,)
    return (d.BATCH, d.SEQUENCE, *own, d.HIDDEN)


def expand_streams(ctx: Context, x: Tensor) -> Tensor:
    """Return all streams, made from the embedding x[B, S, D]; x itself for a model with one stream."""
    streams = ctx.model.streams
    if streams is None:
        return x
    if streams.mixing is Mixing.PREDICTED:
        return _expand_by_projection(ctx, x)
    return ctx.build.elementwise("spread", [x], Tensor("spread", stream_dims(ctx)), linear=True)


def merge_streams(ctx: Context, x: Tensor) -> Tensor:
    """Return one stream made of all, before the final norm; x itself for a model with one stream."""
    streams = ctx.model.streams
    if streams is None:
        return x
    return _merge_by_projection(ctx, x) if streams.mixing is Mixing.PREDICTED else read_streams(ctx, "gather", x)[0]


def stream_sizes(model: ModelDescriptor) -> dict[str, float]:
    """Return the sizes of the dims of residual streams and of LAuReL's rank; empty for a model without either."""
    has, laurel = model.streams, {LAUREL: float(model.laurel_rank or 0)}
    if has is None:
        return laurel if model.laurel_rank is not None else {}
    count, hidden = has.count, model.hidden_size
    weights = {Mixing.HYPER: (2 + count) * count, Mixing.INJECTED: 2 * count}.get(has.mixing, 0)
    own = {STREAMS: count, MADE: count, MODES: count, OTHERS: count - 1, STREAM_IN: hidden, STREAM_OUT: hidden}
    read = {READ: weights, SCALES: PARTS_OF.get(has.mixing, 0), WRITTEN: count, LOW: has.rank or 0}
    read[DIVISIONS] = max(1, 2 * has.iterations - 1)
    return {**own, **read, **laurel}
