"""Llama 4: chunks and rope by layer, and experts that read tokens weighed by their choice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from symconfig.descriptor.architectures.architecture import CHUNKED, FULL, Architecture, Reading, Rule, Values
from symconfig.descriptor.architectures.rules import experts_at, particulars, rope_by_layer
from symconfig.descriptor.model import ModelDescriptor


def _chunks(values: Values, layers: int) -> list[str]:
    """Give layers with rope a chunk."""
    listed, step = values["no_rope_layers"], values["no_rope_layer_interval"]
    if not isinstance(listed, list) or len(listed) != layers:  # by the step, or refused by the rule for rope
        listed = [(index + 1) % (step or 1) for index in range(layers)]
    return [CHUNKED if one else FULL for one in listed]


def _sparse(values: Values, layers: int) -> list[bool]:
    listed, step = values["moe_layers"], values["interleave_moe_layer_step"]
    return [index in listed if isinstance(listed, list) else (index + 1) % (step or 1) == 0 for index in range(layers)]


def _tuned(reader: Reading) -> None:
    """Read the growth of queries with their position on layers without rope, unless this is off.

    Older files have a number for on.
    """
    if reader.values["attn_temperature_tuning"] is None or reader.values["attn_temperature_tuning"]:
        particulars({"attn_scale": None, "floor_scale": None}).read(reader)


def _listed(model: ModelDescriptor) -> Mapping[str, Any]:
    """List layers with experts, as the class saves them, and how queries grow."""
    values = {one.name: one.value for one in model.particulars}
    return {
        **values,
        "attn_temperature_tuning": bool(values),
        "moe_layers": [index for index, moe in enumerate(model.moe_layers) if moe],
    }


ARCHITECTURES: dict[str, Architecture] = {
    "llama4_text": Architecture(
        constants={
            "experts.scoring_func": "sigmoid",
            "experts.norm_topk_prob": False,
            "experts.input_scaled": True,
            "qk_norm_of": "unit",
        },
        names={
            "intermediate_size": ("experts.moe_intermediate_size", "experts.shared_expert_intermediate_size"),
            "intermediate_size_mlp": ("intermediate_size",),
            "use_qk_norm": ("qk_norm",),
        },
        defaults={"attn_temperature_tuning": None},
        ignored=("for_llm_compressor",),
        layers=_chunks,
        rules=(
            rope_by_layer,
            replace(experts_at(_sparse), keys=("moe_layers", "interleave_moe_layer_step")),
            Rule(_tuned, ("attn_temperature_tuning", "attn_scale", "floor_scale"), _listed),
        ),
    ),
}
