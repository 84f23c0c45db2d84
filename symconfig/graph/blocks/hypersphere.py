"""Learned scales in place of norms with weights (nGPT, arXiv:2410.01131; Transformers' Dory).

Scales are weights as wide as what they scale. Backward reads what was scaled; that of a residual's rate reads how far
the result is from the stream.
"""

from __future__ import annotations

from symconfig.graph.blocks.context import Context
from symconfig.graph.operator import Tensor


def drawn(ctx: Context, name: str, stream: Tensor, branch: Tensor) -> Tensor:
    """Return stream + rate[D] (branch - stream), with a rate of this sublayer's own: three eager kernels."""
    way, rate = Tensor(f"{name}.way", stream.dims), ctx.weight(f"{name}.rate", stream.dims[-1])
    ctx.build.elementwise(f"{name}_way", [branch, stream], way, linear=True)
    step = Tensor(f"{name}.step", stream.dims)
    ctx.build.elementwise(f"{name}_step", [way], step, saves=[way], weights=[rate])
    return ctx.build.elementwise(name, [stream, step], Tensor(name, stream.dims), linear=True)


def scaled(ctx: Context, x: Tensor, *dims: str) -> Tensor:
    """Return x times a learned vector over some of its dims; x itself where the model has none."""
    if not ctx.model.hypersphere:
        return x
    weight = ctx.weight(f"{x.name}.scale", *dims)
    return ctx.build.elementwise(
        f"{x.name}_scale", [x], Tensor(f"{x.name}_scaled", x.dims), saves=[x], weights=[weight]
    )
