"""The MLP, dense or gated, which is also the body of experts under other dims; and the mixture of experts: router,
permutation into slots, routed experts, shared expert, combination.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from symconfig.descriptor.architectures.keys import SCORE_BIAS
from symconfig.descriptor.sections import Experts
from symconfig.graph import dims as d
from symconfig.graph.block import in_eight_bits
from symconfig.graph.blocks.common import beside_fused, linear, norm, projected
from symconfig.graph.implementation import Dispatch, ExpertKernels, Router, Routing
from symconfig.graph.operator import Element, Leg, Tensor, Use, Weight
from symconfig.graph.parts import Context

SLOPES = ("alpha_p", "alpha_n")  # of xIELU: a number each, learned (arXiv:2411.13010)
FUSED = {
    d.FFN: d.FFN_FUSED,
    d.WIDE_FFN: d.WIDE_FFN_FUSED,
    d.SHARED_FFN: d.SHARED_FFN_FUSED,
    d.EXPERT_FFN: d.EXPERT_FFN_FUSED,
}


def mlp(
    ctx: Context,
    x: Tensor,
    width: str = d.FFN,
    prefix: str = "",
    bias: bool | None = None,
    activation_module: str = "mlp_act",
) -> Tensor:
    """Append an MLP through the dim `width`, gated if the model's is, and return y[..., D] with x's dims.

    Gate and up are one fused product unless `Context.separate` (adapters, implementation). A clamped SwiGLU clamps both
    first unless expert kernels are FUSED. A gate's activation is a kernel before the product unless `fused_activation`.
    Ungated experts that weight inside have a further weighting kernel; the activation of experts saves the slots'
    probabilities, fp32 for sigmoid scores, where routing is a CHAIN. xIELU has two learned slopes.

    Args:
        prefix: of all names.
        bias: of the linear layers; None: as the model has it.
        activation_module: the recompute module of the activation.
    """
    bias = ctx.model.mlp_bias if bias is None else bias
    rows = x.dims[:-1]
    up = Tensor(f"{prefix}up", (*rows, width))
    gate = Tensor(f"{prefix}gate", (*rows, width))
    gated = ctx.model.gated_mlp
    if gated and not ctx.separate(f"{prefix}gate_up_proj", ("gate_proj", "up_proj", "w1", "w2")):
        fused = FUSED[width]
        halves = [Use(half).renamed((width, fused)) for half in (gate, up)]
        gate, up = linear(ctx, f"{prefix}gate_up_proj", x, x.dims[-1:], (fused,), halves, bias)
        up = beside_fused(ctx, f"{prefix}up_proj", x, (width,), up, ("up_proj", "w1"))
        gate = beside_fused(ctx, f"{prefix}gate_proj", x, (width,), gate, ("gate_proj", "w2"))
    else:
        joined = ctx.how.experts.joined_weights and width == d.EXPERT_FFN
        up = projected(ctx, f"{prefix}up_proj", x, up, bias, aliases=("up_proj", "w1"), joined=joined)
        if gated:
            gate = projected(ctx, f"{prefix}gate_proj", x, gate, bias, aliases=("gate_proj", "w2"), joined=joined)
    middle = Tensor(f"{prefix}mlp_hidden", (*rows, width))
    with ctx.build.within(activation_module):
        if gated and ctx.model.hidden_act == "clamped_swiglu" and ctx.how.experts.kernels is not ExpertKernels.FUSED:
            gate, up = (_clamped(ctx, half) for half in (gate, up))
        if gated and not ctx.how.fused_activation:
            active = Tensor(f"{prefix}gate_active", gate.dims)
            kept = _kept(ctx, [gate], active)
            if ctx.model.hidden_act == "clamped_swiglu":  # modeling_gpt_oss.py
                kept = [gate, Tensor(f"{gate.name}.sigmoid", gate.dims)]
            ctx.build.elementwise(f"{prefix}gate_activation", [gate], active, saves=kept)
            ctx.build.elementwise(f"{prefix}activation", [active, up], middle, saves=[active, up])
        else:
            inputs, moe = [gate, up] if gated else [up], ctx.model.experts
            routed = moe is not None and width == d.EXPERT_FFN and not moe.input_scaled  # weighted by the router
            weighted = routed and ctx.how.experts.weighted_inside and not gated
            active = Tensor(f"{prefix}active", up.dims) if weighted else middle
            # A fused kernel works on what its products have in registers.
            traffic = (0, 0) if ctx.how.experts.kernels is ExpertKernels.FUSED and width == d.EXPERT_FFN else (1, 1)
            kept = [in_eight_bits(one) for one in inputs] if ctx.how.fp8_activation_store else inputs
            saves = _kept(ctx, kept, active)
            if moe is not None and routed and ctx.how.experts.routing is Routing.CHAIN:
                element = Element.FP32 if moe.scoring_func == "sigmoid" else Element.ACTIVATION
                saves = [*saves, Tensor("slot_probabilities", (d.EXPERTS, d.SLOTS), element)]
            turns = (d.EXPERTS,) if ctx.how.experts.kernels is ExpertKernels.IN_TURN and d.EXPERTS in rows else ()
            slopes = [ctx.weight(f"{prefix}{name}") for name in SLOPES] if ctx.model.hidden_act == "xielu" else []
            ctx.build.elementwise(
                f"{prefix}activation", inputs, active, saves=saves, weights=slopes, traffic=traffic, per=turns
            )
            if weighted:
                ctx.build.elementwise(f"{prefix}weighting", [active], middle, saves=[active])
    out = Tensor(f"{prefix}mlp_out", x.dims)
    return projected(ctx, f"{prefix}down_proj", middle, out, bias, aliases=("down_proj", "c_proj"))


def _kept(ctx: Context, inputs: list[Tensor], active: Tensor) -> list[Tensor]:
    """Return the tensors that an activation saves: its inputs, and more in two cases; for ReLU of one input its result
    `active`, which the next product saves anyway.

    GELU by tanh in steps (Transformers 5.24, activations.py:NewGELUActivation) also saves half of its input, the tanh
    and one plus the tanh. xIELU (_xielu_python there) also saves a mask where x is positive, its product with a slope,
    its exponential less one, and that less x.
    """
    if ctx.model.hidden_act == "relu" and len(inputs) == 1:
        return [active]
    if ctx.model.hidden_act == "gelu_tanh" and ctx.how.gelu_in_steps:
        return [*inputs, *(Tensor(f"{active.name}.{part}", active.dims) for part in ("half", "tanh", "one_more"))]
    if ctx.model.hidden_act != "xielu":
        return inputs
    parts = [Tensor(f"{active.name}.{part}", active.dims) for part in ("sloped", "exponential", "difference")]
    return [*inputs, Tensor(f"{active.name}.positive", active.dims, Element.MASK), *parts]


def _clamped(ctx: Context, half: Tensor) -> Tensor:
    """Append the operator that clamps `half` (gate or up) to the model's limits; return its output, "NAME_clamped".

    The operator saves its input for the backward. Traffic is that of eager kernels: they clamp and join the halves
    again, four passes forward where one kernel makes two; backward a masked copy of the gradient, joined again: five
    passes for three.
    """
    out = Tensor(f"{half.name}_clamped", half.dims)
    return ctx.build.elementwise(f"{half.name}_clamp", [half], out, saves=[half], traffic=(2, Fraction(5, 3)))


# Operators that the host runs where the graph has one, forward and backward; counted in Megatron-LM (transformer/moe:
# router.py, moe_utils.py, token_dispatcher.py), the first adjusted to runs. Logits, load balance, choice, counts of
# tokens by expert and by rank; permutation, collectives and sorting of tokens and their probabilities; the way back.
ROUTE_LAUNCHES, DISPATCH_LAUNCHES, COMBINE_LAUNCHES = (35, 12), (12, 8), (8, 5)
BIAS_LAUNCHES = (3, 6)  # for each expert, see `_biased`

ONE_LOGIT = "shared_gate_width"


def experts(ctx: Context, x: Tensor, stream: Tensor) -> Tensor:
    """Append a mixture of experts and return y[B, S, D]: the weighted sum of the chosen experts of x.

    With `norms_apart` the router reads a scaled norm of `stream` (of which x is a norm) and the experts another norm of
    it, and the sum is normed. With `latent_size` tokens are projected down before the dispatch, and the sum up again
    (Nemotron 3). With `input_scaled` slots are multiplied by their weights before the experts. Biases are added by
    `_biased` unless kernels are FUSED; experts IN_TURN have their results joined. A shared expert of x is added if the
    model has one. If every expert runs on each token, the dispatch reads no indices; a zero-computation choice
    (LongCat) takes no slot.
    """
    moe = ctx.model.experts
    assert moe is not None
    with ctx.build.within(leg=Leg.CHOICE):
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
    with ctx.build.within(leg=Leg.OUT):
        slots = Tensor("expert_in", (d.EXPERTS, _slot_dim(ctx), tokens.dims[-1]))
        read = [tokens] if ctx.how.experts.every_token else [tokens, indices]
        kept = _kept_to_sort(ctx, tokens.dims[:-1])
        routed = _sorted(ctx, "dispatch", read, slots, tokens, kept, DISPATCH_LAUNCHES)
        if moe.input_scaled:
            element = Element.ACTIVATION if ctx.how.experts.every_token else Element.FP32
            out, weights = Tensor("expert_in_scaled", routed.dims), Tensor("slot_weights", routed.dims[:-1], element)
            routed = ctx.build.elementwise("scale_slots", [routed], out, saves=[routed, weights])
    with ctx.build.within("moe_experts", part="experts", leg=Leg.EXPERTS):
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
    with ctx.build.within(leg=Leg.BACK):
        combined = _combined(ctx, tokens, done, probabilities, indices)
    if moe.latent_size is not None:
        combined = _projected(ctx, combined, "latent_up_proj", d.HIDDEN)
    if moe.norms_apart:
        combined = norm(ctx, "routed_norm", combined)
    if moe.shared_expert_intermediate_size:
        combined = _shared(ctx, x, combined, moe.shared_expert_gate)
    return combined


def router(ctx: Context, x: Tensor) -> tuple[Tensor, Tensor]:
    """Append the router of x and return (fp32 weights, indices) of each token's experts, [B, S, choices].

    x is widened to fp32 first if the router is WIDE and routing INDEXED. What the choice saves follows from the
    routing: FUSED saves logits and indices, INDEXED what Transformers' routers save, any other what Megatron-LM's does
    and the indices. In Transformers' classes of SCORE_BIAS (INDEXED) a bias for the choice is a weight without
    gradient. With `norms_apart` weights are multiplied by a learned scale per expert.
    """
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
    if moe.e_score_correction_bias and indexed and ctx.model.model_type in SCORE_BIAS:
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
    """Append the permutation `name`, which reads `given`, of tokens with x's dims into slots, or back, and return
    `out`. saves, launches: see Operator.

    Each part of the tokens has equally many slots of each expert. After an all-to-all of SLOTS, these are ordered by
    sender and copied to be ordered by expert: read and written once more (`sorts` 2), unless a rank has one expert. In
    other dispatches tokens are sent once per rank or node and read there to fill the slots (`sorts` 1). Nothing is
    sorted if every expert runs on each token.
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
    """Append the projection `name` of a latent expert layer, with last dim `width` (the experts', or the stream's on
    the way back), and a bias if the model has one; return the result, named `name` without "_proj".
    """
    moe, out = ctx.model.experts, Tensor(name.removesuffix("_proj"), (*x.dims[:-1], width))
    assert moe is not None
    return projected(ctx, name, x, out, moe.latent_bias)


