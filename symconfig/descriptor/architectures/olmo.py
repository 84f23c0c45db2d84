"""AI2's OLMo 1 to 3: norms without weights, then norms behind each sublayer only."""

from __future__ import annotations

from symconfig.descriptor.architectures.architecture import Architecture
from symconfig.descriptor.architectures.layer_rules import every

_OLMO2 = {
    "qk_norm": True,
    "qk_norm_of": "all_heads",
    "norm_before_sublayer": False,
    "norm_after_sublayer": True,
}

ARCHITECTURES: dict[str, Architecture] = {
    "olmo": Architecture(
        constants={"norm": "layernorm", "norm_weight": False},
        noted={"clip_qkv": "clip_qkv clamps queries, keys and values, which changes no shape and no cost: left out"},
    ),
    "olmo2": Architecture(constants=_OLMO2),
    "olmo3": Architecture(constants=_OLMO2, layers=every(4)),
}
