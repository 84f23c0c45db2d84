"""Attention whose queries and output are a mixture of experts (JetMoE, arXiv:2404.07413).

A token's router chooses pairs of a query and an output projection. Each choice gives one query to every head of keys,
and all choices share keys and values: of A heads, KV belong to a choice. Every rank holds all pairs, so no token
travels, and those of a rank run one after the other (Transformers' JetMoeMoA).
"""

from __future__ import annotations

from collections.abc import Mapping

from symconfig.descriptor.layers import LayerKind
from symconfig.descriptor.model import ModelDescriptor
from symconfig.errors import InputError
from symconfig.graph import dims as d
from symconfig.graph.attended import FULL
from symconfig.graph.blocks import stated
from symconfig.graph.blocks.attention import turned
from symconfig.graph.blocks.attention_core import copied, core, of_each_head
from symconfig.graph.blocks.common import linear, offset
from symconfig.graph.blocks.context import Context
from symconfig.graph.blocks.experts import router
from symconfig.graph.blocks.indexer import Read
from symconfig.graph.blocks.routing import CHOICES
from symconfig.graph.operator import Element, Product, Tensor, Use
from symconfig.graph.parts import Mixer

NAME = "mixture_attention"
PAIRS, KEYS_AND_VALUES = "attention_pairs", "key_value_width"
_ROWS = (d.BATCH, d.SEQUENCE)
_HEADS = [(d.HEADS, d.KV_HEADS)]


def attention(ctx: Context, x: Tensor, kind: LayerKind) -> Tensor:
    """Return o[B, S, D] from x[B, S, D]."""
    if ctx.model.experts is None:
        raise InputError(f"{NAME} needs the section experts", field="mixers")
    probabilities, indices = router(ctx, x, "attention_")
    tokens, slots = (Tensor(f"attention_{name}", (*_ROWS, CHOICES), Element.INDEX) for name in ("tokens", "slots"))
    k, v = (Tensor(name, (*_ROWS, d.KV_HEADS, d.HEAD_DIM)) for name in "kv")
    both = [Use(one).renamed((d.KV_HEADS, KEYS_AND_VALUES)) for one in (k, v)]
    k, v = linear(ctx, "kv_proj", x, (d.HIDDEN,), (KEYS_AND_VALUES,), both)
    q, k = turned(ctx, _queries(ctx, x, indices, [tokens, slots]), k)
    k, v = of_each_head(ctx, q, k, Use(v))
    o = copied(ctx, core(ctx, q, k, v, Read(FULL)))
    return offset(ctx, "attention_experts", _result(ctx, x, o, [probabilities, indices], [tokens, slots]))


def _queries(ctx: Context, x: Tensor, indices: Tensor, order: list[Tensor]) -> Tensor:
    """Return q[B, S, A, C] from a copy of each token for each of its choices; index_add keeps what it puts in order."""
    q, routed = Tensor("q", (*_ROWS, d.HEADS, d.HEAD_DIM)), Tensor("attention_in", (*_ROWS, CHOICES, d.HIDDEN))
    given = Tensor("attention_queries", q.dims)
    return ctx.build.elementwise(
        "pair_q_proj", [x, indices], q, saves=[routed, given, *order], per=(PAIRS,), together=_HEADS,
        weights=[ctx.weight("pair_q_proj.weight", PAIRS, d.HIDDEN, d.KV_HEADS, d.HEAD_DIM)],
        products=[Product("pair_q_proj", (*q.dims, d.HIDDEN))],
        whole=(d.HIDDEN, CHOICES, d.HEAD_DIM, PAIRS),
    )  # fmt: skip


def _result(ctx: Context, x: Tensor, o: Tensor, chosen: list[Tensor], order: list[Tensor]) -> Tensor:
    """Sum each token's choices, weighed."""
    routed, slots = Tensor("attention_routed", o.dims), (*_ROWS, CHOICES, d.HIDDEN)
    made = [Tensor("attention_done", slots), Tensor("attention_weighed", slots)]
    weights = Tensor("attention_choice_weights", (*_ROWS, CHOICES))
    return ctx.build.elementwise(
        "pair_o_proj", [o, *chosen], Tensor("attention_out", x.dims), saves=[routed, *made, weights, *order],
        per=(PAIRS,), together=_HEADS, contracted=(d.HEADS,), linear=True,
        weights=[ctx.weight("pair_o_proj.weight", PAIRS, d.KV_HEADS, d.HEAD_DIM, d.HIDDEN)],
        products=[Product("pair_o_proj", (*o.dims, d.HIDDEN))],
        whole=(d.HIDDEN, CHOICES, d.HEAD_DIM, PAIRS),
    )  # fmt: skip


def _sizes(model: ModelDescriptor) -> Mapping[str, float]:
    pairs = model.experts.num_experts if model.experts else 0
    return {PAIRS: pairs, KEYS_AND_VALUES: 2 * model.num_key_value_heads * model.head_dim}


PARTS = (Mixer(name=NAME, build=attention, sizes=_sizes, tensor_dims=(KEYS_AND_VALUES,), check=stated.check(())),)
