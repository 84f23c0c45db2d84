"""Sparse attention (DeepSeek-V3.2, GLM-5): an indexer scores all keys before a query, and attention reads the best.

I[B, S, T] = sum over the indexer's heads of w relu(q k'), with its own queries from the low-rank ones, one key for all
its heads, and a weight for each head from the layer's input (arXiv 2512.02556, section 2.1).

Nothing flows back through it: its inputs are detached. Transformers runs it without gradients (DeepseekV32Indexer);
Megatron-LM trains it by a loss that draws its scores of the chosen keys to the attention's, summed over all heads
(experimental_attention_variant/dsa.py, with dsa_indexer_use_sparse_loss). Its weights are counted, held and updated as
all others are.

Tensor parallelism splits none of it: with sequence parallelism each rank has its part of the sequence, or gathers all
of it and finds the same choice as the others (Megatron-LM's DSAttention).
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from symconfig.descriptor.layers import Keys, LayerKind
from symconfig.descriptor.model import ModelDescriptor
from symconfig.graph import dims as d
from symconfig.graph.attended import CHOSEN, FULL, WINDOW
from symconfig.graph.blocks.common import projected
from symconfig.graph.blocks.context import Context
from symconfig.graph.implementation import Choosing
from symconfig.graph.operator import Element, Product, Tensor, Use

HEADS, CHANNELS, CHOICES = "index_n_heads", "index_head_dim", "index_topk"
_ROWS = (d.BATCH, d.SEQUENCE)
_TO_KEYS = ((d.SEQUENCE, d.KEYS),)


@dataclass(frozen=True, slots=True)
class Learned:
    """The indexer's tensors that its loss compares with the attention's scores: its queries, keys and weights of its
    heads.
    """

    q: Tensor
    k: Tensor
    weights: Tensor


@dataclass(frozen=True, slots=True)
class Read:
    """Which keys a layer's attention reads. keys: how many, see `graph.attended`. chosen: their positions, or a mask of
    all others; kept: whether the backward needs it from this layer. learned: where a loss trains the indexer."""

    keys: str
    chosen: Tensor | None = None
    kept: bool = False
    learned: Learned | None = None


def keys_read(ctx: Context, kind: LayerKind, x: Tensor, low: Tensor) -> Read:
    """Build the indexer of a layer that has one. low: the low-rank queries that the attention's queries come from."""
    if kind.keys is Keys.ALL:
        return Read(WINDOW if kind.window else FULL)
    learned = chosen = None
    with ctx.build.part("indexer"):
        if kind.keys is Keys.CHOSEN:
            learned, chosen = _chosen(ctx, x, low)
        if ctx.how.attention.choosing is Choosing.MASKED:
            mask = Tensor("index_mask", (*_ROWS, d.KEYS))
            given = [] if chosen is None else [chosen]
            with ctx.build.no_gradient():
                return Read(FULL, ctx.build.elementwise("index_mask", given, mask, whole=(d.KEYS,)), kept=True)
    return Read(CHOSEN, chosen, kept=chosen is not None, learned=learned if _trained(ctx) else None)


def with_loss(ctx: Context, o: Tensor, q: Tensor, k: Tensor, read: Read) -> Tensor:
    """Join attention's result o with the loss of the indexer that chose its keys, if it has one. q, k: the attention's
    queries, and the keys that all heads share."""
    if read.learned is None or read.chosen is None:
        return o
    mine, chosen, loops = read.learned, read.chosen, _loops(ctx)
    target, loss = Tensor("index_target", chosen.dims, Element.FP32), Tensor("index_loss", _ROWS, Element.FP32)
    with ctx.build.part("indexer"):
        with ctx.build.no_gradient():
            scores = [Product("index_target_q_k", (*_ROWS, CHOSEN, d.HEADS, q.dims[-1]))]
            compared: list[Tensor | Use] = [q, Use(k).renamed(*_TO_KEYS), chosen]
            kept_whole = (d.KEYS, q.dims[-1], CHOICES)
            ctx.build.elementwise(
                "index_target", compared, target, contracted=(d.HEADS,), products=scores, whole=kept_whole
            )
        by_head, own = (*_ROWS, CHOSEN, HEADS), (mine.q, mine.k, mine.weights, target, chosen)
        products = [Product("index_loss_q_k", (*by_head, CHANNELS)), Product("index_loss_heads", by_head)]
        given: list[Tensor | Use] = [mine.q, Use(mine.k).renamed(*_TO_KEYS), mine.weights, target, chosen]
        whole = (d.KEYS, HEADS, CHANNELS, CHOICES)
        ctx.build.elementwise("index_loss", given, loss, loops=loops, saves=own, products=products, whole=whole)
        return ctx.build.view("join_loss", [o, loss], Tensor(f"{o.name}_with_loss", o.dims))


