"""Kimi delta attention (Kimi Linear, arXiv 2510.26692): the delta rule with a decay for each channel of a key.

Sizes are spelled as KimiLinearConfig has them; Transformers' KimiLinearDeltaAttention. Decays and output gates come
through narrow projections of one head's width, which no axis splits, or each through one projection of all heads'
width (Ling 3, BailingHybridDeltaAttention).
"""

from __future__ import annotations

from symconfig.descriptor.layers import LayerKind
from symconfig.descriptor.model import ModelDescriptor
from symconfig.graph import dims as d
from symconfig.graph.blocks import stated
from symconfig.graph.blocks.common import projected
from symconfig.graph.blocks.context import Context
from symconfig.graph.blocks.convolved import Activation, convolution, gated_norm
from symconfig.graph.blocks.delta import CHUNK_SIZE, delta_rule, normalised
from symconfig.graph.operator import Element, Tensor
from symconfig.graph.parts import Mixer

NAME = "kimi_delta_attention"
HEADS, HEAD_DIM, KERNEL = "linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim"
NEEDS = (HEADS, HEAD_DIM, KERNEL)
WHOLE_DECAY, WHOLE_GATE = "whole_decay_proj", "whole_gate_proj"  # each in place of two narrow ones
VALUE_DIM, LOW, CHANNELS = "linear_value_channels", "linear_low_width", "kda_conv_channels"
_ROWS = (d.BATCH, d.SEQUENCE)


def kimi_delta_attention(ctx: Context, x: Tensor, kind: LayerKind) -> Tensor:
    """Return y[B, S, D] from x[B, S, D]."""
    q, k, v = (
        projected(ctx, f"{part}_proj", x, Tensor(f"delta_{part}", (*_ROWS, HEADS, channels)))
        for part, channels in (("q", HEAD_DIM), ("k", HEAD_DIM), ("v", VALUE_DIM))
    )
    q, k, v = convolution(ctx, "conv1d", [q, k, v], CHANNELS, KERNEL)
    q, k = normalised(ctx, q, k)
    b, beta = projected(ctx, "b_proj", x, Tensor("delta_b", (*_ROWS, HEADS))), Tensor("beta", (*_ROWS, HEADS))
    scanned = delta_rule(
        ctx, q, k, v, _decay(ctx, x), ctx.build.elementwise("beta", [b], beta, saves=[beta], whole=(d.SEQUENCE,))
    )
    gate = _narrowed(ctx, x, "g", Tensor("delta_gate", (*_ROWS, HEADS, VALUE_DIM)), WHOLE_GATE)
    normed = gated_norm(ctx, "o_norm", scanned, gate, Activation.SIGMOID)
    out = Tensor("attention_out", x.dims)
    return projected(ctx, "o_proj", normed, out, over=2)


def _narrowed(ctx: Context, x: Tensor, name: str, out: Tensor, whole: str) -> Tensor:
    """Project through one head's width. whole: the switch that says that there is one projection only."""
    if whole in ctx.model.mixer(NAME).switches:
        return projected(ctx, f"{name}_proj", x, out)
    low = projected(ctx, f"{name}_a_proj", x, Tensor(f"{name}_low", (*_ROWS, LOW)))
    return projected(ctx, f"{name}_b_proj", low, out)


def _decay(ctx: Context, x: Tensor) -> Tensor:
    """Return -exp(A_log) softplus(f + dt_bias) in fp32, whose softplus is made of an exponential, a logarithm and a
    choice (KimiLinearForgetGate). Behind a whole projection it is a softplus, or the sigmoid of the product times a
    bound, and narrowed (BailingHybridForgetGate): both keep the sum and their own result.
    """
    f = _narrowed(ctx, x, "f", Tensor("delta_f", (*_ROWS, HEADS, HEAD_DIM)), WHOLE_DECAY)
    whole = WHOLE_DECAY in ctx.model.mixer(NAME).switches
    decay = Tensor("decay", f.dims, Element.ACTIVATION if whole else Element.FP32)
    parts = ("decay_sum", "decay_active") if whole else ("decay_exp", "decay_sum", "decay_softplus")
    kept = [Tensor(name, f.dims, Element.FP32) for name in parts]
    if not whole:
        kept.append(Tensor("decay_linear", f.dims, Element.MASK))
        kept += [Tensor(name, (HEADS,), Element.FP32) for name in ("decay_rate", "decay_rate_negated")]
    weights = [ctx.weight("A_log", HEADS), ctx.weight("dt_bias", HEADS, HEAD_DIM)]
    return ctx.build.elementwise(
        "forget_gate", [f], decay, saves=kept, weights=weights, traffic=(2, 1), launches=(7, 8)
    )


def _sizes(model: ModelDescriptor) -> dict[str, float]:
    given = model.mixer(NAME).sizes
    width = given[HEAD_DIM]
    return {VALUE_DIM: width, LOW: width, CHANNELS: 3 * given[HEADS] * width, d.CHUNK: CHUNK_SIZE}


PARTS = (
    Mixer(
        name=NAME,
        build=kimi_delta_attention,
        sizes=_sizes,
        tensor_dims=(CHANNELS, HEADS),
        exchanged_dims=(CHANNELS, HEADS),
        pieces=(HEADS,),
        exchanged_pieces=(HEADS,),
        check=stated.check(NEEDS, (WHOLE_DECAY, WHOLE_GATE)),
    ),
)