def _combined(ctx: Context, x: Tensor, done: Tensor, probabilities: Tensor, indices: Tensor) -> Tensor:
    """Append the combination and return moe_out with x's dims: the sum of each token's slots. It is weighted, and then
    also saves the experts' results, unless the experts weight their activation (`weighted_inside`) or read weighted
    tokens (`input_scaled`).

    It also saves, unless every expert runs on all tokens: the token of each slot with CHAIN routing; with INDEXED each
    slot's (token, expert) pair, each pair's slot and the slots' weights, as Transformers; else probabilities and
    indices.
    """
    moe, how, rows = ctx.model.experts, ctx.how.experts, x.dims[:-1]
    weighed = how.weighted_inside or (moe is not None and moe.input_scaled)
    saves = [] if weighed else [done]
    if how.routing is Routing.CHAIN:
        saves += _kept_to_sort(ctx, rows)[1:]
    elif how.routing is Routing.INDEXED and not how.every_token:
        weights = Element.FP32 if how.wide_weights else Element.ACTIVATION
        parts = {"slot_pairs": Element.INDEX, "pair_slots": Element.INDEX, "slot_weights": weights}
        saves += [Tensor(name, (*rows, CHOICES), element) for name, element in parts.items()]
    elif not how.every_token:
        saves += [probabilities, indices]
    given, out = [done, probabilities, indices], Tensor("moe_out", x.dims)
    return _sorted(ctx, "combine", given, out, x, saves, COMBINE_LAUNCHES)


