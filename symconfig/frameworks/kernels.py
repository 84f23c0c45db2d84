"""The names by which options and measured runs speak of an implementation, and what each of them changes."""

from __future__ import annotations

from typing import Any

from symconfig.graph.implementation import (
    Adapters,
    Angles,
    Attention,
    Dispatch,
    ExpertKernels,
    Experts,
    Implementation,
    Kernel,
    Linear,
    Loss,
    LossKernel,
    NormKernel,
    Rotation,
    RotationKernel,
    Routing,
    Vocabulary,
)

KERNELS: dict[str, Kernel] = {
    "flash": Kernel.FLASH,
    "fused_softmax": Kernel.FUSED_SOFTMAX,
    "torch": Kernel.IN_TURN,
    "masked": Kernel.MASKED,
    "narrow": Kernel.NARROW,
    "wide": Kernel.WIDE,
}
LOSSES: dict[str, LossKernel] = {
    "fused": LossKernel.IN_PLACE,
    "flash": LossKernel.BESIDE,  # flash-attn's CrossEntropyLoss, whose inplace_backward is off by default
    "parallel": LossKernel.WIDE_IN_PLACE,  # Megatron-LM's on a split vocabulary, its default
    "torch": LossKernel.WIDE,  # PyTorch's cross_entropy
}
DISPATCHERS: dict[str, Dispatch] = {
    "alltoall": Dispatch.SLOTS,
    "deepep": Dispatch.ONCE_A_RANK,
    "hybridep": Dispatch.ONCE_A_NODE,
}


def options(how: Implementation) -> dict[str, Any]:
    """Return an implementation as options by name."""
    attention, linear, loss, experts = how.attention, how.linear, how.loss, how.experts
    return {
        "attention": _name(KERNELS, attention.kernel),
        "fused_linears": linear.joined,
        "norms_in_linears": linear.norm_inside,
        "fused_norm": how.norm is NormKernel.FUSED,
        "fused_activation": how.fused_activation,
        "fp8_activation_store": how.fp8_activation_store,
        "fp8_attention": attention.in_fp8,
        "fused_rope": how.rotation.kernel is not RotationKernel.EAGER,
        "fused_yarn": how.rotation.kernel is RotationKernel.FUSED_STRETCHED,
        "loss": _name(LOSSES, loss.kernel),
        "gathered_logits": how.vocabulary.gathered_logits,
        "whole_look_up": how.vocabulary.whole_look_up,
        "copied_attention": attention.copies_result,
        "wide_norm": how.norm is NormKernel.EAGER_WIDE,
        "viewed_values": linear.views,
        "repeated_heads": attention.copies_shared_heads,
        "own_rotations": how.rotation.angles is Angles.APART,
        "eager_routing": experts.routing is Routing.CHAIN,
        "sequential_experts": experts.kernels is ExpertKernels.IN_TURN,
        "weighted_experts": experts.weighted_inside,
        "kept_outputs": max(loss.kept_outputs, 1),
        "fused_bias": linear.bias_inside,
        "adapters": how.adapters.value,
        "stops_early": how.stops_early,
        "held_logits": loss.kept_outputs > 0,
        "deferred_gradients": loss.deferred_gradients,
        "logged_losses": loss.logged,
        "dispatcher": _name(DISPATCHERS, experts.dispatch),
        "fused_experts": experts.kernels is ExpertKernels.FUSED,
    }


def changed(how: Implementation, **changes: Any) -> Implementation:
    """Return the implementation with some options changed. Raises TypeError for a name that is none of them."""
    given = options(how)
    if unknown := changes.keys() - given.keys():
        raise TypeError(f"no options of an implementation: {', '.join(sorted(unknown))}")
    given |= changes
    return Implementation(
        attention=Attention(
            kernel=KERNELS[given["attention"]],
            copies_result=given["copied_attention"],
            copies_shared_heads=given["repeated_heads"],
            in_fp8=given["fp8_attention"],
            choosing=how.attention.choosing,
            wide_products=how.attention.wide_products,
            one_head_apart=how.attention.one_head_apart,
            scales_by_sinks=how.attention.scales_by_sinks,
        ),
        linear=Linear(
            joined=given["fused_linears"],
            norm_inside=given["norms_in_linears"],
            bias_inside=given["fused_bias"],
            views=given["viewed_values"],
        ),
        norm=_norm(given),
        activation=how.activation,
        scan=how.scan,
        rotation=Rotation(kernel=_rotation(given), angles=Angles.APART if given["own_rotations"] else Angles.ONCE),
        fused_activation=given["fused_activation"],
        fp8_activation_store=given["fp8_activation_store"],
        loss=Loss(
            kernel=LOSSES[given["loss"]],
            kept_outputs=given["kept_outputs"] if given["held_logits"] else 0,
            deferred_gradients=given["deferred_gradients"],
            logged=given["logged_losses"],
        ),
        vocabulary=Vocabulary(gathered_logits=given["gathered_logits"], whole_look_up=given["whole_look_up"]),
        experts=Experts(
            kernels=_experts(given),
            dispatch=DISPATCHERS[given["dispatcher"]],
            routing=_routing(how, given),
            weighted_inside=given["weighted_experts"],
            joined_weights=how.experts.joined_weights,
            router=how.experts.router,
            wide_weights=how.experts.wide_weights,
        ),
        adapters=Adapters(given["adapters"]),
        towers=how.towers,
        stops_early=given["stops_early"],
        of_class=how.of_class,
    )


def _name(names: dict[str, Any], value: object) -> str:
    return next(name for name, meant in names.items() if meant is value)


def _norm(given: dict[str, Any]) -> NormKernel:
    if given["fused_norm"]:
        return NormKernel.FUSED
    return NormKernel.EAGER_WIDE if given["wide_norm"] else NormKernel.EAGER


def _rotation(given: dict[str, Any]) -> RotationKernel:
    if not given["fused_rope"]:
        return RotationKernel.EAGER
    return RotationKernel.FUSED_STRETCHED if given["fused_yarn"] else RotationKernel.FUSED


def _routing(how: Implementation, given: dict[str, Any]) -> Routing:
    if given["eager_routing"]:
        return Routing.CHAIN
    return Routing.FUSED if how.experts.routing is Routing.CHAIN else how.experts.routing


def _experts(given: dict[str, Any]) -> ExpertKernels:
    if given["fused_experts"]:
        return ExpertKernels.FUSED
    return ExpertKernels.IN_TURN if given["sequential_experts"] else ExpertKernels.GROUPED
