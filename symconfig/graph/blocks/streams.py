"""Several residual streams in place of one (DeepSeek-V4)."""

from __future__ import annotations

from dataclasses import dataclass

from symconfig.descriptor.model import ModelDescriptor
from symconfig.graph import dims as d
from symconfig.graph.blocks.common import norm, projected, residual
from symconfig.graph.operator import Element, Tensor, Use
from symconfig.graph.parts import Context

STREAMS = "residual_streams"
MADE = "made_streams"  # the streams as a product gives them
READ = "stream_weights"  # numbers of a token that weigh its streams
WRITTEN = "written_streams"
DIVISIONS = "stream_divisions"  # by the sums of rows or columns of a mixing matrix, in turn


INPUT_LAYERS, INPUT_SIZE, INPUT_ROWS = "input_layers", "layer_input_size", "layer_inputs_vocab_size"
_ROWS = (d.BATCH, d.SEQUENCE)
INPUT = Tensor("layer_input", (*_ROWS, INPUT_SIZE))


def layer_inputs(ctx: Context, tokens: Tensor, embedded: Tensor) -> None:
    """Append the per-layer inputs of all layers, as one tensor of which each layer reads a slice, and return nothing.
    An embedding of each token for every layer (Gemma 4; Transformers' Gemma4TextModel, project_per_layer_inputs): a
    table gives all layers' at once, and a projection of the token's usual embedding, normed by layer, is added. The
    tensor is held until the backward.
    """
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
    """Return the stream plus (with dropout, if the model has it) a narrow projection of it, gated by the layer's slice
    of the per-layer inputs, widened and normed, all appended. The slice is recorded as an input from another block.
    """
    given = ctx.build.from_elsewhere(INPUT)
    gate, active, product = (Tensor(f"layer_input_{name}", given.dims) for name in ("gate", "active", "product"))
    gate = projected(ctx, "layer_input_gate", stream, gate)
    ctx.build.elementwise("layer_input_activation", [gate], active, saves=[gate])
    ctx.build.elementwise("layer_input_product", [active, given], product, saves=[active, given])
    out = projected(ctx, "layer_input_projection", product, Tensor("layer_input_out", stream.dims))
    return residual(ctx, "layer_input_residual", stream, norm(ctx, "layer_input_norm", out, module="post_norm"))


_ALL, _STREAM = (*_ROWS, STREAMS, d.HIDDEN), (*_ROWS, d.HIDDEN)
SCALES = "stream_scales"  # numbers that scale the weights of reading, writing and mixing


@dataclass(frozen=True, slots=True)
class Link:
    """Say how a sublayer's result joins the streams. post: a weight of each. mixed: N x N numbers that mix them."""

    post: Tensor
    mixed: Tensor


def read_streams(ctx: Context, name: str, x: Tensor, last: bool = False) -> tuple[Tensor, Link | None]:
    """Append the reading of all streams by a sublayer, or by the head (`last`), and return (its input [B, S, D], the
    link by which its result joins the streams). The link is None for the head.

    Hyper-connections (arXiv:2409.19606; with doubly stochastic mixing mHC, arXiv:2512.24880): each sublayer reads a
    weighed sum of the streams and is written into each of them by a weight.

    Weights follow from all N streams of a token: normed without weights, a product with 2 N + N N columns (N for the
    head), scaled, and a bias, all in fp32. Streams are mixed by the N N, whose rows and columns sum to one after some
    iterations. Sigmoids and the softmax save their results; a division saves dividend and divisor of each iteration
    (not for the head). Transformers' DeepseekV4HyperConnection.
    """
    wide, lengths = Tensor(f"{name}_wide", _ALL, Element.FP32), Tensor(f"{name}.statistics", _ROWS, Element.FP32)
    normed, over = Tensor(f"{name}_normed", _ALL, Element.FP32), {STREAMS: 1, d.HIDDEN: 1}
    ctx.build.elementwise(f"{name}_norm", [x], normed, saves=[wide, lengths], reduces=over, traffic=(2, 3))
    raw = Tensor(f"{name}_raw", (*_ROWS, WRITTEN if last else READ), Element.FP32)
    raw = projected(ctx, f"{name}_fn", normed, raw, over=2)
    pre = Tensor(f"{name}_pre", (*_ROWS, STREAMS), Element.FP32)
    link = Link(Tensor(f"{name}_post", pre.dims), Tensor(f"{name}_mixed", (*_ROWS, STREAMS, MADE)))
    made = [] if last else [link.post, link.mixed]
    kept = [Tensor(f"{one.name}.active", one.dims, Element.FP32) for one in (pre, *made)]
    if not last:
        kept.append(Tensor(f"{name}_divided", (*_ROWS, DIVISIONS, STREAMS, MADE), Element.FP32))
        kept.append(Tensor(f"{name}_divisors", (*_ROWS, DIVISIONS, STREAMS), Element.FP32))
    weights = [ctx.weight(f"{name}_base", raw.dims[-1]), ctx.weight(f"{name}_scale", *(() if last else (SCALES,)))]
    whole = (raw.dims[-1], STREAMS, *(() if last else (MADE,)))
    ctx.build.elementwise(
        f"{name}_weights", [raw], pre, further=made, saves=[raw, *kept], weights=weights, whole=whole, launches=(12, 20)
    )
    read = Tensor(f"{name}_read", _STREAM)
    out = ctx.build.elementwise(f"{name}_sum", [x, pre], read, saves=[x, pre], contracted=(STREAMS,))
    return out, None if last else link


def write_streams(ctx: Context, name: str, x: Tensor, done: Tensor, link: Link | None) -> Tensor:
    """Append the sum of the sublayer's result `done`, weighed per stream, and all streams x, mixed by the link's
    matrix, and return the streams, named `name`. Fails an assertion if the link is None.
    """
    assert link is not None
    share = Tensor(f"{name}_share", _ALL)
    ctx.build.elementwise(f"{name}_share", [done, link.post], share, saves=[done, link.post])
    mixed = Tensor(f"{name}_streams", (*_ROWS, MADE, d.HIDDEN))
    ctx.build.product(f"{name}_mix", Use(x), Use(link.mixed), (STREAMS,), mixed)
    return ctx.build.elementwise(name, [Use(mixed).renamed((MADE, STREAMS)), share], Tensor(name, _ALL), linear=True)


def stream_dims(ctx: Context) -> tuple[str, ...]:
    """Return the dims of the tensor that layers pass on: [B, S, D], or [B, S, streams, D]."""
    own = () if ctx.model.streams is None else (STREAMS,)
    return (d.BATCH, d.SEQUENCE, *own, d.HIDDEN)


def sizes(model: ModelDescriptor) -> dict[str, float]:
    """Return the sizes of the dims of per-layer inputs and of residual streams, by name; without those that the model
    lacks. DIVISIONS is 2 * streams.iterations - 1, at least 1.
    """
    result: dict[str, float] = {}
    if (own := model.layer_inputs) is not None:
        result |= {INPUT_LAYERS: model.num_hidden_layers, INPUT_SIZE: own.size, INPUT_ROWS: own.vocab_size}
    if (has := model.streams) is not None:
        result |= {STREAMS: has.count, MADE: has.count, WRITTEN: has.count, READ: (2 + has.count) * has.count}
        result |= {SCALES: 3, DIVISIONS: max(1, 2 * has.iterations - 1)}
    return result
