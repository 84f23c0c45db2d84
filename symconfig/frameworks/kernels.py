"""The names by which options and measured runs speak of an implementation, and what each of them changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from operator import attrgetter
from typing import Any, Literal

from symconfig.graph.implementation import (
    Adapters,
    Angles,
    Dispatch,
    ExpertKernels,
    Implementation,
    Kernel,
    LossKernel,
    NormKernel,
    RotationKernel,
    Routing,
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
    "fused": LossKernel.IN_PLACE,  # one kernel; torchtune's in chunks, of which one at a time is widened to fp32
    "flash": LossKernel.APART,  # flash-attn's CrossEntropyLoss, whose inplace_backward is off by default
    "parallel": LossKernel.WIDE_IN_PLACE,  # Megatron-LM's on a split vocabulary, its default
    "torch": LossKernel.WIDE,  # PyTorch's cross_entropy
    "linear": LossKernel.LINEAR,  # Liger's fused linear cross-entropy (ops/fused_linear_cross_entropy.py)
    "tiled": LossKernel.TILED,  # TRL's head since 1.15 (kernels/chunked_logprob.py)
}
DISPATCHERS: dict[str, Dispatch] = {
    "alltoall": Dispatch.SLOTS,
    "allgather": Dispatch.EVERYWHERE,
    "deepep": Dispatch.ONCE_A_RANK,
    "hybridep": Dispatch.ONCE_A_NODE,
}


# Options that are one field, by its path; with names where its values have names of their own.
_FIELDS: dict[str, str] = {
    "fused_linears": "linear.joined",
    "norms_in_linears": "linear.norm_inside",
    "fused_bias": "linear.bias_inside",
    "viewed_values": "linear.views",
    "fused_activation": "fused_activation",
    "fp8_activation_store": "fp8_activation_store",
    "fp8_attention": "attention.in_fp8",
    "copied_attention": "attention.copies_result",
    "repeated_heads": "attention.copies_shared_heads",
    "gathered_logits": "gathered_logits",
    "whole_look_up": "whole_look_up",
    "weighted_experts": "experts.weighted_inside",
    "stops_early": "stops_early",
    "deferred_gradients": "loss.deferred_gradients",
    "logged_losses": "loss.logged",
}
_NAMED: dict[str, tuple[str, Mapping[str, Any]]] = {
    "attention": ("attention.kernel", KERNELS),
    "loss": ("loss.kernel", LOSSES),
    "dispatcher": ("experts.dispatch", DISPATCHERS),
    "routing": ("experts.routing", {each.value: each for each in Routing}),
    "adapters": ("adapters", {each.value: each for each in Adapters}),
}


def options(how: Implementation) -> dict[str, Any]:
    """Return an implementation's choices as options by name, so that `changed` with all of them gives the same.

    kept_outputs is at least 1; held_logits says whether any are kept.
    """
    return {
        **{name: attrgetter(path)(how) for name, path in _FIELDS.items()},
        **{name: _name(names, attrgetter(path)(how)) for name, (path, names) in _NAMED.items()},
        "fused_norm": how.norm is NormKernel.FUSED,
        "wide_norm": how.norm is NormKernel.EAGER_WIDE,
        "fused_rope": how.rotation.kernel is not RotationKernel.EAGER,
        "fused_yarn": how.rotation.kernel is RotationKernel.FUSED_STRETCHED,
        "own_rotations": how.rotation.angles is Angles.APART,
        "sequential_experts": how.experts.kernels is ExpertKernels.IN_TURN,
        "fused_experts": how.experts.kernels is ExpertKernels.FUSED,
        "kept_outputs": max(how.loss.kept_outputs, 1),
        "held_logits": how.loss.kept_outputs > 0,
    }


def kinds(how: Implementation) -> dict[str, Any]:
    """Return the type of each option of an implementation by name: a Literal for named choices."""
    return {name: type(value) for name, value in options(how).items()} | {
        name: Literal[tuple(names)] for name, (_, names) in _NAMED.items()
    }


def changed(how: Implementation, **changes: Any) -> Implementation:
    """Return a copy of the implementation with some options changed; the others keep their values.

    Raises:
        TypeError: a name is no option.
        KeyError: a named choice has no such value.
    """
    given = options(how)
    if unknown := changes.keys() - given.keys():
        raise TypeError(f"no options of an implementation: {', '.join(sorted(unknown))}")
    given |= changes
    values = {
        **{path: given[name] for name, path in _FIELDS.items()},
        **{path: names[given[name]] for name, (path, names) in _NAMED.items()},
        "norm": _norm(given),
        "rotation.kernel": _rotation(given),
        "rotation.angles": Angles.APART if given["own_rotations"] else Angles.ONCE,
        "loss.kept_outputs": given["kept_outputs"] if given["held_logits"] else 0,
        "experts.kernels": _experts(given),
    }
    parts = {path: value for path, value in values.items() if "." not in path}
    for part in {path.partition(".")[0] for path in values.keys() - parts.keys()}:
        fields = {path.partition(".")[2]: value for path, value in values.items() if path.startswith(f"{part}.")}
        parts[part] = replace(getattr(how, part), **fields)
    return replace(how, **parts)


def _name(names: Mapping[str, Any], value: object) -> str:
    return next(name for name, meant in names.items() if meant is value)


def _norm(given: dict[str, Any]) -> NormKernel:
    if given["fused_norm"]:
        return NormKernel.FUSED
    return NormKernel.EAGER_WIDE if given["wide_norm"] else NormKernel.EAGER


def _rotation(given: dict[str, Any]) -> RotationKernel:
    if not given["fused_rope"]:
        return RotationKernel.EAGER
    return RotationKernel.FUSED_STRETCHED if given["fused_yarn"] else RotationKernel.FUSED


def _experts(given: dict[str, Any]) -> ExpertKernels:
    if given["fused_experts"]:
        return ExpertKernels.FUSED
    return ExpertKernels.IN_TURN if given["sequential_experts"] else ExpertKernels.GROUPED
