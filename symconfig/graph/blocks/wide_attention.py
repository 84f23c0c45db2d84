"""Attention with other key/value heads and head widths than the model's, in some of its layers (Gemma 4, MiMo)."""

from __future__ import annotations

from symconfig.descriptor.layers import LayerKind, Pairs
from symconfig.descriptor.sections import Position
from symconfig.graph import dims as d
from symconfig.graph.blocks.attention import Read, apply_rope, borrow_kv, contiguous, core, lend_kv
from symconfig.graph.blocks.common import norm, projected, to_stream
from symconfig.graph.builder import Context
from symconfig.graph.operator import Tensor
from symconfig.graph.parts import Mixer

WIDE = "wide_attention"
KV_HEADS, WIDTH, ROTARY = "wide_key_value_heads", "wide_head_dim", "wide_rotary_dim"
VALUE_WIDTH = "wide_value_dim"  # of values, where it is not that of queries and keys
KEYS_ARE_VALUES = "keys_are_values"
_ROWS = (d.BATCH, d.SEQUENCE)


def wide_attention(ctx: Context, x: Tensor, kind: LayerKind) -> Tensor:
    """Append attention with key/value heads and head widths of its own and return o[B, S, D] from x[B, S, D].

    Query heads are the model's. Projections are separate; there are no sinks. Values have the head width unless the
    mixer states another; with the switch `keys_are_values` they are the keys before norm and rotation. Values are
    normed if the model has v_norm. A layer that borrows computes only queries; one that lends makes keys and values
    inputs of later layers.
    """
    bias = ctx.model.qkv_bias
    q = projected(ctx, "q_proj", x, Tensor("q", (*_ROWS, d.HEADS, WIDTH)), bias)
    if kind.pairs is Pairs.BORROWED:
        k, v = borrow_kv(ctx, (*_ROWS, KV_HEADS), (WIDTH, WIDTH), kind)
        q = _normed_and_rotated(ctx, q)
    else:
        k = projected(ctx, "k_proj", x, Tensor("k", (*_ROWS, KV_HEADS, WIDTH)), bias)
        mixer = ctx.model.mixer(WIDE)
        width = VALUE_WIDTH if mixer.sizes.get(VALUE_WIDTH) else WIDTH
        values = Tensor("v", (*_ROWS, KV_HEADS, width))
        v = k if KEYS_ARE_VALUES in mixer.switches else projected(ctx, "v_proj", x, values, bias)
        if ctx.model.v_norm:
            v = norm(ctx, "v_norm", v, width, "qk_norm", weight=())
        q, k = _normed_and_rotated(ctx, q), _normed_and_rotated(ctx, k)
        if kind.pairs is Pairs.LENT:
            k, v = lend_kv(ctx, k, v, kind)
    o = contiguous(ctx, core(ctx, q, k, v, Read(d.KEYS_FULL)))
    return to_stream(ctx, "o_proj", o, ctx.model.attention_out_bias)


def _normed_and_rotated(ctx: Context, given: Tensor) -> Tensor:
    """Return queries or keys after the norm, if the model has query/key norms, and the rotary embedding, if its
    position is ROPE, both appended; the tensor as given if it has neither.
    """
    name = given.name
    if ctx.model.qk_norm:
        given = norm(ctx, f"{name}_norm", given, WIDTH, "qk_norm")
    turns = ctx.model.position is Position.ROPE
    return apply_rope(ctx, f"rope_{name}", given, f"{name}_rotated", ROTARY) if turns else given


PARTS = (
    Mixer(
        name=WIDE,
        build=wide_attention,
        sizes=lambda model: model.mixer(WIDE).sizes,
        tensor_dims=(KV_HEADS,),
        pieces=(KV_HEADS,),
        needs=(KV_HEADS, WIDTH, ROTARY),
        may=(VALUE_WIDTH,),
        switches=(KEYS_ARE_VALUES,),
    ),
)
