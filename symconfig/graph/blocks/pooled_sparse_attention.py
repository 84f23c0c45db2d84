"""Grouped-query attention over runs of tokens that an indexer chooses (Qwen 4's QSA, MiniMax-M3's).

The indexer has queries of its own and one key a token; a run's key is the mean of its tokens', normed and turned as its
first. A query's score of a run is the sum over the indexer's heads of relu(q k'), and it reads the tokens of the best
runs, and those of its own that is not complete. With `scores_by_token` a run's score is the greatest q k' of its
tokens, and each head of the indexer chooses for a part of the heads (MiniMaxM3VLIndexer). Nothing flows back through
the choice. Transformers' Qwen4ExpTextQSAIndexer chooses query by query in a loop of the host, and attention then reads
all keys under a mask, as it does in MiniMax-M3.
"""

from __future__ import annotations

from collections.abc import Mapping

from symconfig.descriptor.layers import LayerKind
from symconfig.descriptor.model import ModelDescriptor
from symconfig.graph import dims as d
from symconfig.graph.attended import FULL, POOLED
from symconfig.graph.blocks import stated
from symconfig.graph.blocks.attention import normed_and_turned, projections, result
from symconfig.graph.blocks.attention_core import core
from symconfig.graph.blocks.common import projected
from symconfig.graph.blocks.context import Context
from symconfig.graph.blocks.indexer import Read
from symconfig.graph.blocks.norms import norm
from symconfig.graph.implementation import Choosing
from symconfig.graph.operator import Element, Product, Tensor, Use
from symconfig.graph.parts import Mixer

NAME = "pooled_sparse_attention"
HEADS, DIM, BUDGET = "indexer_n_heads", "indexer_head_dim", "indexer_budget"
WIDTH, CHOICES = "indexer_qk_width", "indexer_runs"
BY_TOKEN = "scores_by_token"
_ROWS = (d.BATCH, d.SEQUENCE)


def attention(ctx: Context, x: Tensor, kind: LayerKind) -> Tensor:
    """Return o[B, S, D] from x[B, S, D]."""
    (q, k, v), gate = projections(ctx, x)
    q, k = normed_and_turned(ctx, q, k, kind)
    with ctx.build.no_gradient(), ctx.build.part("indexer"):
        read = _read(ctx, _chosen(ctx, x))
    return result(ctx, x, core(ctx, q, k, v, read), gate)


def _read(ctx: Context, chosen: Tensor) -> Read:
    """Return positions of what is read, or a mask of all others."""
    if ctx.how.attention.choosing is not Choosing.MASKED:
        return Read(POOLED, chosen, kept=True)
    mask = Tensor("index_mask", (*_ROWS, *((d.HEADS,) if _by_token(ctx) else ()), d.KEYS))
    return Read(FULL, ctx.build.elementwise("index_mask", [chosen], mask, whole=(d.KEYS,)), kept=True)


def _by_token(ctx: Context) -> bool:
    return BY_TOKEN in ctx.model.mixer(NAME).switches


def _chosen(ctx: Context, x: Tensor) -> Tensor:
    q, k = Tensor("index_q", (*_ROWS, HEADS, DIM)), Tensor("index_k", (*_ROWS, DIM))
    if _by_token(ctx):
        return _chosen_by_head(ctx, x, q, k)
    weight = ctx.weight("index_qk_proj.weight", d.HIDDEN, WIDTH)
    joined = Tensor("index_qk", (*_ROWS, WIDTH))
    ctx.build.matmul("index_qk_proj", x, weight, (d.HIDDEN,), [Use(joined)])
    ctx.build.elementwise("index_split", [joined], q, further=[k], whole=(WIDTH,), linear=True, traffic=(0, 0))
    q = norm(ctx, "index_q_norm", q, DIM)
    pooled = ctx.build.elementwise("index_pool", [k], Tensor("index_pooled", (d.BATCH, d.RUNS, DIM)),
                                   whole=(d.SEQUENCE, d.RUNS), linear=True)  # fmt: skip
    pooled = norm(ctx, "index_k_norm", pooled, DIM)
    scores = Tensor("index_scores", (*_ROWS, d.RUNS), Element.FP32)
    products = [Product("index_q_k", (*_ROWS, d.RUNS, HEADS, DIM))]
    ctx.build.elementwise("index_scores", [q, pooled], scores, products=products, whole=(d.RUNS, HEADS, DIM))
    chosen = Tensor("index_choice", (*_ROWS, BUDGET), Element.INDEX)
    return ctx.build.elementwise("index_choose", [scores], chosen, whole=(d.RUNS, BUDGET))


def _chosen_by_head(ctx: Context, x: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """Choose the best runs for each head of the indexer. PyTorch's product scores all keys, a kernel those before a
    query.
    """
    made = [(one.name, projected(ctx, f"{one.name}_proj", x, one)) for one in (q, k)]
    q, k = (_turned(ctx, norm(ctx, f"{name}_norm", one, DIM, "qk_norm")) for name, one in made)
    keys, scores = Use(k).renamed((d.SEQUENCE, d.KEYS)), Tensor("index_scores", (*_ROWS, HEADS, d.RUNS), Element.FP32)
    if ctx.how.attention.choosing is Choosing.MASKED:
        every = Tensor("index_token_scores", (*_ROWS, HEADS, d.KEYS), Element.FP32)
        ctx.build.product("index_q_k", Use(q), keys, (DIM,), every)
        ctx.build.elementwise("index_pool", [every], scores, whole=(d.KEYS, d.RUNS))
    else:
        products = [Product("index_q_k", (*_ROWS, FULL, HEADS, DIM))]
        ctx.build.elementwise("index_scores", [q, keys], scores, products=products, whole=(d.KEYS, d.RUNS, HEADS, DIM))
    chosen = Tensor("index_choice", (*_ROWS, HEADS, CHOICES), Element.INDEX)
    return ctx.build.elementwise("index_choose", [scores], chosen, whole=(d.RUNS, CHOICES))


def _turned(ctx: Context, x: Tensor) -> Tensor:
    return ctx.build.elementwise(f"{x.name}_rope", [x], Tensor(f"{x.name}_turned", x.dims), whole=(DIM,), linear=True)


def _sizes(model: ModelDescriptor) -> Mapping[str, float]:
    given = model.mixer(NAME).sizes
    return {WIDTH: (given[HEADS] + 1) * given[DIM], CHOICES: given[BUDGET] // max(given[d.RUN], 1)}


_CHECK = stated.check((HEADS, DIM, BUDGET, d.RUN), (BY_TOKEN,), {BUDGET: d.RUN})
PARTS = (Mixer(name=NAME, build=attention, sizes=_sizes, check=_CHECK),)