def _trained(ctx: Context) -> bool:
    """Tell whether the framework has a loss for the indexer, and the model asks for it."""
    has = ctx.model.indexer
    return ctx.how.attention.choosing is Choosing.ABSORBED and has is not None and has.loss_coef > 0 and not ctx.frozen


def _chosen(ctx: Context, x: Tensor, low: Tensor) -> tuple[Learned, Tensor]:
    """Return what scores are made of, and positions of the keys that a query reads."""
    q, k = Tensor("index_q", (*_ROWS, HEADS, CHANNELS)), Tensor("index_k", (*_ROWS, CHANNELS))
    weights, trained = Tensor("index_weights", (*_ROWS, HEADS)), _trained(ctx)
    more: dict[str, Any] = {"loops": _loops(ctx), "apart": trained}
    with ctx.build.no_gradient(weights=trained):
        q = projected(ctx, "index_q_proj", low, q, **more)
        k = projected(ctx, "index_k_proj", x, k, **more)
        weights = projected(ctx, "index_weights_proj", x, weights, **more)
    with nullcontext() if trained else ctx.build.no_gradient():
        learned = Learned(_rotated(ctx, "index_q", q), _rotated(ctx, "index_k", _normed(ctx, k, trained)), weights)
    with ctx.build.no_gradient():
        scores = _scores(ctx, learned.q, learned.k, weights)
        chosen = Tensor("index_choice", (*_ROWS, CHOICES), Element.INDEX)
        ctx.build.elementwise("index_choose", [scores], chosen, loops=_loops(ctx), whole=(d.KEYS, CHOICES))
    return learned, chosen


def _normed(ctx: Context, k: Tensor, trained: bool) -> Tensor:
    """Return keys, normed around their mean."""
    affine = [ctx.weight(f"index_k_norm.{name}", CHANNELS) for name in ("weight", "bias")]
    normed, saves = Tensor("index_k_normed", k.dims), [k, Tensor("index_k_norm.statistics", _ROWS, Element.FP32)]
    return ctx.build.elementwise(
        "index_k_norm",
        [k],
        normed,
        saves=saves if trained else [],
        weights=affine,
        loops=_loops(ctx),
        reduces={CHANNELS: 2},
    )


def _loops(ctx: Context) -> tuple[str, ...]:
    """Return the loop that keeps all of the sequence on each tensor-parallel rank, where it is there."""
    return (d.GATHERED,) if ctx.how.attention.choosing is Choosing.ABSORBED else ()


def _rotated(ctx: Context, name: str, x: Tensor) -> Tensor:
    out = Tensor(f"{name}_rotated", x.dims)
    return ctx.build.elementwise(f"{name}_rope", [x], out, loops=_loops(ctx), whole=(CHANNELS,), linear=True)


def _scores(ctx: Context, q: Tensor, k: Tensor, weights: Tensor) -> Tensor:
    """Return I[B, S, T], in one kernel that runs the keys before a query, or in PyTorch's products over all of them."""
    scores, keys = Tensor("index_scores", (*_ROWS, d.KEYS), Element.FP32), Use(k).renamed(*_TO_KEYS)
    if ctx.how.attention.choosing is not Choosing.MASKED:
        by_head, inputs = (*_ROWS, FULL, HEADS), [Use(q), keys, Use(weights)]
        products = [Product("index_q_k", (*by_head, CHANNELS)), Product("index_heads", by_head)]
        whole, loops = (d.KEYS, HEADS, CHANNELS), _loops(ctx)
        return ctx.build.elementwise("index_scores", inputs, scores, loops=loops, products=products, whole=whole)
    wide = Tensor("index_scores_by_head", (*_ROWS, HEADS, d.KEYS), Element.FP32)
    ctx.build.product("index_q_k", Use(q), keys, (CHANNELS,), wide)
    positive = ctx.build.elementwise("index_relu", [wide], Tensor("index_positive", wide.dims, Element.FP32))
    return ctx.build.product("index_heads", Use(weights), Use(positive), (HEADS,), scores)


def sizes(model: ModelDescriptor) -> dict[str, float]:
    """Return the sizes of the indexer's own dims."""
    has = model.indexer
    return {} if has is None else {HEADS: has.index_n_heads, CHANNELS: has.index_head_dim, CHOICES: has.index_topk}
