"""Differential attention (Ye et al. 2024, arXiv 2410.05258), as Transformers' DiffLlamaAttention runs it.

Heads are pairs: head i and head i + A/2 see values of two heads together. Each half of the value heads is repeated for
both halves of the key heads, and attention runs once for each; what the second half of the heads found is taken from
the first one's, times a learned number, and the difference is normed over both halves of the values.
"""

from __future__ import annotations

from collections.abc import Sequence

from symconfig.descriptor.layers import LayerKind
from symconfig.descriptor.layers import Mixer as Declared
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import Position
from symconfig.graph import dims as d
from symconfig.graph.attended import FULL
from symconfig.graph.blocks.attention import rotated
from symconfig.graph.blocks.attention_core import copied, core
from symconfig.graph.blocks.common import projected
from symconfig.graph.blocks.context import Context
from symconfig.graph.blocks.indexer import Read
from symconfig.graph.implementation import Kernel
from symconfig.graph.operator import Element, Tensor, Use
from symconfig.graph.parts import Mixer

NAME = "differential_attention"
PAIRS, VALUE_PAIRS, BOTH = "head_pairs", "value_head_pairs", "both_head_dims"
TWICE, KEYS_TWICE = "heads_twice", "key_heads_twice"  # heads of both runs
LAMBDAS = ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2")
_ROWS = (d.BATCH, d.SEQUENCE)


def differential_attention(ctx: Context, x: Tensor, kind: LayerKind) -> Tensor:
    """Return o[B, S, D] from x[B, S, D], each projection alone."""
    q, k, v = (
        projected(ctx, f"{name}_proj", x, Tensor(name, (*_ROWS, heads, d.HEAD_DIM)), ctx.model.qkv_bias)
        for name, heads in (("q", d.HEADS), ("k", d.KV_HEADS), ("v", d.KV_HEADS))
    )
    if ctx.model.position is Position.ROPE:
        q, k = rotated(ctx, "rope_q", q, "q_rotated"), rotated(ctx, "rope_k", k, "k_rotated")
    o = _normed(ctx, _difference(ctx, _attended(ctx, q, k, v)))
    out = Tensor("attention_out", x.dims)
    return projected(ctx, "o_proj", o, out, ctx.model.attention_out_bias, over=2)


def _attended(ctx: Context, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return what all heads read from the values of both halves, joined. A flash kernel reads queries and keys
    twice.
    """
    heads, pairs = [(TWICE, d.HEADS)], [(KEYS_TWICE, d.KV_HEADS)]
    values = Tensor("v_halves", (*_ROWS, KEYS_TWICE, d.HEAD_DIM))
    ctx.build.elementwise("repeat_halves", [v], values, together=pairs, linear=True)
    if ctx.how.attention.kernel is Kernel.FLASH:
        halves = _flash(ctx, q, k, values)
    else:
        queries, keys = Tensor("q_twice", (*_ROWS, TWICE, d.HEAD_DIM)), Tensor("k_twice", values.dims)
        ctx.build.elementwise("repeat_queries", [q], queries, together=heads, linear=True)
        ctx.build.elementwise("repeat_keys_twice", [k], keys, together=pairs, linear=True)
        halves = core(ctx, queries, keys, values, Read(FULL))
    joined = Tensor("attention_halves", (*_ROWS, d.HEADS, BOTH))
    return ctx.build.elementwise(
        "join_halves", [copied(ctx, halves)], joined, together=[*heads, (BOTH, d.HEAD_DIM)], linear=True
    )


def _flash(ctx: Context, q: Tensor, k: Tensor, values: Tensor) -> Tensor:
    with ctx.build.module("core_attn"):
        return ctx.build.attention(
            Use(q).renamed((d.HEADS, TWICE)),
            Use(k).renamed((d.SEQUENCE, d.KEYS), (d.KV_HEADS, KEYS_TWICE)),
            v=Use(values).renamed((d.SEQUENCE, d.KEYS)),
            keys=FULL,
            in_fp8=ctx.how.attention.in_fp8,
        )


def _difference(ctx: Context, joined: Tensor) -> Tensor:
    """Return the first half of the heads less the second, times a number that four vectors give."""
    weights = [ctx.weight(name, d.HEAD_DIM) for name in LAMBDAS]
    out, pairs = Tensor("attention_difference", (*_ROWS, PAIRS, BOTH)), [(d.HEADS, PAIRS)]
    return ctx.build.elementwise(
        "subtract_pairs", [joined], out, saves=[joined], weights=weights, together=pairs, launches=(10, 14)
    )


def _normed(ctx: Context, x: Tensor) -> Tensor:
    """Return torch's own RMSNorm, which is one kernel, times a number of the layer's."""
    statistics = Tensor("pair_norm.statistics", x.dims[:-1], Element.FP32)
    out, over = Tensor("attention_pairs", x.dims), {BOTH: 1}
    return ctx.build.elementwise(
        "pair_norm", [x], out, saves=[x, statistics], traffic=(2, 2), launches=(2, 2), reduces=over
    )


def _sizes(model: ModelDescriptor) -> dict[str, float]:
    pairs, values = model.num_attention_heads // 2, model.num_key_value_heads // 2
    twice = {TWICE: 4 * pairs, KEYS_TWICE: 4 * values}
    return {PAIRS: pairs, VALUE_PAIRS: values, BOTH: 2 * model.head_dim, **twice}


def _check(mixer: Declared) -> Sequence[str]:
    return [f"{NAME} has no sizes and no switches"] if mixer.sizes or mixer.switches else []


PARTS = (
    Mixer(
        name=NAME,
        build=differential_attention,
        sizes=_sizes,
        tensor_dims=(TWICE, KEYS_TWICE, PAIRS),
        pieces=(PAIRS, VALUE_PAIRS),
        check=_check,
    ),
)
