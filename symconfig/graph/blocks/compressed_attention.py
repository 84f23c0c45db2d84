"""DeepSeek-V4's attention: a window of keys, and before it keys that are made of several tokens each.

One head of keys, which are the values, too; queries are low-rank and normed, heads have sinks. A compressed key is the
weighed mean of a run of tokens, by a softmax over the run of a gate and a learned position; its angles are its own. A
heavily compressed one is of 128 tokens, and a query reads all before it. Else runs of 4 overlap with those before,
which have columns of their own, and an indexer with smaller compressed keys of its own chooses those that a query
reads. The heads' results are turned back, projected by groups of heads to a low rank, and those to the stream.
Transformers' DeepseekV4Attention, HCACompressor, CSACompressor, Indexer, GroupedLinear.

The kernel is taken as one that keeps both kinds of keys and a query's choice; Transformers' eager one joins the keys
under a mask. C head_dim, W columns that are compressed, R q_lora_rank, G o_groups.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from symconfig.descriptor.layers import LayerKind
from symconfig.descriptor.model import ModelDescriptor
from symconfig.graph import dims as d
from symconfig.graph.attended import CHOSEN_RUNS, RUNS, WINDOW
from symconfig.graph.blocks import stated
from symconfig.graph.blocks.attention import rotated
from symconfig.graph.blocks.common import projected
from symconfig.graph.blocks.context import Context
from symconfig.graph.blocks.norms import norm
from symconfig.graph.operator import Element, Product, Tensor, Use
from symconfig.graph.parts import Mixer

RANK, GROUPS, GROUP, LOW = "q_lora_rank", "o_groups", "o_group_width", "o_lora_rank"
INDEX_HEADS, INDEX_DIM, TOPK = "index_n_heads", "index_head_dim", "index_topk"
HEAVY_RATE, RATE = d.HEAVY_RUN, d.RUN
ONE, WIDE, INDEX_WIDE = "one_key_head", "compressed_width", "index_compressed_width"
PLAIN, HEAVY, SPARSE = "shared_kv_attention", "heavily_compressed_attention", "compressed_sparse_attention"
_ROWS = (d.BATCH, d.SEQUENCE)
_NEEDS = (RANK, GROUPS, LOW)


def attention(ctx: Context, x: Tensor, kind: LayerKind, *, name: str) -> Tensor:
    """Return o[B, S, D] from x[B, S, D]."""
    low, q = Tensor("q_low", (*_ROWS, RANK)), Tensor("q", (*_ROWS, d.HEADS, d.HEAD_DIM))
    low = norm(ctx, "q_a_norm", projected(ctx, "q_a_proj", x, low), RANK)
    q = projected(ctx, "q_b_proj", low, q)
    q = _turned(ctx, "rope_q", norm(ctx, "q_b_norm", q, d.HEAD_DIM, weight=()))
    kv = projected(ctx, "kv_proj", x, Tensor("kv", (*_ROWS, ONE, d.HEAD_DIM)))
    kv = _turned(ctx, "rope_kv", norm(ctx, "kv_norm", kv, d.HEAD_DIM))
    extra, read = _before(ctx, x, low, name)
    over = Use(kv).renamed((d.SEQUENCE, d.KEYS))
    sinks = [ctx.weight("sinks", d.HEADS)]
    o = ctx.build.attention(Use(q), over, over, read, sinks, sparse=[Use(one) for one in extra], keeps=extra)
    return _projected(ctx, _turned(ctx, "rope_back", o), x)


def _turned(ctx: Context, name: str, given: Tensor) -> Tensor:
    return rotated(ctx, name, given, f"{name}_out")


def _projected(ctx: Context, o: Tensor, x: Tensor) -> Tensor:
    """Project the heads, through a low rank of each group of them."""
    groups, low = Tensor("grouped_heads", (*_ROWS, GROUPS, GROUP)), Tensor("grouped_low", (*_ROWS, GROUPS, LOW))
    ctx.build.elementwise("group_heads", [o], groups, whole=(GROUPS, *o.dims[2:]), linear=True)
    weight = ctx.weight("o_a_proj.weight", GROUPS, GROUP, LOW)
    ctx.build.matmul("o_a_proj", groups, weight, (GROUP,), [Use(low)])
    return projected(ctx, "o_b_proj", low, Tensor("attention_out", x.dims), over=2)


def _before(ctx: Context, x: Tensor, low: Tensor, name: str) -> tuple[list[Tensor], str]:
    """Return compressed keys, and which of them a query reads."""
    if name == PLAIN:
        return [], WINDOW
    if name == HEAVY:
        return [compressed(ctx, "compressor", x, d.HEAD_DIM, d.HEAVY_RUNS, HEAVY_RATE, d.HEAD_DIM)], RUNS
    keys = compressed(ctx, "compressor", x, WIDE, d.RUNS, RATE, d.HEAD_DIM)
    with ctx.build.no_gradient(), ctx.build.part("indexer"):
        return [keys, _chosen(ctx, x, low)], CHOSEN_RUNS


def compressed(ctx: Context, name: str, x: Tensor, width: str, runs: str, rate: str, channels: str) -> Tensor:
    """Return the keys of runs of tokens. What is kept: what is weighed, in the order of the runs where they overlap,
    and the weights in fp32 and as they are used.
    """
    with ctx.build.part(name):
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


def _chosen(ctx: Context, x: Tensor, low: Tensor) -> Tensor:
    """Return which compressed keys a query reads: the best by small keys and queries of the indexer's own."""
    keys = compressed(ctx, "index", x, INDEX_WIDE, d.RUNS, RATE, INDEX_DIM)
    q, weights = Tensor("index_q", (*_ROWS, INDEX_HEADS, INDEX_DIM)), Tensor("index_weights", (*_ROWS, INDEX_HEADS))
    q = _turned(ctx, "index_q_rope", projected(ctx, "index_q_proj", low, q))
    weights = projected(ctx, "index_weights_proj", x, weights)
    scores = Tensor("index_scores", (*_ROWS, d.RUNS), Element.FP32)
    products = [Product("index_q_k", (*_ROWS, d.RUNS, INDEX_HEADS, INDEX_DIM))]
    whole = (d.RUNS, INDEX_HEADS, INDEX_DIM)
    ctx.build.elementwise("index_scores", [q, keys, weights], scores, products=products, whole=whole)
    chosen = Tensor("index_choice", (*_ROWS, TOPK), Element.INDEX)
    return ctx.build.elementwise("index_choose", [scores], chosen, whole=(d.RUNS, TOPK))


def _sizes(model: ModelDescriptor, *, name: str) -> Mapping[str, float]:
    given = model.mixer(name).sizes
    channels = model.num_attention_heads * model.head_dim
    own = {ONE: 1, GROUP: channels // given[GROUPS]}
    return own | ({WIDE: 2 * model.head_dim, INDEX_WIDE: 2 * given[INDEX_DIM]} if name == SPARSE else {})


def _part(name: str, *more: str) -> Mixer:
    build: Callable[[Context, Tensor, LayerKind], Tensor] = partial(attention, name=name)
    return Mixer(name=name, build=build, sizes=partial(_sizes, name=name), check=stated.check((*_NEEDS, *more)))


PARTS = (_part(PLAIN), _part(HEAVY, HEAVY_RATE), _part(SPARSE, RATE, INDEX_HEADS, INDEX_DIM, TOPK))
