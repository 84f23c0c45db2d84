"""Megatron-Bridge: its release, and the Megatron-LM under it."""

from __future__ import annotations

# Megatron-Bridge's release, and the Megatron-LM that it goes with: its requirement is megatron-core>=0.15,<0.17.
BRIDGE_RELEASE = "0.3.1"
BRIDGE_MEGATRON = ("core_v0.15.0", "core_v0.16.1")
