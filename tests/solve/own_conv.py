"""A gated short convolution: gate * conv(inner * value), each a part of x W_in, then W_out.

As Transformers has it (modeling_lfm2.py, Lfm2ShortConv). Tests copy this file to where building blocks are looked for.
"""

from __future__ import annotations

from symconfig.descriptor.sections import LayerKind
from symconfig.graph import dims as d
from symconfig.graph.blocks.common import linear, to_stream
from symconfig.graph.operator import Tensor, Use
from symconfig.graph.parts import Context, Mixer

WIDTH, JOINED, KERNEL = "own_conv_width", "joined_own_conv_width", "own_conv_kernel"


def own_conv(ctx: Context, x: Tensor, kind: LayerKind) -> Tensor:
    """y[B, S, D] from x[B, S, D]. The convolution mixes what lies along the sequence, so nothing splits that there."""
    rows = x.dims[:-1]
    gate, inner, value = (Tensor(name, (*rows, WIDTH)) for name in ("conv_gate", "conv_inner", "conv_value"))
    parts = [Use(tensor).renamed((WIDTH, JOINED)) for tensor in (gate, inner, value)]
    linear(ctx, "conv_in_proj", x, (d.HIDDEN,), (JOINED,), parts)
    with ctx.build.within("core_attn"):
        product, mixed, gated = (Tensor(name, (*rows, WIDTH)) for name in ("conv_product", "conv_mixed", "conv_gated"))
        ctx.build.elementwise("conv_multiply", [inner, value], product, saves=[inner, value])
        kernel, whole = ctx.weight("own_conv.weight", WIDTH, KERNEL), (d.SEQUENCE, KERNEL)
        ctx.build.elementwise("own_conv", [product], mixed, saves=[product], weights=[kernel], whole=whole)
        ctx.build.elementwise("conv_gating", [gate, mixed], gated, saves=[gate, mixed])
    return to_stream(ctx, "conv_out_proj", gated, aliases=("o_proj",))


PARTS = (
    Mixer(
        name="own_conv",
        build=own_conv,
        sizes=lambda model: {WIDTH: model.hidden_size, JOINED: 3 * model.hidden_size},
        tensor_dims=(JOINED, WIDTH),
        needs=(KERNEL,),
    ),
)
