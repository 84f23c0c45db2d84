"""Attention that reads a part of the keys: those that an indexer chooses, or compressed keys."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import Keys, LayerKind
from symconfig.graph import dims as d
from symconfig.graph.blocks.attention import Read, apply_rope
from symconfig.graph.blocks.common import norm, projected, to_stream
from symconfig.graph.implementation import Choosing
from symconfig.graph.operator import Element, Gradients, Product, Tensor, Use
from symconfig.graph.parts import Context, Mixer

HEADS, CHANNELS, CHOICES = "index_n_heads", "index_head_dim", "index_topk"
_ROWS = (d.BATCH, d.SEQUENCE)
_TO_KEYS = ((d.SEQUENCE, d.KEYS),)


def keys_read(ctx: Context, kind: LayerKind, x: Tensor, low: Tensor) -> Read:
    """Return the `Read` of a layer's attention: the symbol for its keys per query, and what selects keys. If the layer
    reads all keys, or all in its window, nothing selects, and nothing is appended.

    A layer with kind CHOSEN appends an indexer, which scores all keys before a query and chooses the best
    (DeepSeek-V3.2, GLM-5), and `chosen` is its indices; any other reads the choice of an earlier layer (chosen: None).
    For a MASKED implementation a mask over all keys is appended as `chosen` instead, kept for the backward. `learned`
    is set only where a loss trains the indexer. low: the low-rank queries, from which the indexer's queries are
    projected.

    I[B, S, T] = sum over the indexer's heads of w relu(q k'), with one key for all its heads, and a weight for each
    head from x (arXiv 2512.02556, section 2.1). No gradient flows to its inputs. Transformers runs it without gradients
    (DeepseekV32Indexer); Megatron-LM trains it by a loss that draws its scores of the chosen keys to the attention's,
    summed over heads (experimental_attention_variant/dsa.py). Its weights are counted, held and updated as all others.

    Tensor parallelism splits none of it: with sequence parallelism each rank has its part of the sequence, or gathers
    it (Megatron-LM's DSAttention).
    """
    if kind.keys is Keys.ALL:
        return Read(d.KEYS_WINDOW if kind.window else d.KEYS_FULL)
    learned = chosen = None
    with ctx.build.within(part="indexer"):
        if kind.keys is Keys.CHOSEN:
            learned, chosen = _indexer(ctx, x, low)
        if ctx.how.attention.choosing is Choosing.MASKED:
            mask = Tensor("index_mask", (*_ROWS, d.KEYS))
            given = [] if chosen is None else [chosen]
            with ctx.build.within(gradients=Gradients.NONE):
                return Read(d.KEYS_FULL, ctx.build.elementwise("index_mask", given, mask, whole=(d.KEYS,)), kept=True)
    return Read(d.KEYS_CHOSEN, chosen, kept=chosen is not None, learned=learned if _trained(ctx) else None)


def with_loss(ctx: Context, o: Tensor, q: Tensor, k: Tensor, read: Read) -> Tensor:
    """Return attention's result o under the name "NAME_with_loss", a view that joins the loss that trains the indexer;
    o itself if `read` has no trained indexer or no choice. The target, the attention's scores of the chosen keys, is
    made without gradients. q, k: the attention's queries, and the keys that all heads share.
    """
    if read.learned is None or read.chosen is None:
        return o
    (index_q, index_k, weights), chosen, loops = read.learned, read.chosen, _loops(ctx)
    target, loss = Tensor("index_target", chosen.dims, Element.FP32), Tensor("index_loss", _ROWS, Element.FP32)
    with ctx.build.within(part="indexer"):
        with ctx.build.within(gradients=Gradients.NONE):
            scores = (Product("index_target_q_k", (*_ROWS, d.KEYS_CHOSEN, d.HEADS, q.dims[-1])),)
            compared: list[Tensor | Use] = [q, Use(k).renamed(*_TO_KEYS), chosen]
            kept_whole = (d.KEYS, q.dims[-1], CHOICES)
            ctx.build.elementwise(
                "index_target", compared, target, contracted=(d.HEADS,), products=scores, whole=kept_whole
            )
        by_head, own = (*_ROWS, d.KEYS_CHOSEN, HEADS), (index_q, index_k, weights, target, chosen)
        products = (Product("index_loss_q_k", (*by_head, CHANNELS)), Product("index_loss_heads", by_head))
        given: list[Tensor | Use] = [index_q, Use(index_k).renamed(*_TO_KEYS), weights, target, chosen]
        whole = (d.KEYS, HEADS, CHANNELS, CHOICES)
        ctx.build.elementwise("index_loss", given, loss, loops=loops, saves=own, products=products, whole=whole)
        return ctx.build.view("join_loss", [o, loss], Tensor(f"{o.name}_with_loss", o.dims))


def _trained(ctx: Context) -> bool:
    """Return whether the indexer is trained: the framework has a loss for it, the model has a coefficient for that
    loss, and the base model is not frozen.
    """
    has = ctx.model.indexer
    return ctx.how.attention.choosing is Choosing.ABSORBED and has is not None and has.loss_coef > 0 and not ctx.frozen


def _indexer(ctx: Context, x: Tensor, low: Tensor) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor]:
    """Append the indexer and return ((queries, keys, head weights), indices of the keys that each query reads). Queries
    come from `low`, keys and head weights from x. If the indexer is trained, the projections have gradients of weights
    only and the norm and rotations have gradients; else nothing has. Scores and choice never have.
    """
    q, k = Tensor("index_q", (*_ROWS, HEADS, CHANNELS)), Tensor("index_k", (*_ROWS, CHANNELS))
    weights, trained = Tensor("index_weights", (*_ROWS, HEADS)), _trained(ctx)
    more: dict[str, Any] = {"loops": _loops(ctx), "apart": trained}
    with ctx.build.within(gradients=Gradients.WEIGHTS if trained else Gradients.NONE):
        q = projected(ctx, "index_q_proj", low, q, **more)
        k = projected(ctx, "index_k_proj", x, k, **more)
        weights = projected(ctx, "index_weights_proj", x, weights, **more)
    with ctx.build.within(gradients=None if trained else Gradients.NONE):
        q, k = _rotated(ctx, "index_q", q), _rotated(ctx, "index_k", _normed(ctx, k, trained))
    with ctx.build.within(gradients=Gradients.NONE):
        scores = _scores(ctx, q, k, weights)
        chosen = Tensor("index_choice", (*_ROWS, CHOICES), Element.INDEX)
        ctx.build.elementwise("index_choose", [scores], chosen, loops=_loops(ctx), whole=(d.KEYS, CHOICES))
    return (q, k, weights), chosen


def _normed(ctx: Context, k: Tensor, trained: bool) -> Tensor:
    """Append LayerNorm of the indexer's keys, with weight and bias, and return it; it saves its input and statistics
    only if `trained`.
    """
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
    """Return the loop that keeps the whole sequence on each tensor-parallel rank for an ABSORBED implementation; else
    empty.
    """
    return (d.GATHERED,) if ctx.how.attention.choosing is Choosing.ABSORBED else ()


def _rotated(ctx: Context, name: str, x: Tensor) -> Tensor:
    out = Tensor(f"{name}_rotated", x.dims)
    return ctx.build.elementwise(f"{name}_rope", [x], out, loops=_loops(ctx), whole=(CHANNELS,), linear=True)


def _scores(ctx: Context, q: Tensor, k: Tensor, weights: Tensor) -> Tensor:
    """Append the indexer's scores and return I[B, S, T] in fp32, for each query and key. One kernel over the keys
    before a query; for a MASKED implementation PyTorch's three operators over all keys: products by head, ReLU, and the
    sum weighted by head.
    """
    scores, keys = Tensor("index_scores", (*_ROWS, d.KEYS), Element.FP32), Use(k).renamed(*_TO_KEYS)
    if ctx.how.attention.choosing is not Choosing.MASKED:
        by_head, inputs = (*_ROWS, d.KEYS_FULL, HEADS), [Use(q), keys, Use(weights)]
        products = (Product("index_q_k", (*by_head, CHANNELS)), Product("index_heads", by_head))
        whole, loops = (d.KEYS, HEADS, CHANNELS), _loops(ctx)
        return ctx.build.elementwise("index_scores", inputs, scores, loops=loops, products=products, whole=whole)
    wide = Tensor("index_scores_by_head", (*_ROWS, HEADS, d.KEYS), Element.FP32)
    ctx.build.product("index_q_k", Use(q), keys, (CHANNELS,), wide)
    positive = ctx.build.elementwise("index_relu", [wide], Tensor("index_positive", wide.dims, Element.FP32))
    return ctx.build.product("index_heads", Use(weights), Use(positive), (HEADS,), scores)


def indexer_sizes(model: ModelDescriptor) -> dict[str, float]:
    """Return the sizes of the indexer's own dims; empty for a model without one."""
    has = model.indexer
    return {} if has is None else {HEADS: has.index_n_heads, CHANNELS: has.index_head_dim, CHOICES: has.index_topk}


RANK, GROUPS, GROUP, LOW = "q_lora_rank", "o_groups", "o_group_width", "o_lora_rank"
HEAVY_RATE, RATE = d.HEAVY_RUN, d.RUN
ONE, WIDE, INDEX_WIDE = "one_key_head", "compressed_width", "index_compressed_width"
PLAIN, HEAVY, SPARSE = "shared_kv_attention", "heavily_compressed_attention", "compressed_sparse_attention"


def compressed_attention(ctx: Context, x: Tensor, kind: LayerKind, *, name: str) -> Tensor:
    """Append DeepSeek-V4's attention `name` (PLAIN, HEAVY or SPARSE) and return o[B, S, D] from x[B, S, D]. Sizes come
    from `ctx.model`; `kind` is not used.

    A query reads a window of keys and, except for PLAIN, compressed keys before it: HEAVY all, each of 128 tokens,
    SPARSE those that an indexer with smaller compressed keys chooses, each of a run of 4 tokens that overlaps with the
    run before. A compressed key is the mean of a run of tokens, weighed by a softmax of a gate and a learned position.

    There is one head of keys, which are the values, too; queries are low-rank and normed, heads have sinks. The heads'
    results are rotated back, projected by groups of heads to a low rank, and from it to the stream. Transformers'
    DeepseekV4Attention, HCACompressor, CSACompressor, Indexer, GroupedLinear.

    The kernel is taken as one that keeps both kinds of keys and a query's choice; Transformers' eager one joins the
    keys under a mask.
    """
    low, q = Tensor("q_low", (*_ROWS, RANK)), Tensor("q", (*_ROWS, d.HEADS, d.HEAD_DIM))
    low = norm(ctx, "q_a_norm", projected(ctx, "q_a_proj", x, low), RANK)
    q = projected(ctx, "q_b_proj", low, q)
    q = _rope(ctx, "rope_q", norm(ctx, "q_b_norm", q, d.HEAD_DIM, weight=()))
    kv = projected(ctx, "kv_proj", x, Tensor("kv", (*_ROWS, ONE, d.HEAD_DIM)))
    kv = _rope(ctx, "rope_kv", norm(ctx, "kv_norm", kv, d.HEAD_DIM))
    extra, read = _compressed_keys(ctx, x, low, name)
    over = Use(kv).renamed((d.SEQUENCE, d.KEYS))
    sinks = [ctx.weight("sinks", d.HEADS)]
    o = ctx.build.attention(Use(q), over, over, read, sinks, sparse=[Use(one) for one in extra], keeps=extra)
    o = _rope(ctx, "rope_back", o)
    groups, low = Tensor("grouped_heads", (*_ROWS, GROUPS, GROUP)), Tensor("grouped_low", (*_ROWS, GROUPS, LOW))
    ctx.build.elementwise("group_heads", [o], groups, whole=(GROUPS, *o.dims[2:]), linear=True)
    weight = ctx.weight("o_a_proj.weight", GROUPS, GROUP, LOW)
    ctx.build.matmul("o_a_proj", groups, weight, (GROUP,), [Use(low)])
    return to_stream(ctx, "o_b_proj", low)


def _rope(ctx: Context, name: str, given: Tensor) -> Tensor:
    return apply_rope(ctx, name, given, f"{name}_out")


def _compressed_keys(ctx: Context, x: Tensor, low: Tensor, name: str) -> tuple[list[Tensor], str]:
    """Append what makes the compressed keys of the attention `name`, and return (tensors that a query reads beyond its
    window, the symbol for the number of all its keys). PLAIN: none, a window. HEAVY: heavily compressed keys, all of
    them read. SPARSE: compressed keys and the indices that an indexer without gradients chooses. low: the low-rank
    queries, from which the indexer makes its queries.
    """
    if name == PLAIN:
        return [], d.KEYS_WINDOW
    if name == HEAVY:
        return [compressed(ctx, "compressor", x, d.HEAD_DIM, d.HEAVY_RUNS, HEAVY_RATE, d.HEAD_DIM)], d.KEYS_WITH_RUNS
    keys = compressed(ctx, "compressor", x, WIDE, d.RUNS, RATE, d.HEAD_DIM)
    with ctx.build.within(part="indexer", gradients=Gradients.NONE):
        return [keys, _chosen_keys(ctx, x, low)], d.KEYS_WITH_CHOSEN_RUNS


def compressed(ctx: Context, name: str, x: Tensor, width: str, runs: str, rate: str, channels: str) -> Tensor:
    """Append the compressor `name` and return the normed and rotated keys, one for each run of tokens: [B, runs,
    channels].

    The pooling saves its values (in the order of the runs if these overlap, that is if `width` differs from
    `channels`), its weights, and their softmax in fp32.

    Args:
        width: columns per token; wider than `channels` if runs overlap.
        runs: the dim that counts the runs of a sequence.
        rate: the dim of the tokens of a run.
    """
    with ctx.build.within(part=name):
        raw = [Tensor(f"{name}_{part}", (*_ROWS, width)) for part in ("kv", "gate")]
        raw = [projected(ctx, f"{one.name}_proj", x, one) for one in raw]
        mean, weights = Tensor(f"{name}_mean", (d.BATCH, runs, channels)), Tensor(f"{name}_weights", raw[0].dims)
        kept = [*([raw[0]] if width == channels else [Tensor(f"{name}_overlapped", raw[0].dims)]), weights]
        kept.append(Tensor(f"{name}_softmax", weights.dims, Element.FP32))
        bias = ctx.weight(f"{name}_position_bias", rate, width)
        whole = (d.SEQUENCE, width, runs, channels, rate)
        ctx.build.elementwise(f"{name}_pool", raw, mean, saves=kept, weights=[bias], whole=whole, launches=(6, 9))
        normed, out = norm(ctx, f"{name}_kv_norm", mean, channels), Tensor(f"{name}_keys", mean.dims)
        angles = [Tensor(f"{name}_rope.{part}", (runs, d.ROTARY)) for part in ("cosines", "sines")]
        return ctx.build.elementwise(f"{name}_rope", [normed], out, saves=angles, whole=(channels,), linear=True)


def _chosen_keys(ctx: Context, x: Tensor, low: Tensor) -> Tensor:
    """Append an indexer over compressed keys of its own, smaller than the attention's, and return the indices [B, S,
    choices] of the compressed keys that each query reads. Queries come from `low`, keys and head weights from x.
    """
    keys = compressed(ctx, "index", x, INDEX_WIDE, d.RUNS, RATE, CHANNELS)
    q, weights = Tensor("index_q", (*_ROWS, HEADS, CHANNELS)), Tensor("index_weights", (*_ROWS, HEADS))
    q = _rope(ctx, "index_q_rope", projected(ctx, "index_q_proj", low, q))
    weights = projected(ctx, "index_weights_proj", x, weights)
    scores, whole = Tensor("index_scores", (*_ROWS, d.RUNS), Element.FP32), (d.RUNS, HEADS, CHANNELS)
    products = (Product("index_q_k", (*_ROWS, *whole)),)
    ctx.build.elementwise("index_scores", [q, keys, weights], scores, products=products, whole=whole)
    chosen = Tensor("index_choice", (*_ROWS, CHOICES), Element.INDEX)
    return ctx.build.elementwise("index_choose", [scores], chosen, whole=(d.RUNS, CHOICES))


def _compressed_sizes(model: ModelDescriptor, *, name: str) -> Mapping[str, float]:
    given = model.mixer(name).sizes
    channels = model.num_attention_heads * model.head_dim
    own = {ONE: 1, GROUP: channels // given[GROUPS]}
    return own | ({WIDE: 2 * model.head_dim, INDEX_WIDE: 2 * given[CHANNELS]} if name == SPARSE else {})


_NEEDS = {PLAIN: (), HEAVY: (HEAVY_RATE,), SPARSE: (RATE, HEADS, CHANNELS, CHOICES)}
PARTS = tuple(
    Mixer(
        name=name,
        build=partial(compressed_attention, name=name),
        sizes=partial(_compressed_sizes, name=name),
        needs=(RANK, GROUPS, LOW, *more),
    )
    for name, more in _NEEDS.items()
)
