"""Models with experts and windows on some layers: Trinity (afmoe), Laguna, Mellum, Kolibri, K-EXAONE, Command A's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from symconfig.descriptor.architectures.architecture import FULL, SLIDING, Architecture, Reading, Rule, Values
from symconfig.descriptor.architectures.cohere import COHERE, logits
from symconfig.descriptor.architectures.keys import words
from symconfig.descriptor.architectures.llama import exaone4, exaone_pattern, rope_if_window
from symconfig.descriptor.architectures.rules import (
    NO_DENSE,
    SIGMOID,
    always,
    every,
    particulars,
    rope_with_window,
    shared_experts,
)
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import Norm

_NORMED = {"qk_norm": True}


def _flint(values: Values, layers: int) -> list[str]:
    return [FULL if i < 2 or i % 4 == 1 or i == layers - 1 else SLIDING for i in range(layers)]


def _laguna(reader: Reading) -> None:
    """Read Laguna: a gate for each head or each channel; heads by layer, which must be alike."""
    heads, fields = reader.values["num_attention_heads_per_layer"], reader.fields
    if heads is not None and (
        not isinstance(heads, list) or any(one != fields["num_attention_heads"] for one in heads)
    ):
        need = f"{fields['num_attention_heads']} on each layer"
        reader.problem(
            "layers with different heads are not described", "num_attention_heads_per_layer", got=heads, need=need
        )
    fields["attention_gate"] = "head" if reader.values["gating"] in (None, True, "per-head") else "channel"
    sections = reader.data.get("rope_parameters")
    local = (sections.get(SLIDING) or {}) if isinstance(sections, Mapping) else {}
    share = local.get("partial_rotary_factor", 1.0)
    if "sliding_window" in fields and share != fields["partial_rotary_factor"]:
        fields["particulars"] = [{"name": "sliding_attention.partial_rotary_factor", "value": share}]


def _gating(model: ModelDescriptor) -> Mapping[str, Any]:
    return {"gating": "per-head" if model.attention_gate == "head" else "per-channel"}


def _prefixed(values: Values, layers: int) -> list[str]:
    """List the layers' types: dense layers at the front and those with experts behind each have a step of their own."""
    front, ahead, behind = (
        values[key]
        for key in ("first_k_dense_replace", "prefix_dense_sliding_window_pattern", "sliding_window_pattern")
    )
    steps = [(i + 1) % ahead if i < front else (i - front + 1) % behind for i in range(layers)]
    return [SLIDING if step else FULL for step in steps]


def _cohere(reader: Reading) -> None:
    """Read Cohere: RMSNorm where its epsilon is given; rope with a window, and on dense layers without one by plan."""
    values, fields = reader.values, reader.fields
    fields["intermediate_size"] = values["prefix_dense_intermediate_size"] or values["intermediate_size"]
    if values["rms_norm_eps"] is not None:
        fields |= {"norm": "rmsnorm", "norm_eps": values["rms_norm_eps"]}
    fields["experts.scoring_func"] = values["expert_selection_fn"]
    fields["experts.softmax_after_topk"] = values["expert_selection_fn"] == "softmax"
    if values["num_shared_experts"]:
        particulars({"shared_expert_combination_strategy": "sum"}).read(reader)


def _cohere_keys(model: ModelDescriptor) -> Mapping[str, Any]:
    return {
        "prefix_dense_intermediate_size": model.intermediate_size or None,
        "rms_norm_eps": model.norm_eps if model.norm is Norm.RMSNORM else None,
        "expert_selection_fn": model.experts.scoring_func if model.experts else "softmax",
    }


ARCHITECTURES: dict[str, Architecture] = {
    "afmoe": Architecture(
        constants={
            **SIGMOID,
            **_NORMED,
            "norm_after_sublayer": True,
            "attention_gate": "channel",
            "experts.norm_topk_prob": True,
        },
        names={
            "route_scale": ("experts.routed_scaling_factor",),
            "num_dense_layers": ("experts.first_k_dense_replace",),
            "mup_enabled": ("scale_embeddings",),
        },
        # Its gate has no bias, where the other projections may have one.
        only={"attention_bias": (False,), "score_func": ("sigmoid",), "route_norm": (True,)},
        ignored=("use_grouped_mm",),
        layers=every(4, "global_attn_every_n_layers"),
        reads=("global_attn_every_n_layers",),
        rules=(rope_with_window, shared_experts("num_shared_experts")),
    ),
    "laguna": Architecture(
        constants={**SIGMOID, **_NORMED, "experts.norm_topk_prob": True, "experts.first_k_dense_replace": 1},
        names={"moe_routed_scaling_factor": ("experts.routed_scaling_factor",)},
        only={"attention_bias": (False,)},
        defaults={"gating": None},
        layers=always(FULL),
        rules=(
            Rule(_laguna, ("gating", "num_attention_heads_per_layer"), _gating),
            particulars({"moe_router_logit_softcapping": 0.0}, {"gate_activation": lambda values: "softplus"}),
        ),
    ),
    "mellum": Architecture(
        constants=_NORMED,
        defaults={"num_mtp_layers": 0},
        same_as={"num_local_experts": "num_experts", "num_mtp_layers": "num_nextn_predict_layers"},
        layers=always(FULL),
    ),
    "kolibri1": Architecture(
        constants={**SIGMOID, **_NORMED, **NO_DENSE, "norm_after_sublayer": True},
        same_as={"num_local_experts": "num_experts"},
        layers=every(5),
        rules=(rope_if_window, particulars({}, {"e_score_correction_bias": lambda values: "of logits"})),
    ),
    "flint": Architecture(
        constants={**_NORMED, "attention_sinks": True, "experts.scoring_func": "sigmoid"},
        defaults={"mlp_only_layers": [0, 1]},
        layers=_flint,
        rules=(rope_with_window,),
    ),
    "exaone_moe": Architecture(
        constants={**SIGMOID, **_NORMED},
        only={"scoring_func": ("sigmoid",), "topk_method": ("noaux_tc",)},
        layers=exaone4,
        rules=(exaone_pattern, shared_experts("num_shared_experts")),
    ),
    "cohere2_moe": Architecture(
        constants=COHERE,
        names={"intermediate_size": ("experts.moe_intermediate_size",)},
        defaults={"first_k_dense_replace": 0},
        layers=_prefixed,
        reads=("prefix_dense_sliding_window_pattern", "sliding_window_pattern"),
        rules=(
            logits,
            Rule(
                _cohere,
                words(
                    """prefix_dense_intermediate_size rms_norm_eps expert_selection_fn
                    shared_expert_combination_strategy"""
                ),
                _cohere_keys,
            ),
            rope_with_window,
            shared_experts("num_shared_experts"),
        ),
    ),
}
