"""Megatron-LM, as the other rooms ask about it."""

from __future__ import annotations

from symconfig.cost.machine import LOW_PRECISION
from symconfig.descriptor.sections import FUSED_TARGETS
from symconfig.frameworks.backend import Backend, Kind, Medium, Releases
from symconfig.frameworks.megatron import adapters, flags
from symconfig.frameworks.megatron.behaviour import MEGATRON as USUAL
from symconfig.frameworks.megatron.flags import at_least
from symconfig.frameworks.megatron.releases import megatron_release
from symconfig.plans.configuration import ZeroStage


def _order(release: str) -> tuple[int]:
    return (flags.versions().index(flags.resolve(release)),)


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


MEGATRON = Backend(
    name="megatron",
    label="Megatron-LM",
    program="Megatron-LM's pretrain_gpt.py",
    distribution="megatron-core",
    releases=Releases(
        pinned="core_v0.19.0",
        asked_by="megatron_version",
        prefix="core_v",
        order=_order,
        minor=megatron_release,
        resolve=flags.resolve,
    ),
    told_by=Medium.OPTIONS,
    usual=USUAL,
    low_precisions=LOW_PRECISION,
    adapters=False,
    refused_adapters=lambda model, target=None: tuple(reason for _, reason in adapters.refusals(model, target)),
    fuses=lambda model: frozenset(FUSED_TARGETS),  # transformer/attention.py and mlp.py: linear_qkv, linear_fc1
    gradient_buckets=True,
    pads_vocabulary=True,
    # training/checkpointing.py, get_rng_state
    generators_by_replica=lambda release: flags.resolve(release).startswith("core_v0.16"),
    writes=writes,
    names_release=False,
)
