"""A real-gated linear recurrent unit (Griffin, arXiv 2402.19427; RecurrentGemma).

x[B, S, D] -> a gate y, and x, which a causal convolution and the recurrence mix; two gates of the recurrence are block
by block, a matrix for each of H num_attention_heads blocks of lru_width / H channels. Transformers'
RecurrentGemmaRecurrentBlock.

The recurrence is element-wise in fp32, and taken as one kernel that keeps what it reads and its result. Transformers
itself runs it token after token, each step a few kernels."""

from __future__ import annotations

from symconfig.descriptor.layers import LayerKind
from symconfig.descriptor.model import ModelDescriptor
from symconfig.graph import dims as d
from symconfig.graph.blocks import stated
from symconfig.graph.blocks.common import projected
from symconfig.graph.blocks.context import Context
from symconfig.graph.blocks.convolved import convolution
from symconfig.graph.operator import Tensor, Use
from symconfig.graph.parts import Mixer

NAME = "rg_lru"
WIDTH, KERNEL = "lru_width", "conv1d_width"
BLOCK, BLOCK_OUT, CHANNELS = "lru_block_width", "lru_block_outputs", "lru_channels"


def rg_lru(ctx: Context, x: Tensor, kind: LayerKind) -> Tensor:
    """Return y[B, S, D] from x[B, S, D]."""
    parts = (Tensor(name, (*x.dims[:-1], d.HEADS, BLOCK)) for name in ("linear_y", "linear_x"))
    gate, value = (projected(ctx, part.name, x, part, bias=True) for part in parts)
    active = Tensor("lru_gate_active", gate.dims)
    ctx.build.elementwise("lru_activation", [gate], active, saves=[gate])
    (mixed,) = convolution(ctx, "conv_1d", [value], CHANNELS, KERNEL, bias=True)
    gates = [_block_gate(ctx, mixed, name) for name in ("input_gate", "recurrent_gate")]
    scanned = Tensor("scanned", mixed.dims)
    ctx.build.elementwise(
        "scan",
        [mixed, *(Use(each).renamed((BLOCK_OUT, BLOCK)) for each in gates)],
        scanned,
        saves=[mixed, *gates, scanned],
        weights=[ctx.weight("recurrent_param", d.HEADS, BLOCK)],
        whole=(d.SEQUENCE,),
    )
    gated, out = Tensor("lru_gated", scanned.dims), Tensor("attention_out", x.dims)
    ctx.build.elementwise("lru_gating", [scanned, active], gated, saves=[scanned, active])
    return projected(ctx, "linear_out", gated, out, bias=True, over=2)


def _block_gate(ctx: Context, x: Tensor, name: str) -> Tensor:
    """Gate by one matrix and bias for each block of channels."""
    out = Tensor(name, (*x.dims[:-1], BLOCK_OUT))
    weight = ctx.weight(f"{name}_weight", d.HEADS, BLOCK, BLOCK_OUT)
    ctx.build.matmul(name, x, weight, (BLOCK,), [Use(out)], ctx.weight(f"{name}_bias", d.HEADS, BLOCK_OUT))
    return out


def _sizes(model: ModelDescriptor) -> dict[str, float]:
    width = model.mixer(NAME).sizes[WIDTH]
    block = width // model.num_attention_heads
    return {BLOCK: block, BLOCK_OUT: block, CHANNELS: width}


PARTS = (Mixer(name=NAME, build=rg_lru, sizes=_sizes, tensor_dims=(CHANNELS,), check=stated.check((WIDTH, KERNEL))),)
