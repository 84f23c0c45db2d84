"""Attention of some layers that is otherwise than the model's: key/value heads and head widths (Gemma 4), without the
sinks that layers with a window have (MiMo), or with a bias that no other layer has (GPT-NeoX Japanese).

Heads are as many as elsewhere, and without sizes of their own as wide. Without a projection of values, a value is its
key before the key's norm and rotation.
"""

from __future__ import annotations

from collections.abc import Sequence

from symconfig.descriptor.layers import LayerKind, Pairs
from symconfig.descriptor.layers import Mixer as Declared
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import Position
from symconfig.graph import dims as d
from symconfig.graph.attended import FULL
from symconfig.graph.blocks.attention import borrowed, lent, normed_and_turned, projections, rotated
from symconfig.graph.blocks.attention_core import copied, core
from symconfig.graph.blocks.common import projected
from symconfig.graph.blocks.context import Context
from symconfig.graph.blocks.indexer import Read
from symconfig.graph.blocks.norms import norm
from symconfig.graph.operator import Tensor
from symconfig.graph.parts import Mixer

NAME = "wide_attention"
KV_HEADS, WIDTH, ROTARY = "wide_key_value_heads", "wide_head_dim", "wide_rotary_dim"
VALUE_WIDTH = "wide_value_dim"  # of values, where it is not that of queries and keys
KEYS_ARE_VALUES, OUT_BIAS = "keys_are_values", "out_bias"
_ROWS = (d.BATCH, d.SEQUENCE)


def wide_attention(ctx: Context, x: Tensor, kind: LayerKind) -> Tensor:
    """Return o[B, S, D] from x[B, S, D], each projection alone where it has sizes of its own."""
    if not ctx.model.mixer(NAME).sizes:
        (q, k, v), _ = projections(ctx, x)
        return _result(ctx, x, *normed_and_turned(ctx, q, k, kind), v)
    bias = ctx.model.qkv_bias
    q = projected(ctx, "q_proj", x, Tensor("q", (*_ROWS, d.HEADS, WIDTH)), bias)
    if kind.pairs is Pairs.BORROWED:
        k, v = borrowed(ctx, (*_ROWS, KV_HEADS), (WIDTH, WIDTH), kind)
        return _result(ctx, x, _queries(ctx, q), k, v)
    k = projected(ctx, "k_proj", x, Tensor("k", (*_ROWS, KV_HEADS, WIDTH)), bias)
    sizes = ctx.model.mixer(NAME)
    width = VALUE_WIDTH if sizes.sizes.get(VALUE_WIDTH) else WIDTH
    values = Tensor("v", (*_ROWS, KV_HEADS, width))
    v = k if KEYS_ARE_VALUES in sizes.switches else projected(ctx, "v_proj", x, values, bias)
    if ctx.model.v_norm:
        v = norm(ctx, "v_norm", v, width, "qk_norm", weight=())
    q, k = _queries(ctx, q), _queries(ctx, k)
    if kind.pairs is Pairs.LENT:
        k, v = lent(ctx, k, v, kind)
    return _result(ctx, x, q, k, v)


def _queries(ctx: Context, given: Tensor) -> Tensor:
    """Return queries or keys, normed and turned."""
    name = given.name
    if ctx.model.qk_norm:
        given = norm(ctx, f"{name}_norm", given, WIDTH, "qk_norm")
    turns = ctx.model.position is Position.ROPE
    return rotated(ctx, f"rope_{name}", given, f"{name}_rotated", ROTARY) if turns else given


def _result(ctx: Context, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    o, out = copied(ctx, core(ctx, q, k, v, Read(FULL))), Tensor("attention_out", x.dims)
    bias = ctx.model.attention_out_bias or OUT_BIAS in ctx.model.mixer(NAME).switches
    return projected(ctx, "o_proj", o, out, bias, over=2)


def _check(mixer: Declared) -> Sequence[str]:
    missing = [name for name in (KV_HEADS, WIDTH, ROTARY) if mixer.sizes and not mixer.sizes.get(name)]
    unknown = [name for name in mixer.switches if name not in (KEYS_ARE_VALUES, OUT_BIAS)]
    both = KEYS_ARE_VALUES in mixer.switches and mixer.sizes.get(VALUE_WIDTH)
    problems = [f"{NAME} needs sizes.{name}" for name in missing] + [f"{NAME} has no switch {name}" for name in unknown]
    return [*problems, *([f"{NAME}: values that are keys have no width of their own"] if both else [])]


def _sizes(model: ModelDescriptor) -> dict[str, float]:
    return {KV_HEADS: model.num_key_value_heads, **model.mixer(NAME).sizes}


PARTS = (
    Mixer(name=NAME, build=wide_attention, sizes=_sizes, tensor_dims=(KV_HEADS,), pieces=(KV_HEADS,), check=_check),
)
