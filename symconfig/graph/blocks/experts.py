"""Mixture of experts: router, permutation into slots, routed experts, shared expert, combination."""

from __future__ import annotations

from dataclasses import replace

from symconfig.descriptor.sections import Experts
from symconfig.graph import dims as d
from symconfig.graph.blocks.common import norm, projected
from symconfig.graph.blocks.mlp import mlp
from symconfig.graph.builder import Context
from symconfig.graph.implementation import Dispatch, ExpertKernels, Router, Routing
from symconfig.graph.operator import Element, Leg, Tensor, Use, Weight

# Operators that the host runs where the graph has one, forward and backward; counted in Megatron-LM (transformer/moe:
# router.py, moe_utils.py, token_dispatcher.py), the first adjusted to runs. Logits, load balance, choice, counts of
# tokens by expert and by rank; permutation, collectives and sorting of tokens and their probabilities; the way back.
ROUTE_LAUNCHES, DISPATCH_LAUNCHES, COMBINE_LAUNCHES = (35, 12), (12, 8), (8, 5)
BIAS_LAUNCHES = (3, 6)  # for each expert, see `_biased`

ONE_LOGIT = "shared_gate_width"


def experts(ctx: Context, x: Tensor, stream: Tensor) -> Tensor:
    """Append a mixture of experts and return y[B, S, D]: the weighted sum of the chosen experts, plus the shared
    expert.

    stream: the tensor that x is the norm of; models with separate norms for router and experts read it instead of x.
    Latent experts (Nemotron 3) stand between two projections of the stream, so that dispatched tokens are as wide as
    the experts. A zero-computation choice (LongCat) takes no slot: its token comes back as it is.
    """
    moe = ctx.model.experts
    assert moe is not None
    with ctx.build.leg(Leg.CHOICE):
        given = tokens = x
        if moe.norms_apart:  # the router's norm has a scale of each channel in place of a weight
            normed, out = norm(ctx, "router_norm", stream, weight=()), Tensor("router_scaled", stream.dims)
            scale = ctx.weight("router_scale", d.HIDDEN)
            given = ctx.build.elementwise("router_scale", [normed], out, saves=[normed], weights=[scale])
        probabilities, indices = router(ctx, given)
        if moe.norms_apart:
            tokens = norm(ctx, "experts_input_norm", stream)
        if moe.latent_size is not None:
            tokens = _projected(ctx, tokens, "latent_down_proj", d.EXPERT_LATENT)
    with ctx.build.leg(Leg.OUT):
        slots = Tensor("expert_in", (d.EXPERTS, _slot_dim(ctx), tokens.dims[-1]))
        read = [tokens] if ctx.how.experts.every_token else [tokens, indices]
        kept = _kept_to_sort(ctx, tokens.dims[:-1])
        routed = _sorted(ctx, "dispatch", read, slots, tokens, kept, DISPATCH_LAUNCHES)
        if moe.input_scaled:
            element = Element.ACTIVATION if ctx.how.experts.every_token else Element.FP32
            out, weights = Tensor("expert_in_scaled", routed.dims), Tensor("slot_weights", routed.dims[:-1], element)
            routed = ctx.build.elementwise("scale_slots", [routed], out, saves=[routed, weights])
    with ctx.build.leg(Leg.EXPERTS), ctx.build.module("moe_experts"), ctx.build.part("experts"):
        # Only grouped kernels have their activation recomputed alone (transformer/moe/experts.py).
        recomputed = "sequential_act" if ctx.how.experts.kernels is ExpertKernels.IN_TURN else "moe_act"
        done = mlp(ctx, routed, d.EXPERT_FFN, "expert_", moe.expert_bias, recomputed)
        if moe.expert_bias and ctx.how.experts.kernels is not ExpertKernels.FUSED:
            done = _biased(ctx, done)
        if ctx.how.experts.kernels is ExpertKernels.IN_TURN:  # SequentialMLP concatenates what several experts give
            joined = Tensor("expert_joined", done.dims)
            done = ctx.build.elementwise(
                "join_experts", [done], joined, traffic=(0, 0), sorts=2, sorts_experts=True, linear=True
            )
    with ctx.build.leg(Leg.BACK):
        combined = _combined(ctx, tokens, done, probabilities, indices)
    if moe.latent_size is not None:
        combined = _projected(ctx, combined, "latent_up_proj", d.HIDDEN)
    if moe.norms_apart:
        combined = norm(ctx, "routed_norm", combined)
    if moe.shared_expert_intermediate_size:
        combined = _shared(ctx, x, combined, moe.shared_expert_gate)
    return combined


