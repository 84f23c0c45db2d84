"""A gated short convolution (LFM2): C times the convolution of B times x, each a third of one projection.

Transformers' Lfm2ShortConv; its size is spelled as Lfm2Config has it. Both products are element-wise kernels of
PyTorch.
"""

from __future__ import annotations

from symconfig.descriptor.layers import LayerKind
from symconfig.graph import dims as d
from symconfig.graph.blocks import stated
from symconfig.graph.blocks.common import linear, projected
from symconfig.graph.blocks.context import Context
from symconfig.graph.blocks.convolved import convolution
from symconfig.graph.operator import Tensor, Use
from symconfig.graph.parts import Mixer

NAME = "short_conv"
KERNEL, BIAS = "conv_L_cache", "conv_bias"
WIDTH, JOINED = "short_conv_width", "joined_short_conv_width"


def short_conv(ctx: Context, x: Tensor, kind: LayerKind) -> Tensor:
    """Return y[B, S, D] from x[B, S, D]. The convolution mixes what lies along the sequence, so nothing splits that
    there.
    """
    rows, bias = x.dims[:-1], BIAS in ctx.model.mixer(NAME).switches
    before, behind, value = (Tensor(name, (*rows, WIDTH)) for name in ("conv_b", "conv_c", "conv_x"))
    uses = [Use(part).renamed((WIDTH, JOINED)) for part in (before, behind, value)]
    before, behind, value = linear(ctx, "in_proj", x, (d.HIDDEN,), (JOINED,), uses, bias)
    product, gated = (Tensor(name, value.dims) for name in ("conv_product", "conv_gated"))
    ctx.build.elementwise("conv_multiply", [before, value], product, saves=[before, value])
    (mixed,) = convolution(ctx, "conv", [product], WIDTH, KERNEL, bias)
    ctx.build.elementwise("conv_gating", [behind, mixed], gated, saves=[behind, mixed])
    out = Tensor("attention_out", x.dims)
    return projected(ctx, "out_proj", gated, out, bias, aliases=("o_proj",))


PARTS = (
    Mixer(
        name=NAME,
        build=short_conv,
        sizes=lambda model: {WIDTH: model.hidden_size, JOINED: 3 * model.hidden_size},
        tensor_dims=(JOINED, WIDTH),
        pieces=(WIDTH,),
        check=stated.check((KERNEL,), (BIAS,)),
    ),
)
