"""The MLP, dense or gated; also the body of shared and routed experts, under other dims."""

from __future__ import annotations

from fractions import Fraction

from symconfig.graph import dims as d
from symconfig.graph.block import in_eight_bits
from symconfig.graph.blocks.common import beside_fused, linear, projected
from symconfig.graph.implementation import ExpertKernels, Routing
from symconfig.graph.operator import Element, Tensor, Use
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
    with ctx.build.module(activation_module):
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
    """Append the clamp of `half` (gate or up) to the model's limits and return it, "NAME_clamped"; it saves its input.

    Eager kernels clamp and join the halves again: four passes forward where one kernel makes two. Backward a masked
    copy of the gradient, joined again: five passes for three.
    """
    out = Tensor(f"{half.name}_clamped", half.dims)
    return ctx.build.elementwise(f"{half.name}_clamp", [half], out, saves=[half], traffic=(2, Fraction(5, 3)))
