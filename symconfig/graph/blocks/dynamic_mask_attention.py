"""Attention under a mask that its values make (Doge, arXiv:2507.02748's dynamic mask attention).

A value gives one number for each head of keys, m = exp(a softplus(w v)), which is added to every query's score of that
key. Transformers' DogeAttention builds all of the mask, which the backward needs, and copies it for each query head.
Of sequences longer than keep_window_size it also keeps where a key is not among a query's best, a byte for each: that
is left out.
"""

from __future__ import annotations

from collections.abc import Mapping

from symconfig.descriptor.layers import LayerKind
from symconfig.descriptor.model import ModelDescriptor
from symconfig.graph import dims as d
from symconfig.graph.attended import FULL
from symconfig.graph.blocks import stated
from symconfig.graph.blocks.attention import normed_and_turned, projections, result
from symconfig.graph.blocks.attention_core import core
from symconfig.graph.blocks.common import projected
from symconfig.graph.blocks.context import Context
from symconfig.graph.blocks.indexer import Read
from symconfig.graph.operator import Element, Tensor, Use
from symconfig.graph.parts import Mixer

NAME, STEPS = "dynamic_mask_attention", "mask_heads"


def attention(ctx: Context, x: Tensor, kind: LayerKind) -> Tensor:
    """Return o[B, S, D] from x[B, S, D]."""
    (q, k, v), gate = projections(ctx, x)
    q, k = normed_and_turned(ctx, q, k, kind)
    return result(ctx, x, core(ctx, q, k, v, Read(FULL, _mask(ctx, v), kept=True)), gate)


def _mask(ctx: Context, v: Tensor) -> Tensor:
    """Return mask[B, A, S, T] from v[B, T, KV, C]."""
    rows, steps = v.dims[:-2], Tensor("mask_steps", (*v.dims[:-2], STEPS))
    steps = projected(ctx, "dt_proj", v, steps, ctx.model.qkv_bias, over=2)
    given, made = Use(steps).renamed((STEPS, d.KV_HEADS)), Tensor("mask_numbers", (*rows, d.KV_HEADS))
    soft = Tensor("mask_softplus", made.dims)
    rate = ctx.weight("mask_rate", d.KV_HEADS)
    ctx.build.elementwise(
        "mask_numbers", [given], made, saves=[steps, soft, made], weights=[rate], launches=(3, 4), traffic=(3, 3)
    )
    before, mask = Tensor("causal_mask", (d.BATCH, d.SEQUENCE, d.KEYS), Element.MASK), (d.SEQUENCE, d.KEYS)
    own = Tensor("mask_of_keys", (d.BATCH, d.KV_HEADS, *mask))
    ctx.build.elementwise("fill_mask", [Use(made).renamed((d.SEQUENCE, d.KEYS))], own, saves=[before])
    if ctx.model.num_attention_heads == ctx.model.num_key_value_heads:
        return own
    out, heads = Tensor("mask", (d.BATCH, d.HEADS, *mask)), [(d.HEADS, d.KV_HEADS)]
    return ctx.build.elementwise("repeat_mask", [own], out, together=heads, linear=True)


def _sizes(model: ModelDescriptor) -> Mapping[str, float]:
    return {STEPS: model.num_key_value_heads}


PARTS = (Mixer(name=NAME, build=attention, sizes=_sizes, check=stated.check(())),)
