"""What one GPU of a plan is expected to hold and to take by itself, with the layers that are at hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from symconfig.cost.device import device_bytes, reserved_bytes
from symconfig.frameworks.kernels import changed
from symconfig.frameworks.megatron.behaviour import TransformerImpl
from symconfig.measured.row_framework import attention_of
from symconfig.plans.plan import Plan
from symconfig.solve.alone import alone
from symconfig.solve.prospect import Prospect
from symconfig.verify.states.activations import as_run

Attention = Literal["flash", "unfused"]
STATES = ("weights", "gradients", "optimizer state")
# PyTorch's scaled_dot_product_attention takes cuDNN's kernels there, whose result has the order of its queries
# (ATen/native/transformers/cuda/sdp_utils.cpp, check_prefer_cudnn_attention; so 2.11 on an H100), elsewhere version 2
# of flash attention, whose result is copied into that order.
_BY_CUDNN = frozenset({"hopper", "blackwell"})
# Of a parameter beside `Framework.adam_bytes`, without Transformer Engine's or Apex's lists of tensors: the gradient is
# clipped into a copy, which is copied back (megatron/core/utils.py, local_multi_tensor_scale): 16; and the new weight
# is read once more to be rounded: 4.
_LISTLESS_BYTES = 20.0


@dataclass(frozen=True, slots=True)
class Expected:
    """The expectation for one rank. Seconds of a microbatch forward and backward and of the optimizer step, no network
    in them.

    memory: bytes by part at the peak; states_bytes: weights, gradients and optimizer state, which stay.
    """

    forward_s: float
    backward_s: float
    optimizer_s: float
    memory: Mapping[str, float]
    states_bytes: float
    peak_bytes: float
    reserved_bytes: float
    device_bytes: float


def expected(plan: Plan, stage: int, impl: TransformerImpl, attention: Attention) -> Expected:
    """Predict the rank of this stage with the plan's own layers, or with Megatron's local ones."""
    point = as_measured(plan, impl, attention)
    mine = alone(point, stage)
    peak, framework = sum(mine.memory.values()), point.request.framework
    return Expected(
        forward_s=float(mine.forward_s[0]),
        backward_s=float(mine.backward_s[0]),
        optimizer_s=float(mine.optimizer_s[0]),
        memory=mine.memory,
        states_bytes=sum(mine.memory[name] for name in STATES),
        peak_bytes=peak,
        reserved_bytes=reserved_bytes(peak, framework),
        device_bytes=device_bytes(peak, point.machine, framework),
    )


def torch_attention(architecture: str) -> str:
    """Return the spelling of PyTorch's fused attention on a GPU."""
    return "flash" if architecture in _BY_CUDNN else "flash2"


def as_measured(plan: Plan, impl: TransformerImpl, attention: Attention) -> Prospect:
    """Return the plan as these layers run it.

    Megatron's own with PyTorch's fused attention in them, if that is chosen.
    """
    point = as_run(plan, impl)
    if impl == "transformer_engine":
        return point
    framework, architecture = point.request.framework, plan.cluster.gpu.architecture
    framework = replace(framework, adam_bytes=framework.adam_bytes + _LISTLESS_BYTES)
    if attention == "unfused":
        return replace(point, request=replace(point.request, framework=framework))
    kernel, rate = attention_of(torch_attention(architecture), architecture)
    copied = architecture not in _BY_CUDNN
    fused = changed(framework.implementation, attention=kernel, repeated_heads=False, copied_attention=copied)
    flash = replace(framework, implementation=fused, attention_rate=rate)
    return replace(point, request=replace(point.request, framework=flash))