def router(ctx: Context, x: Tensor) -> tuple[Tensor, Tensor]:
    """Append the router and return (weights, indices) of each token's experts, [B, S, choices]."""
    moe = ctx.model.experts
    assert moe is not None
    rows = x.dims[:-1]
    logits = Tensor("router_logits", (*rows, ROUTES), Element.FP32)
    if ctx.how.experts.router is Router.WIDE and ctx.how.experts.routing is Routing.INDEXED:
        x = ctx.build.elementwise("widen_router", [x], Tensor("router_in", x.dims, Element.FP32), linear=True)
    logits = projected(ctx, "router", x, logits, moe.router_bias)
    probabilities = Tensor("router_probabilities", (*rows, CHOICES), Element.FP32)
    indices = Tensor("router_indices", (*rows, CHOICES), Element.INDEX)
    whole = (ROUTES, CHOICES)  # a token is compared with all experts
    indexed = ctx.how.experts.routing is Routing.INDEXED
    scores = Element.ACTIVATION if ctx.how.experts.router is Router.NARROW else Element.FP32
    kept = indexed_choice(moe, rows, scores) if indexed else choice(moe, rows)
    saves = [logits, indices] if ctx.how.experts.routing is Routing.FUSED else kept if indexed else [*kept, indices]
    weights = []
    if moe.e_score_correction_bias and ctx.how.experts.choice_weight:
        weights = [replace(ctx.weight("choice_bias", ROUTES), gradient=False)]
    ctx.build.elementwise(
        "route", [logits], probabilities, saves=saves, weights=weights, launches=ROUTE_LAUNCHES, whole=whole
    )
    if moe.norms_apart:
        scale, given = ctx.weight("choice_scale", ROUTES), probabilities
        probabilities = Tensor("router_weights", given.dims, Element.FP32)
        read = [given, Tensor("router_scales", given.dims)]
        ctx.build.elementwise("scale_choice", [given], probabilities, saves=read, weights=[scale])
    return probabilities, indices


def _sorted(
    ctx: Context, name: str, given: list[Tensor], out: Tensor, x: Tensor, saves: list[Tensor], launches: tuple[int, int]
) -> Tensor:
    """Append the permutation of tokens x into slots, or back, and return `out`.

    Slots lie where their tokens lie: each part of the tokens has equally many of each expert. After an all-to-all,
    slots are ordered by sender and copied to be ordered by expert, and the reverse on the way back: they are read
    and written once more, unless a rank has one expert (`Operator.sorts`). If tokens are sent once per rank or node,
    they are read there to fill the slots: nearly as much is read as slots are written if experts are many.
    """
    slots, every = _slot_dim(ctx), ctx.how.experts.every_token
    by_slots = ctx.how.experts.dispatch is Dispatch.SLOTS
    return ctx.build.elementwise(
        name,
        given,
        out,
        loops=(*x.dims, slots),
        saves=saves,
        sorts=0 if every else 2 if by_slots else 1,
        sorts_experts=by_slots,
        launches=launches,
        whole=(CHOICES,),
        together=[(row, slots) for row in x.dims[:-1]],
    )


def _slot_dim(ctx: Context) -> str:
    return d.EVERY if ctx.how.experts.every_token else d.SLOTS


