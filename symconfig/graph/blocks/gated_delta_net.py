"""Gated delta net (Qwen3-Next, Qwen3.5, OLMo-hybrid): linear attention whose state is corrected, not only added to.

x[B, S, D] -> q, k, v, z, b, a; a causal convolution over q, k, v; the delta rule by chunks; a gated norm; a projection.
Sizes are spelled as Qwen3NextConfig has them. Transformers' Qwen3NextGatedDeltaNet, Qwen3_5GatedDeltaNet and
OlmoHybridGatedDeltaNet, whose projections are two, four and six: here each of the six is one where they are not joined.
Megatron-LM's core/ssm/gated_delta_net has one.
"""

from __future__ import annotations

from symconfig.descriptor.layers import LayerKind
from symconfig.descriptor.model import ModelDescriptor
from symconfig.graph import dims as d
from symconfig.graph.blocks import stated
from symconfig.graph.blocks.common import linear, projected
from symconfig.graph.blocks.context import Context
from symconfig.graph.blocks.convolved import Activation, convolution, gated_norm
from symconfig.graph.blocks.delta import CHUNK_SIZE, delta_rule, normalised
from symconfig.graph.implementation import ScanKernel
from symconfig.graph.operator import Element, Tensor, Use
from symconfig.graph.parts import Mixer

NAME = "gated_delta_net"
KEY_HEADS, VALUE_HEADS = "linear_num_key_heads", "linear_num_value_heads"
KEY_DIM, VALUE_DIM = "linear_key_head_dim", "linear_value_head_dim"
KERNEL = "linear_conv_kernel_dim"
NEEDS = (KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM, KERNEL)
IN_WIDTH, CHANNELS = "delta_in_width", "delta_conv_channels"
_ROWS = (d.BATCH, d.SEQUENCE)


def gated_delta_net(ctx: Context, x: Tensor, kind: LayerKind) -> Tensor:
    """Return y[B, S, D] from x[B, S, D]."""
    q, k, v, z, b, a = _projected(ctx, x)
    q, k, v = convolution(ctx, "conv1d", [q, k, v], CHANNELS, KERNEL)
    q, k = normalised(ctx, q, k)
    shares = [(VALUE_HEADS, KEY_HEADS)]
    if ctx.how.scan is ScanKernel.GATED:  # Megatron-LM's layer repeats keys for all values that they serve
        q, k = (_repeated(ctx, tensor) for tensor in (q, k))
        shares = []
    beta, decay = _gates(ctx, b, a)
    scanned = delta_rule(ctx, q, k, v, decay, beta, shares)
    normed = gated_norm(ctx, "out_norm", scanned, z, Activation.SILU, module="gdn_norm_out")
    out = Tensor("attention_out", x.dims)
    return projected(ctx, "out_proj", normed, out, over=2, aliases=("o_proj",))


def _projected(ctx: Context, x: Tensor) -> list[Tensor]:
    """Return q, k, v, z of their heads and channels, b and a of each value head."""
    wide = [
        Tensor(name, (*_ROWS, heads, channels))
        for name, heads, channels in (
            ("delta_q", KEY_HEADS, KEY_DIM),
            ("delta_k", KEY_HEADS, KEY_DIM),
            ("delta_v", VALUE_HEADS, VALUE_DIM),
            ("delta_z", VALUE_HEADS, VALUE_DIM),
        )
    ]
    narrow = [Tensor(name, (*_ROWS, VALUE_HEADS)) for name in ("delta_b", "delta_a")]
    parts = [*wide, *narrow]
    if ctx.how.linear.joined:
        uses = [Use(part).renamed((part.dims[2], IN_WIDTH)) for part in parts]
        return linear(ctx, "in_proj", x, (d.HIDDEN,), (IN_WIDTH,), uses)
    return [projected(ctx, part.name.replace("delta", "in_proj"), x, part) for part in parts]


def _repeated(ctx: Context, tensor: Tensor) -> Tensor:
    result = Tensor(f"{tensor.name}_repeated", (*_ROWS, VALUE_HEADS, KEY_DIM))
    return ctx.build.elementwise(
        f"repeat_{tensor.name}", [tensor], result, together=[(VALUE_HEADS, KEY_HEADS)], whole=(d.SEQUENCE,), linear=True
    )


def _gates(ctx: Context, b: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    """Return beta = sigmoid(b), and the decay -exp(A_log) softplus(a + dt_bias) in fp32; each keeps what its slope
    needs.
    """
    beta, decay = Tensor("beta", b.dims), Tensor("decay", a.dims, Element.FP32)
    steps, soft = (Tensor(name, a.dims, Element.FP32) for name in ("decay_steps", "decay_softplus"))
    rates = [Tensor(name, (VALUE_HEADS,), Element.FP32) for name in ("decay_rate", "decay_rate_negated")]
    weights = [ctx.weight(name, VALUE_HEADS) for name in ("A_log", "dt_bias")]
    ctx.build.elementwise(
        "gates",
        [b, a],
        beta,
        further=[decay],
        saves=[beta, steps, soft, *(rates if ctx.how.scan is ScanKernel.WHOLE else [])],
        weights=weights,
        launches=(6, 6),
        whole=(d.SEQUENCE,),
    )
    return beta, decay


def _sizes(model: ModelDescriptor) -> dict[str, float]:
    given = model.mixer(NAME).sizes
    keys, values = given[KEY_HEADS] * given[KEY_DIM], given[VALUE_HEADS] * given[VALUE_DIM]
    narrow = 2 * given[VALUE_HEADS]
    return {CHANNELS: 2 * keys + values, IN_WIDTH: 2 * keys + 2 * values + narrow, d.CHUNK: CHUNK_SIZE}


PARTS = (
    Mixer(
        name=NAME,
        build=gated_delta_net,
        sizes=_sizes,
        tensor_dims=(IN_WIDTH, CHANNELS, VALUE_HEADS, KEY_HEADS),
        exchanged_dims=(CHANNELS, VALUE_HEADS, KEY_HEADS),
        pieces=(KEY_HEADS, VALUE_HEADS),
        exchanged_pieces=(KEY_HEADS, VALUE_HEADS),
        check=stated.check(NEEDS, (), {VALUE_HEADS: KEY_HEADS}),
    ),
)
