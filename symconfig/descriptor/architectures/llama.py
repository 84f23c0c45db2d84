"""Llama, and what has its keys: Mistral, Mixtral, Phi-3."""

from __future__ import annotations

from symconfig.descriptor.architectures.architecture import Architecture
from symconfig.descriptor.architectures.layer_rules import all_sliding

MIXTRAL_NAMES = {"intermediate_size": ("experts.moe_intermediate_size",)}
EXPERTS_ALIKE = {"num_experts": "num_local_experts"}

ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture(),
    "mistral": Architecture(layers=all_sliding),
    "mixtral": Architecture(
        constants={"intermediate_size": 0, "experts.norm_topk_prob": True},
        names=MIXTRAL_NAMES,
        same_as=EXPERTS_ALIKE,
        layers=all_sliding,
    ),
    "phi3": Architecture(
        defaults={"partial_rotary_factor": 1.0},
        noted={"embd_pdrop": "embd_pdrop (dropout of the embeddings) is not modelled"},
        layers=all_sliding,
    ),
}