def _kept_to_sort(ctx: Context, rows: tuple[str, ...]) -> list[Tensor]:
    """Return the index tables that the dispatch saves; empty if every expert runs on all tokens. rows: dims of the
    tokens.

    CHAIN: as Megatron-LM's `permute`, the order of all (token, expert) pairs and the token of each slot in use.
    INDEXED: as Transformers (integrations/moe.py, grouped_mm_experts_forward), each slot's token, its expert if experts
    have a bias, and the end of each expert's slots, in 32 bits. FUSED: none.
    """
    moe, how = ctx.model.experts, ctx.how.experts
    assert moe is not None
    if how.every_token or how.routing not in (Routing.INDEXED, Routing.CHAIN):
        return []
    slot_tokens = Tensor("slot_tokens", (*rows, CHOICES), Element.INDEX)
    if how.routing is Routing.CHAIN:
        return [Tensor("sorted_pairs", (*rows, ROUTES), Element.INDEX), slot_tokens]
    experts_of_slots = [replace(slot_tokens, name="slot_experts")] if moe.expert_bias else []
    return [slot_tokens, *experts_of_slots, Tensor("expert_ends", (d.EXPERTS,), Element.FP32)]


def _biased(ctx: Context, done: Tensor) -> Tensor:
    """Append the addition of each expert's bias times the slot's probability, as a loop over the experts, and return
    the result in the type of `done`.

    The fp32 probabilities make the sum fp32. Traffic in units of the bf16 tensor: forward 2 (product), 5 (sum), 4
    (joined), 3 (narrowed); backward 3 (widened), 3 (narrowed), 2 (joined), 6 and 6 (gradients of probabilities and
    bias, with their sums). One kernel would move 2 in each pass.
    """
    out = Tensor(f"{done.name}_biased", done.dims)
    return ctx.build.elementwise("expert_bias", [done], out, traffic=(7, 10), per=(d.EXPERTS,), launches=BIAS_LAUNCHES)


