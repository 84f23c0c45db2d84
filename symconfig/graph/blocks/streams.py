"""Several residual streams: what spreads the embedding over them, and what gathers them before the head.

x[B, S, N, D] between layers, N residual_streams. How a layer reads and writes them: `altup` (predicted, corrected),
`hyper` (read and written by each sublayer).
"""

from __future__ import annotations

from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.reuse import Mixing
from symconfig.graph import dims as d
from symconfig.graph.blocks import altup, hyper
from symconfig.graph.blocks.context import Context
from symconfig.graph.blocks.stream_dims import (
    DIVISIONS,
    LOW,
    MADE,
    MODES,
    OTHERS,
    READ,
    STREAM_IN,
    STREAM_OUT,
    STREAMS,
    WRITTEN,
)
from symconfig.graph.operator import Tensor


def stream_dims(ctx: Context) -> tuple[str, ...]:
    """Return the dims of what goes from layer to layer."""
    own = () if ctx.model.streams is None else (STREAMS,)
    return (d.BATCH, d.SEQUENCE, *own, d.HIDDEN)


def spread(ctx: Context, x: Tensor) -> Tensor:
    """Return all streams from the embedding x[B, S, D]."""
    streams = ctx.model.streams
    if streams is None:
        return x
    if streams.mixing is Mixing.PREDICTED:
        return altup.spread(ctx, x)
    return ctx.build.elementwise("spread", [x], Tensor("spread", stream_dims(ctx)), linear=True)


def gathered(ctx: Context, x: Tensor) -> Tensor:
    """Return one stream of all, before the last norm."""
    streams = ctx.model.streams
    if streams is None:
        return x
    return altup.gathered(ctx, x) if streams.mixing is Mixing.PREDICTED else hyper.read(ctx, "gather", x)[0]


def sizes(model: ModelDescriptor) -> dict[str, float]:
    """Return the sizes of the streams' own dims, and of the path beside attention, which may lead around a
    single one.
    """
    has, laurel = model.streams, {altup.LAUREL: float(model.laurel_rank or 0)}
    if has is None:
        return laurel if model.laurel_rank is not None else {}
    count, hidden = has.count, model.hidden_size
    weights = {Mixing.HYPER: (2 + count) * count, Mixing.INJECTED: 2 * count}.get(has.mixing, 0)
    own = {STREAMS: count, MADE: count, MODES: count, OTHERS: count - 1, STREAM_IN: hidden, STREAM_OUT: hidden}
    read = {READ: weights, hyper.SCALES: hyper.PARTS_OF.get(has.mixing, 0), WRITTEN: count, LOW: has.rank or 0}
    read[DIVISIONS] = max(1, 2 * has.iterations - 1)
    return {**own, **read, **laurel}
