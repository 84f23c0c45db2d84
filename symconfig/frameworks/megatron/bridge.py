"""Megatron-Bridge: its release, the Megatron-LM under it, and what it switches on by itself."""

from __future__ import annotations

# Megatron-Bridge's release, and the Megatron-LM that it goes with: its requirement is megatron-core>=0.15,<0.17.
BRIDGE_RELEASE = "0.3.1"
BRIDGE_MEGATRON = ("core_v0.15.0", "core_v0.16.1")

# Families for which its own classes switch on one kernel for a gate with its activation, and for rotations (0.3.1 to
# 0.6.0, models/); all others are left to Megatron-Core's configuration, where both are off.
FUSES_ACTIVATION = frozenset({"llama", "deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe", "gpt_oss"})
FUSES_ROPE = frozenset({"llama"})
