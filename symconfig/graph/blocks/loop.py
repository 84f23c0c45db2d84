"""Where a turn of layers that run several times starts: another state is added to the stream (see `Loop`).

Transformers' HrmTextModel adds the two stacks' states. DoryModel norms the stream before each turn, and adds the norm
of what came to the first one.
"""

from __future__ import annotations

from symconfig.descriptor.layers import LayerKind
from symconfig.graph.blocks.context import Context
from symconfig.graph.blocks.norms import norm
from symconfig.graph.operator import Tensor

STATE = "loop_input"


def joined(ctx: Context, x: Tensor, kind: LayerKind) -> Tensor:
    """Return the stream that a layer reads, with what joins it there."""
    loop = ctx.model.loop
    if loop is None or not kind.joins:
        return x
    if not loop.normed:
        return _sum(ctx, x, ctx.build.from_elsewhere(Tensor(STATE, x.dims)))
    state = ctx.build.from_elsewhere(Tensor(STATE, x.dims)) if kind.again else norm(ctx, STATE, x)
    return _sum(ctx, norm(ctx, "loop_norm", x), state)


def _sum(ctx: Context, x: Tensor, state: Tensor) -> Tensor:
    return ctx.build.elementwise("loop_join", [x, state], Tensor("loop_joined", x.dims), linear=True)
