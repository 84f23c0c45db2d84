"""What hybrid families' rules read, written back: types of layers, sizes, and factors that their classes check."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from symconfig.descriptor.architectures.architecture import FULL, LINEAR
from symconfig.descriptor.layers import Mlp

if TYPE_CHECKING:
    from symconfig.descriptor.model import ModelDescriptor


def nemotron_keys(model: ModelDescriptor) -> dict[str, Any]:
    """Return the type of each layer, of those without a mixer what they have alone."""
    alone = {Mlp.MOE: "moe", Mlp.DENSE: "mlp"}
    kinds = model.kind_of_layer
    return {"layer_types": [FULL if kind.attends else alone.get(kind.mlp, LINEAR) for kind in kinds]}


def bailing_keys(model: ModelDescriptor) -> dict[str, Any]:
    """Return the sizes of Ling 3's delta attention, and whether its decays have a bound."""
    bounds = [one.value for one in model.particulars if one.name == "kda_lower_bound"]
    sizes = next((mixer.sizes for mixer in model.mixers if mixer.block == "kimi_delta_attention"), None)
    keys: dict[str, Any] = {"kda_safe_gate": bool(bounds), **({"kda_lower_bound": bounds[0]} if bounds else {})}
    if sizes is None:
        return keys
    return keys | {"head_dim": sizes["linear_head_dim"], "short_conv_kernel_size": sizes["linear_conv_kernel_dim"]}


def expand(key: str) -> Callable[[ModelDescriptor], dict[str, Any]]:
    """Make the inverse of a class that wants its heads as wide together as the stream, times a factor."""

    def writes(model: ModelDescriptor) -> dict[str, Any]:
        sizes = [mixer.sizes for mixer in model.mixers if mixer.block == "mamba2"]
        factors = [one["mamba_num_heads"] * one["mamba_head_dim"] / model.hidden_size for one in sizes]
        factor = factors[0] if factors else 0.0
        return {key: int(factor)} if factor and factor.is_integer() else {}

    return writes
