"""A framework's habits on a kind of GPU."""

from __future__ import annotations

from dataclasses import replace

from symconfig.cost.framework import Framework
from symconfig.frameworks.facts import flash
from symconfig.frameworks.known import FRAMEWORKS
from symconfig.frameworks.megatron.behaviour import TransformerImpl, megatron
from symconfig.graph.blocks.common import Kernel


def habits(
    backend: str,
    architecture: str,
    transformer_impl: TransformerImpl = "transformer_engine",
    attention: str | None = None,
) -> Framework:
    """The framework as it runs on this GPU. attention: the job's kernel; without flash attention, asked for or for want
    of a kernel, Transformer Engine keeps the scores as scaled, masked and softmaxed at once, Transformers as PyTorch's
    operators leave them."""
    framework = FRAMEWORKS[backend] if backend != "megatron" else megatron(transformer_impl)
    if not flash(architecture, attention, framework.engine):
        kernel: Kernel = "fused_softmax" if framework.engine else "torch"
        if framework.implementation.attention == "flash":
            return replace(framework, implementation=replace(framework.implementation, attention=kernel))
    return framework
