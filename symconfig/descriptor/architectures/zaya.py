"""Zyphra's ZAYA: convolutions over queries and keys, scales on the stream, and a router that is an MLP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from symconfig.descriptor.architectures.architecture import Architecture, Reading, Rule
from symconfig.descriptor.architectures.rules import NO_DENSE, always
from symconfig.descriptor.model import ModelDescriptor

_WHOLE, _WINDOW = "hybrid", "hybrid_sliding"


def _zaya(reader: Reading) -> None:
    """Read Zaya: layers may have a window; the convolutions' lengths are one fact; one expert gives nothing."""
    values, fields = reader.values, reader.fields
    types = values["layer_types"] or []
    window = [kind == _WINDOW for kind in types]
    if any(window):
        fields["sliding_window"] = values["sliding_window"]
        if not all(window):
            fields["sliding_window_pattern"] = window
    fields["qk_convolutions"] = [values["cca_time0"], values["cca_time1"]]


def _keys(model: ModelDescriptor) -> Mapping[str, Any]:
    first, second = model.qk_convolutions or (1, 1)
    types = [_WINDOW if slides else _WHOLE for slides in model.sliding_layers]
    return {"cca_time0": first, "cca_time1": second, "layer_types": types}


ARCHITECTURES: dict[str, Architecture] = {
    "zaya": Architecture(
        constants={
            **NO_DENSE,
            "residual_scales": True,
            "qk_norm": True,
            "qk_norm_of": "unit",
            "experts.zero_experts": 1,
            "experts.e_score_correction_bias": True,
            "experts.norm_topk_prob": False,
        },
        defaults={"rope_theta": 5e6, "rope_local_base_freq": 1e4, "partial_rotary_factor": 0.5},
        names={"router_hidden_size": ("experts.router_hidden_size",)},
        only={"num_experts_per_tok": (1,)},
        layers=always(_WHOLE),
        known_layers=(_WHOLE, _WINDOW),
        rules=(Rule(_zaya, ("cca_time0", "cca_time1"), _keys),),
    ),
}
