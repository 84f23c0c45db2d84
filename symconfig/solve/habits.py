"""A framework's habits on a kind of GPU."""

from __future__ import annotations

from dataclasses import replace

from symconfig.cost.framework import FRAMEWORKS, Framework, TransformerImpl, megatron
from symconfig.solve.limits import NO_FLASH


def habits(
    backend: str, architecture: str, transformer_impl: TransformerImpl = "transformer_engine"
) -> Framework:
    """The framework as it runs on this GPU: without flash attention, Transformer Engine keeps the scores."""
    framework = FRAMEWORKS[backend] if backend != "megatron" else megatron(transformer_impl)
    if framework.engine and architecture in NO_FLASH:
        unfused = replace(framework.implementation, attention="fused_softmax")
        return replace(framework, implementation=unfused)
    return framework