def _shared(ctx: Context, x: Tensor, combined: Tensor, gated: bool) -> Tensor:
    """Append the shared expert of x, normed with `norms_apart` and scaled by a sigmoid gate if `gated`, and return its
    sum with `combined`, the routed experts' result. The gate has no adapter and is never held in 4 bits.
    """
    with ctx.build.within("shared_experts", part="shared_experts"):
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
    (`topk_routing_with_score_function`): scores of all experts for sigmoid, or for softmax before the choice without
    normalisation; a mask for groups without a correction bias; chosen scores in all cases but that softmax; their sum
    for sigmoid; and, with a balancing loss, its scores. rows: dims of the tokens.

    Tensors that only lead to indices are not saved, since no gradient reaches them.
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
    if moe.router_aux_loss_coef:  # compute_routing_scores_for_aux_loss
        result.append(Tensor("balance_scores", (*rows, ROUTES), Element.FP32))
        if moe.scoring_func == "sigmoid":
            result.append(Tensor("balance_sum", rows, Element.FP32))
    return result


def indexed_choice(moe: Experts, rows: tuple[str, ...], scores: Element) -> list[Tensor]:
    """Return the tensors that Transformers' routers save, the chosen indices first (models/*/modeling_*.py:
    *TopKRouter): with softmax after the choice, only the chosen scores; else all scores, a mask for groups without a
    correction bias, and, if weights are normalised, the chosen scores and their sum. scores: the element type of
    scores. Tensors that only lead to indices are not saved.
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
