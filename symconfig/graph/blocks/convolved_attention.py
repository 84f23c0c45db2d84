"""Queries and keys that two convolutions mix over a few tokens before attention (compressed convolutional attention of
ZAYA, arXiv:2510.04476), and values of which half the channels come from the token before.

Of queries and keys together: a convolution of each channel, then one among the channels of each head, both with biases;
to both the mean of query and key before them is added. Keys have a scale of each head. Transformers'
ZayaCCAProjection, ZayaQKNorm. M heads of queries and keys, C head_dim.
"""

from __future__ import annotations

from symconfig.descriptor.model import ModelDescriptor
from symconfig.graph import dims as d
from symconfig.graph.blocks.context import Context
from symconfig.graph.operator import Product, Tensor

HEADS, MADE, KERNEL, GROUPED_KERNEL = "qk_heads", "made_head_dim", "qk_conv_kernel", "qk_grouped_kernel"
_ROWS = (d.BATCH, d.SEQUENCE)


def convolved(ctx: Context, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return q[B, S, A, C], k and v[B, S, KV, C] as attention norms and reads them. Convolutions keep what they
    read.
    """
    joined = Tensor("qk_joined", (*_ROWS, HEADS, d.HEAD_DIM))
    whole = (HEADS, d.HEADS, d.KV_HEADS)
    ctx.build.elementwise("qk_join", [q, k], joined, whole=whole, linear=True)
    means = [Tensor(f"{one.name}_mean", one.dims) for one in (q, k)]
    ctx.build.elementwise("qk_means", [q, k], means[0], further=means[1:], whole=whole, linear=True, launches=(5, 6))
    by_channel = ctx.build.elementwise(
        "qk_conv", [joined], Tensor("qk_convolved", joined.dims), saves=[joined], whole=(d.SEQUENCE, HEADS),
        weights=[ctx.weight("qk_conv.weight", HEADS, d.HEAD_DIM, KERNEL),
                 ctx.weight("qk_conv.bias", HEADS, d.HEAD_DIM)],
        products=[Product("qk_conv", (*joined.dims, KERNEL))],
    )  # fmt: skip
    mixed = ctx.build.elementwise(
        "qk_grouped_conv", [by_channel], Tensor("qk_mixed", joined.dims), saves=[by_channel],
        weights=[ctx.weight("qk_grouped_conv.weight", HEADS, MADE, d.HEAD_DIM, GROUPED_KERNEL),
                 ctx.weight("qk_grouped_conv.bias", HEADS, MADE)],
        products=[Product("qk_grouped_conv", (*joined.dims, MADE, GROUPED_KERNEL))],
        whole=(d.SEQUENCE, HEADS, d.HEAD_DIM),
    )  # fmt: skip
    q, k = (
        ctx.build.elementwise(f"{one.name}_sum", [mixed, mean], Tensor(f"{one.name}_convolved", one.dims), whole=whole,
                              linear=True)
        for one, mean in zip((q, k), means, strict=True)
    )  # fmt: skip
    late = Tensor("v_late", v.dims)
    return q, k, ctx.build.elementwise("delay_values", [v], late, whole=(d.SEQUENCE,), linear=True)


def key_scale(ctx: Context, k: Tensor) -> Tensor:
    """Return keys, normed, times a number of each head."""
    scale = ctx.weight("key_scale", d.KV_HEADS)
    return ctx.build.elementwise("key_scale", [k], Tensor("k_scaled", k.dims), saves=[k], weights=[scale])


def sizes(model: ModelDescriptor) -> dict[str, float]:
    """Return the sizes of the convolutions' own dims."""
    if model.qk_convolutions is None:
        return {}
    first, second = model.qk_convolutions
    heads = model.num_attention_heads + model.num_key_value_heads
    return {HEADS: heads, MADE: model.head_dim, KERNEL: first, GROUPED_KERNEL: second}
