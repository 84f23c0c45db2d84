"""Which checkpoints Megatron-LM writes, by release."""

from __future__ import annotations

from symconfig.frameworks.checkpoint import Kind
from symconfig.frameworks.megatron.flags import at_least
from symconfig.plans.choices import ZeroStage

# Megatron-LM's distributed optimizer writes its own buffers from here on, unless --dist-ckpt-optim-fully-reshardable
# asks for whole tensors; before, pieces of tensors (training/checkpointing.py, _build_sharded_state_dict_metadata).
BUFFERS_SINCE = "core_v0.15.0"
FSDP_SINCE = "core_v0.14.0"


def writes(zero: ZeroStage, release: str) -> Kind:
    """Return the kind of checkpoint that a run with the rendered options writes at a ZeRO stage."""
    if zero >= 2 and at_least(release, FSDP_SINCE):
        return Kind("fsdp_dtensor")
    return Kind("torch_dist", optimizer(zero, release))


def optimizer(zero: ZeroStage, release: str) -> str:
    """Return how `torch_dist` stores the optimizer's state by default at a ZeRO stage: `whole` without sharding."""
    if zero == 0:
        return "whole"
    return "dp_reshardable" if at_least(release, BUFFERS_SINCE) else "fully_sharded_model_space"
