"""Megatron-Bridge: its release, the Megatron-LM under it, and what it switches on by itself."""

from __future__ import annotations

from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import Position

# Megatron-Bridge's release, and the Megatron-LM that it goes with: its requirement is megatron-core>=0.15,<0.17.
BRIDGE_RELEASE = "0.3.1"
BRIDGE_MEGATRON = ("core_v0.15.0", "core_v0.16.1")

# Families for which its own classes switch on one kernel for a gate with its activation, and for rotations (0.3.1 to
# 0.6.0, models/); all others are left to Megatron-Core's configuration, where both are off.
FUSES_ACTIVATION = frozenset({"llama", "deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe", "gpt_oss"})
FUSES_ROPE = frozenset({"llama"})


def fuses_rotations(model: ModelDescriptor) -> bool:
    """Return whether the fused kernel may rotate queries and keys of a model.

    It may for rotary embeddings without YaRN (of which the kernel for packed sequences drops a factor) and without
    images' rows and columns (megatron-core 0.16.1, rope_utils.py, apply_rotary_pos_emb); latent attention has a kernel
    of its own.
    """
    scaled = model.rope_scaling is not None and model.rope_scaling.rope_type == "yarn" and model.latent is None
    return model.position is Position.ROPE and not scaled and model.vision is None
