"""Attention that families have in place of grouped-query attention, in all of their layers or in some."""

from __future__ import annotations

from symconfig.descriptor.layers import LayerKind, Pairs
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import Position
from symconfig.errors import InputError
from symconfig.graph import dims as d
from symconfig.graph.attended import FULL
from symconfig.graph.blocks.attention import (
    Read,
    apply_rope,
    borrow_kv,
    contiguous,
    core,
    lend_kv,
    norm_and_rotate,
    output,
    projections,
    repeat_kv,
    rotate,
)
from symconfig.graph.blocks.common import add_bias, linear, norm, projected, to_stream
from symconfig.graph.blocks.experts import CHOICES, router
from symconfig.graph.builder import Context
from symconfig.graph.implementation import Kernel
from symconfig.graph.operator import Element, Product, Tensor, Use
from symconfig.graph.parts import Mixer

WIDE = "wide_attention"
KV_HEADS, WIDTH, ROTARY = "wide_key_value_heads", "wide_head_dim", "wide_rotary_dim"
VALUE_WIDTH = "wide_value_dim"  # of values, where it is not that of queries and keys
KEYS_ARE_VALUES, OUT_BIAS = "keys_are_values", "out_bias"
_ROWS = (d.BATCH, d.SEQUENCE)


def wide_attention(ctx: Context, x: Tensor, kind: LayerKind) -> Tensor:
    """Append attention that differs from the model's in some layers, and return o[B, S, D] from x[B, S, D]. With sizes
    of its own it has separate projections; without, the model's usual ones.

    It has other key/value heads and head widths (Gemma 4), lacks the sinks that layers with a window have (MiMo), or
    has a bias that no other layer has (GPT-NeoX Japanese).

    Heads are as many as elsewhere, and without sizes of their own as wide. Without a projection of values, a value
    is its key before the key's norm and rotation.
    """
    if not ctx.model.mixer(WIDE).sizes:
        (q, k, v), _ = projections(ctx, x)
        return _wide_result(ctx, *norm_and_rotate(ctx, q, k, kind), v)
    bias = ctx.model.qkv_bias
    q = projected(ctx, "q_proj", x, Tensor("q", (*_ROWS, d.HEADS, WIDTH)), bias)
    if kind.pairs is Pairs.BORROWED:
        k, v = borrow_kv(ctx, (*_ROWS, KV_HEADS), (WIDTH, WIDTH), kind)
        return _wide_result(ctx, _wide_queries(ctx, q), k, v)
    k = projected(ctx, "k_proj", x, Tensor("k", (*_ROWS, KV_HEADS, WIDTH)), bias)
    sizes = ctx.model.mixer(WIDE)
    width = VALUE_WIDTH if sizes.sizes.get(VALUE_WIDTH) else WIDTH
    values = Tensor("v", (*_ROWS, KV_HEADS, width))
    v = k if KEYS_ARE_VALUES in sizes.switches else projected(ctx, "v_proj", x, values, bias)
    if ctx.model.v_norm:
        v = norm(ctx, "v_norm", v, width, "qk_norm", weight=())
    q, k = _wide_queries(ctx, q), _wide_queries(ctx, k)
    if kind.pairs is Pairs.LENT:
        k, v = lend_kv(ctx, k, v, kind)
    return _wide_result(ctx, q, k, v)


def _wide_queries(ctx: Context, given: Tensor) -> Tensor:
    """Return queries or keys after the model's norm and rotary embedding; unchanged if it has neither."""
    name = given.name
    if ctx.model.qk_norm:
        given = norm(ctx, f"{name}_norm", given, WIDTH, "qk_norm")
    turns = ctx.model.position is Position.ROPE
    return apply_rope(ctx, f"rope_{name}", given, f"{name}_rotated", ROTARY) if turns else given