def _projected(ctx: Context, x: Tensor, name: str, width: str) -> Tensor:
    """Append the projection of a latent expert layer, to the experts' width or back to the stream's;
    return the result.
    """
    moe, out = ctx.model.experts, Tensor(name.removesuffix("_proj"), (*x.dims[:-1], width))
    assert moe is not None
    return projected(ctx, name, x, out, moe.latent_bias)


def _combined(ctx: Context, x: Tensor, done: Tensor, probabilities: Tensor, indices: Tensor) -> Tensor:
    """Append the combination and return y[B, S, D]: the sum of each token's slots.

    It is weighted, and saves the experts' results, unless the experts weight their activation or read weighted
    tokens.
    """
    moe = ctx.model.experts
    weighed = ctx.how.experts.weighted_inside or (moe is not None and moe.input_scaled)
    given, saves = [done, probabilities, indices], _kept_to_combine(ctx, probabilities, indices)
    saves = saves if weighed else [done, *saves]
    return _sorted(ctx, "combine", given, Tensor("moe_out", x.dims), x, saves, COMBINE_LAUNCHES)


def _kept_to_combine(ctx: Context, probabilities: Tensor, indices: Tensor) -> list[Tensor]:
    """Return the tensors that the combination saves: probabilities and indices, or index tables; empty if every expert
    runs on all tokens.
    """
    rows, experts = probabilities.dims[:-1], ctx.how.experts
    if experts.every_token:
        return []
    if experts.routing is Routing.INDEXED:
        return pairs_of_slots(rows, experts.wide_weights)
    return sorting(rows)[1:] if experts.routing is Routing.CHAIN else [probabilities, indices]


def _kept_to_sort(ctx: Context, rows: tuple[str, ...]) -> list[Tensor]:
    """Return the index tables that the dispatch saves; empty for fused kernels or if every expert runs on
    all tokens.
    """
    moe, routing = ctx.model.experts, ctx.how.experts.routing
    assert moe is not None
    if ctx.how.experts.every_token:
        return []
    if routing is Routing.INDEXED:
        return tokens_of_slots(moe, rows)
    return sorting(rows) if routing is Routing.CHAIN else []


def _biased(ctx: Context, done: Tensor) -> Tensor:
    """Append the addition of each expert's bias times the slot's probability, and return the result.

    A loop over the experts in eager kernels; the fp32 probabilities make the sum fp32. In units of the bf16 tensor:
    forward 2 (product), 5 (sum), 4 (joined), 3 (narrowed); backward 3 (widened), 3 (narrowed), 2 (joined), 6 and 6
    (gradients of probabilities and bias, with their sums). One kernel would move 2 each way.
    """
    out = Tensor(f"{done.name}_biased", done.dims)
    return ctx.build.elementwise("expert_bias", [done], out, traffic=(7, 10), per=(d.EXPERTS,), launches=BIAS_LAUNCHES)


def _shared(ctx: Context, x: Tensor, combined: Tensor, gated: bool) -> Tensor:
    """Append the shared expert, with a sigmoid gate if `gated`, and return its sum with the routed experts' result."""
    with ctx.build.module("shared_experts"), ctx.build.part("shared_experts"):
        shared = mlp(ctx, x, d.SHARED_FFN, "shared_", False, "shared_act")
        if ctx.model.experts is not None and ctx.model.experts.norms_apart:
            shared = norm(ctx, "shared_norm", shared)
        if gated:
            gate = Tensor("shared_gate_logit", (*x.dims[:-1], ONE_LOGIT))
            weight = Weight("shared_gate.weight", (d.HIDDEN, ONE_LOGIT), gradient=not ctx.frozen)
            ctx.build.matmul("shared_gate", x, weight, (d.HIDDEN,), [Use(gate)])
            shared = ctx.build.elementwise(
                "shared_scale", [shared, gate], Tensor("shared_scaled", x.dims), saves=[shared, gate]
            )
    return ctx.build.elementwise("shared_add", [combined, shared], Tensor("moe_total", x.dims), linear=True)


ROUTES = "router_width"  # one logit an expert; a dim of its own, since no axis splits the router
CHOICES = "num_experts_per_tok"


