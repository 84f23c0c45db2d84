"""GLM-4.5 and its kin with plain attention: Solar Open, dots.llm1."""

from __future__ import annotations

from symconfig.descriptor.architectures.architecture import FULL, SLIDING, Architecture, Values
from symconfig.descriptor.architectures.expert_rules import NO_DENSE, SIGMOID
from symconfig.descriptor.architectures.latent_kin import ROUTED_AS_V3

QKV_BIAS = {"attention_bias": ("qkv_bias",)}


def _from_max_window_layers(values: Values, layers: int) -> list[str]:
    return [SLIDING if index >= values["max_window_layers"] else FULL for index in range(layers)]


ARCHITECTURES: dict[str, Architecture] = {
    "glm4_moe": Architecture(
        constants=SIGMOID,
        names={**QKV_BIAS, "use_qk_norm": ("qk_norm",)},
        only=ROUTED_AS_V3,
        same_as={"num_mtp_layers": "num_nextn_predict_layers"},
    ),
    "sarvam_moe": Architecture(
        constants=SIGMOID,
        names={**QKV_BIAS, "use_qk_norm": ("qk_norm",)},
        only=ROUTED_AS_V3,
        same_as={"num_mtp_layers": "num_nextn_predict_layers", "num_shared_experts": "n_shared_experts"},
    ),
    "solar_open": Architecture(
        constants={**SIGMOID, **NO_DENSE},
        names=QKV_BIAS,
        defaults={"partial_rotary_factor": 1.0},
        only={**ROUTED_AS_V3, "first_k_dense_replace": (0,), "use_qk_norm": (False,)},
    ),
    "dots1": Architecture(
        constants={**SIGMOID, "qk_norm": True},
        only=ROUTED_AS_V3,
        layers=_from_max_window_layers,
    ),
}
