"""Sparse attention (DeepSeek-V3.2, GLM-5): an indexer scores all keys before a query, and attention reads the best.

I[B, S, T] = sum over the indexer's heads of w relu(q k'), with its own queries from the low-rank ones, one key for all
its heads, and a weight for each head from the layer's input (arXiv 2512.02556, section 2.1).

Nothing flows back through it: Transformers runs it without gradients (DeepseekV32Indexer), and where DeepSeek trains
it, by a loss of its own that draws its scores to the attention's, its inputs are detached. That loss is left out, as in
Transformers. Weights of the indexer are counted, held and updated as all others are.
"""

from __future__ import annotations

from dataclasses import dataclass

from symconfig.descriptor.layers import Keys, LayerKind
from symconfig.descriptor.model import ModelDescriptor
from symconfig.graph import dims as d
from symconfig.graph.attended import CHOSEN, FULL, WINDOW
from symconfig.graph.blocks.common import linear
from symconfig.graph.blocks.context import Context
from symconfig.graph.operator import Element, Product, Tensor, Use

HEADS, CHANNELS, CHOICES = "index_n_heads", "index_head_dim", "index_topk"
_ROWS = (d.BATCH, d.SEQUENCE)
_TO_KEYS = ((d.SEQUENCE, d.KEYS),)


@dataclass(frozen=True, slots=True)
class Read:
    """Which keys a layer's attention reads. keys: how many, see `graph.attended`. beside: their positions, or a mask of
    all others; kept: whether the backward needs it from this layer."""

    keys: str
    beside: Tensor | None = None
    kept: bool = False


def keys_read(ctx: Context, kind: LayerKind, x: Tensor, low: Tensor) -> Read:
    """Build the indexer of a layer that has one. low: the low-rank queries that the attention's queries come from."""
    if kind.keys is Keys.ALL:
        return Read(WINDOW if kind.window else FULL)
    with ctx.build.no_gradient(), ctx.build.part("indexer"):
        chosen = _chosen(ctx, x, low) if kind.keys is Keys.CHOSEN else None
        if ctx.how.attention.masks_choice:
            mask = Tensor("index_mask", (*_ROWS, d.KEYS))
            given = [] if chosen is None else [chosen]
            return Read(FULL, ctx.build.elementwise("index_mask", given, mask, whole=(d.KEYS,)), kept=True)
    return Read(CHOSEN, chosen, kept=chosen is not None)


def _chosen(ctx: Context, x: Tensor, low: Tensor) -> Tensor:
    """Positions of the keys that a query reads."""
    q, k = Tensor("index_q", (*_ROWS, HEADS, CHANNELS)), Tensor("index_k", (*_ROWS, CHANNELS))
    linear(ctx, "index_q_proj", low, low.dims[-1:], (HEADS, CHANNELS), [Use(q)])
    linear(ctx, "index_k_proj", x, (d.HIDDEN,), (CHANNELS,), [Use(k)])
    affine = [ctx.weight(f"index_k_norm.{name}", CHANNELS) for name in ("weight", "bias")]
    normed = Tensor("index_k_normed", k.dims)
    k = ctx.build.elementwise("index_k_norm", [k], normed, weights=affine, reduces={CHANNELS: 2})
    q, k = _rotated(ctx, "index_q", q), _rotated(ctx, "index_k", k)
    weights = Tensor("index_weights", (*_ROWS, HEADS))
    linear(ctx, "index_weights_proj", x, (d.HIDDEN,), (HEADS,), [Use(weights)])
    scores = _scores(ctx, q, k, weights)
    chosen = Tensor("index_choice", (*_ROWS, CHOICES), Element.INDEX)
    return ctx.build.elementwise("index_choose", [scores], chosen, whole=(d.KEYS, CHOICES))


def _rotated(ctx: Context, name: str, x: Tensor) -> Tensor:
    out = Tensor(f"{name}_rotated", x.dims)
    return ctx.build.elementwise(f"{name}_rope", [x], out, whole=(CHANNELS,), linear=True)


def _scores(ctx: Context, q: Tensor, k: Tensor, weights: Tensor) -> Tensor:
    """I[B, S, T], in one kernel that runs the keys before a query, or in PyTorch's products over all of them."""
    scores, keys = Tensor("index_scores", (*_ROWS, d.KEYS), Element.FP32), Use(k, _TO_KEYS)
    if not ctx.how.attention.masks_choice:
        by_head = (*_ROWS, FULL, HEADS)
        products = [Product("index_q_k", (*by_head, CHANNELS)), Product("index_heads", by_head)]
        whole = (d.KEYS, HEADS, CHANNELS)
        return ctx.build.elementwise("index_scores", [q, keys, weights], scores, products=products, whole=whole)
    wide = Tensor("index_scores_by_head", (*_ROWS, HEADS, d.KEYS), Element.FP32)
    ctx.build.product("index_q_k", Use(q), keys, (CHANNELS,), wide)
    positive = ctx.build.elementwise("index_relu", [wide], Tensor("index_positive", wide.dims, Element.FP32))
    return ctx.build.product("index_heads", Use(weights), Use(positive), (HEADS,), scores)


def sizes(model: ModelDescriptor) -> dict[str, float]:
    """Sizes of the indexer's own dims."""
    has = model.indexer
    return {} if has is None else {HEADS: has.index_n_heads, CHANNELS: has.index_head_dim, CHOICES: has.index_topk}