def choice(moe: Experts, rows: tuple[str, ...]) -> list[Tensor]:
    """Return the tensors that Megatron-LM's router saves in addition to the chosen indices
    (`topk_routing_with_score_function`, and the scores of the balancing loss).

    Tensors that only lead to indices are not saved, since no gradient reaches them. A choice by groups without a
    bias masks the scores of the groups that are left out.
    """
    first = moe.scoring_func == "softmax" and not moe.norm_topk_prob and not moe.softmax_after_topk
    result = []
    if moe.scoring_func == "sigmoid" or first:
        result.append(Tensor("router_scores", (*rows, ROUTES), Element.FP32))
    if moe.n_group is not None and moe.n_group > 1 and not moe.e_score_correction_bias:
        result.append(Tensor("left_out", (*rows, ROUTES), Element.MASK))
    if not first:
        result.append(Tensor("chosen_scores", (*rows, CHOICES), Element.FP32))
    if moe.scoring_func == "sigmoid":
        result.append(Tensor("chosen_sum", rows, Element.FP32))
    return result + (_balance(moe, rows) if moe.router_aux_loss_coef else [])


def _balance(moe: Experts, rows: tuple[str, ...]) -> list[Tensor]:
    """Return the scores that the balancing loss saves once more (`compute_routing_scores_for_aux_loss`)."""
    result = [Tensor("balance_scores", (*rows, ROUTES), Element.FP32)]
    if moe.scoring_func == "sigmoid":
        result.append(Tensor("balance_sum", rows, Element.FP32))
    return result


def sorting(rows: tuple[str, ...]) -> list[Tensor]:
    """Return the tensors that Megatron-LM's `permute` saves: the order of all (token, expert) pairs, and the token of
    each slot in use.
    """
    return [
        Tensor("sorted_pairs", (*rows, ROUTES), Element.INDEX),
        Tensor("slot_tokens", (*rows, CHOICES), Element.INDEX),
    ]


def indexed_choice(moe: Experts, rows: tuple[str, ...], scores: Element) -> list[Tensor]:
    """Return the tensors that Transformers' routers save, the chosen indices first (models/*/modeling_*.py:
    *TopKRouter).

    Tensors that only lead to indices are not saved. scores: the element type of scores.
    """
    result = [Tensor("router_indices", (*rows, CHOICES), Element.INDEX)]
    if moe.softmax_after_topk:
        return [*result, Tensor("chosen_scores", (*rows, CHOICES), scores)]
    result.append(Tensor("router_scores", (*rows, ROUTES), scores))
    if moe.n_group is not None and not moe.e_score_correction_bias:
        result.append(Tensor("left_out", (*rows, ROUTES), Element.MASK))
    if moe.norm_topk_prob:
        result.append(Tensor("chosen_scores", (*rows, CHOICES), scores))
        result.append(Tensor("chosen_sum", rows, scores))
    return result


def tokens_of_slots(moe: Experts, rows: tuple[str, ...]) -> list[Tensor]:
    """Return the tensors that Transformers saves on the way to the experts (integrations/moe.py,
    grouped_mm_experts_forward): each slot's token, its expert if experts have a bias, and the end of each expert's
    slots, in 32 bits.
    """
    names = ["slot_tokens", *(["slot_experts"] if moe.expert_bias else [])]
    return [*(_index(name, rows) for name in names), Tensor("expert_ends", (d.EXPERTS,), Element.FP32)]


def pairs_of_slots(rows: tuple[str, ...], wide: bool) -> list[Tensor]:
    """Return the tensors that Transformers saves on the way back: each slot's (token, expert) pair, each pair's slot,
    and the slots' weights, in fp32 if `wide`.
    """
    weights = Tensor("slot_weights", (*rows, CHOICES), Element.FP32 if wide else Element.ACTIVATION)
    return [_index("slot_pairs", rows), _index("pair_slots", rows), weights]


def _index(name: str, rows: tuple[str, ...]) -> Tensor:
    return Tensor(name, (*rows, CHOICES), Element.INDEX)