def _wide_result(ctx: Context, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    bias = ctx.model.attention_out_bias or OUT_BIAS in ctx.model.mixer(WIDE).switches
    return to_stream(ctx, "o_proj", contiguous(ctx, core(ctx, q, k, v, Read(FULL))), bias)


DIFFERENTIAL = "differential_attention"
HEAD_PAIRS, VALUE_PAIRS, BOTH = "head_pairs", "value_head_pairs", "both_head_dims"
TWICE, KEYS_TWICE = "heads_twice", "key_heads_twice"  # heads of both runs
LAMBDAS = ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2")


def differential_attention(ctx: Context, x: Tensor, kind: LayerKind) -> Tensor:
    """Append differential attention with separate projections and return o[B, S, D] from x[B, S, D]. Sizes come from
    `ctx.model`; `kind` is not used.

    Differential attention (Ye et al. 2024, arXiv 2410.05258), as Transformers' DiffLlamaAttention runs it.

    Heads are pairs: head i and head i + A/2 see values of two heads together. Each half of the value heads is
    repeated for both halves of the key heads, and attention runs once for each; the result of the second half of the
    heads is subtracted from the first one's after multiplication by a learned number, and the difference is normed
    over both halves of the values.
    """
    q, k, v = (
        projected(ctx, f"{name}_proj", x, Tensor(name, (*_ROWS, heads, d.HEAD_DIM)), ctx.model.qkv_bias)
        for name, heads in (("q", d.HEADS), ("k", d.KV_HEADS), ("v", d.KV_HEADS))
    )
    if ctx.model.position is Position.ROPE:
        q, k = apply_rope(ctx, "rope_q", q, "q_rotated"), apply_rope(ctx, "rope_k", k, "k_rotated")
    o = _normed_pairs(ctx, _difference(ctx, _attended(ctx, q, k, v)))
    return to_stream(ctx, "o_proj", o, ctx.model.attention_out_bias)


def _attended(ctx: Context, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Append differential attention's two runs and return the heads of both value halves, joined.

    A flash kernel reads queries and keys twice in place; otherwise both are copied in memory first.
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
        "join_halves", [contiguous(ctx, halves)], joined, together=[*heads, (BOTH, d.HEAD_DIM)], linear=True
    )


def _flash(ctx: Context, q: Tensor, k: Tensor, values: Tensor) -> Tensor:
    """Append fused attention of twice the heads, without copies of queries and keys, and return its result."""
    with ctx.build.module("core_attn"):
        return ctx.build.attention(
            Use(q).renamed((d.HEADS, TWICE)),
            Use(k).renamed((d.SEQUENCE, d.KEYS), (d.KV_HEADS, KEYS_TWICE)),
            v=Use(values).renamed((d.SEQUENCE, d.KEYS)),
            keys=FULL,
            in_fp8=ctx.how.attention.in_fp8,
        )


def _difference(ctx: Context, joined: Tensor) -> Tensor:
    """Append the first half of the heads minus the second times a number computed from four learned
    vectors; return it.
    """
    weights = [ctx.weight(name, d.HEAD_DIM) for name in LAMBDAS]
    out, pairs = Tensor("attention_difference", (*_ROWS, HEAD_PAIRS, BOTH)), [(d.HEADS, HEAD_PAIRS)]
    return ctx.build.elementwise(
        "subtract_pairs", [joined], out, saves=[joined], weights=weights, together=pairs, launches=(10, 14)
    )


def _normed_pairs(ctx: Context, x: Tensor) -> Tensor:
    """Append PyTorch's own RMSNorm (one kernel, no weight) times a constant of the layer, and return it."""
    statistics = Tensor("pair_norm.statistics", x.dims[:-1], Element.FP32)
    out, over = Tensor("attention_pairs", x.dims), {BOTH: 1}
    return ctx.build.elementwise(
        "pair_norm", [x], out, saves=[x, statistics], traffic=(2, 2), launches=(2, 2), reduces=over
    )


def _differential_sizes(model: ModelDescriptor) -> dict[str, float]:
    pairs, values = model.num_attention_heads // 2, model.num_key_value_heads // 2
    twice = {TWICE: 4 * pairs, KEYS_TWICE: 4 * values}
    return {HEAD_PAIRS: pairs, VALUE_PAIRS: values, BOTH: 2 * model.head_dim, **twice}


MIXTURE = "mixture_attention"
PAIRS, KEYS_AND_VALUES = "attention_pairs", "key_value_width"
_HEADS = [(d.HEADS, d.KV_HEADS)]


def mixture_attention(ctx: Context, x: Tensor, kind: LayerKind) -> Tensor:
    """Append attention with a mixture of query and output projections, and return o[B, S, D] from x[B, S, D]. Raise
    InputError for a model without experts. Sizes come from `ctx.model`; `kind` is not used.

    Attention whose queries and output are a mixture of experts (JetMoE, arXiv:2404.07413).

    A token's router chooses pairs of a query and an output projection. Each choice gives one query to every head of
    keys, and all choices share keys and values: of A heads, KV belong to a choice. Every rank holds all pairs, so no
    token travels, and those of a rank run one after the other (Transformers' JetMoeMoA).
    """
    if ctx.model.experts is None:
        raise InputError(f"{MIXTURE} needs the section experts", field="mixers")
    probabilities, indices = router(ctx, x, "attention_")
    tokens, slots = (Tensor(f"attention_{name}", (*_ROWS, CHOICES), Element.INDEX) for name in ("tokens", "slots"))
    k, v = (Tensor(name, (*_ROWS, d.KV_HEADS, d.HEAD_DIM)) for name in "kv")
    both = [Use(one).renamed((d.KV_HEADS, KEYS_AND_VALUES)) for one in (k, v)]
    k, v = linear(ctx, "kv_proj", x, (d.HIDDEN,), (KEYS_AND_VALUES,), both)
    q, k = rotate(ctx, _queries_of_pairs(ctx, x, indices, [tokens, slots]), k)
    k, v = repeat_kv(ctx, q, k, Use(v))
    o = contiguous(ctx, core(ctx, q, k, v, Read(FULL)))
    return add_bias(ctx, "attention_experts", _sum_of_pairs(ctx, x, o, [probabilities, indices], [tokens, slots]))


def _queries_of_pairs(ctx: Context, x: Tensor, indices: Tensor, order: list[Tensor]) -> Tensor:
    """Append the chosen experts' query projections and return q[B, S, A, C]; saves a copy of each token per choice.

    order: the index tensors that index_add saves.
    """
    q, routed = Tensor("q", (*_ROWS, d.HEADS, d.HEAD_DIM)), Tensor("attention_in", (*_ROWS, CHOICES, d.HIDDEN))
    given = Tensor("attention_queries", q.dims)
    return ctx.build.elementwise(
        "pair_q_proj", [x, indices], q, saves=[routed, given, *order], per=(PAIRS,), together=_HEADS,
        weights=[ctx.weight("pair_q_proj.weight", PAIRS, d.HIDDEN, d.KV_HEADS, d.HEAD_DIM)],
        products=[Product("pair_q_proj", (*q.dims, d.HIDDEN))],
        whole=(d.HIDDEN, CHOICES, d.HEAD_DIM, PAIRS),
    )  # fmt: skip


def _sum_of_pairs(ctx: Context, x: Tensor, o: Tensor, chosen: list[Tensor], order: list[Tensor]) -> Tensor:
    """Append the chosen experts' output projections and the weighted sum of each token's choices; return it with x's
    dims.

    chosen: (probabilities, indices). order: the index tensors that index_add saves.
    """
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


DYNAMIC_MASK, STEPS = "dynamic_mask_attention", "mask_heads"


def dynamic_mask_attention(ctx: Context, x: Tensor, kind: LayerKind) -> Tensor:
    """Append attention under a mask that is computed from its values, and return o[B, S, D] from x[B, S, D]. `kind`
    only says whether the layer has rotary embedding.

    Attention under a mask that its values make (Doge, arXiv:2507.02748's dynamic mask attention).

    A value gives one number for each head of keys, m = exp(a softplus(w v)), which is added to every query's score
    of that key. Transformers' DogeAttention builds all of the mask, which the backward needs, and copies it for each
    query head. Of sequences longer than keep_window_size it also keeps where a key is not among a query's best, a
    byte for each: that is left out.
    """
    (q, k, v), gate = projections(ctx, x)
    q, k = norm_and_rotate(ctx, q, k, kind)
    return output(ctx, x, core(ctx, q, k, v, Read(FULL, _mask(ctx, v), kept=True)), gate)


def _mask(ctx: Context, v: Tensor) -> Tensor:
    """Append the mask that values make, and return it: [B, KV, S, T], or [B, A, S, T] if query heads share
    key heads.
    """
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


PARTS = (
    Mixer(
        name=WIDE,
        build=wide_attention,
        sizes=lambda model: {KV_HEADS: model.num_key_value_heads, **model.mixer(WIDE).sizes},
        tensor_dims=(KV_HEADS,),
        pieces=(KV_HEADS,),
        needs=(KV_HEADS, WIDTH, ROTARY),
        may=(VALUE_WIDTH,),
        optional=True,
        switches=(KEYS_ARE_VALUES, OUT_BIAS),
    ),
    Mixer(
        name=DIFFERENTIAL,
        build=differential_attention,
        sizes=_differential_sizes,
        tensor_dims=(TWICE, KEYS_TWICE, HEAD_PAIRS),
        pieces=(HEAD_PAIRS, VALUE_PAIRS),
    ),
    Mixer(
        name=MIXTURE,
        build=mixture_attention,
        sizes=lambda model: {
            PAIRS: model.experts.num_experts if model.experts else 0,
            KEYS_AND_VALUES: 2 * model.num_key_value_heads * model.head_dim,
        },
        tensor_dims=(KEYS_AND_VALUES,),
    ),
    Mixer(name=DYNAMIC_MASK, build=dynamic_mask_attention, sizes=lambda model: {STEPS: model.num_key_value_heads}),
)
