"""What scans have in common: the causal convolution before them, and the gated norm behind them."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from fractions import Fraction

from symconfig.graph import dims as d
from symconfig.graph.blocks.context import Context
from symconfig.graph.implementation import NormKernel
from symconfig.graph.operator import Element, Tensor


def convolution(
    ctx: Context, name: str, given: Sequence[Tensor], channels: str, kernel: str, bias: bool = False
) -> list[Tensor]:
    """Convolve each channel along the sequence, causally, and apply its activation: one kernel for all that is given.

    It keeps what it reads (causal-conv1d, causal_conv1d_interface.py). Its multiply-adds, as many as the kernel is long
    for each element, take a small part of the time that the element's way to memory and back takes.
    """
    results = [Tensor(f"{tensor.name}_convolved", tensor.dims) for tensor in given]
    weights = [ctx.weight(f"{name}.weight", channels, kernel)]
    if bias:
        weights.append(ctx.weight(f"{name}.bias", channels))
    ctx.build.elementwise(
        name, given, results[0], further=results[1:], saves=given, weights=weights, whole=(d.SEQUENCE, kernel)
    )
    return results


class Activation(StrEnum):
    """A gate's activation."""

    SILU = "silu"
    SIGMOID = "sigmoid"


def gated_norm(
    ctx: Context, name: str, x: Tensor, gate: Tensor, activation: Activation, module: str = "scan_norm"
) -> Tensor:
    """Norm over the channels of each head, times an activation of a gate. It stands on the scan's side of what cp
    exchanges, as Megatron-LM's gated delta net has it (_gated_norm_and_a2a).
    """
    with ctx.build.module(module):
        if ctx.how.norm is not NormKernel.FUSED:
            return _in_turn(ctx, name, x, gate, activation)
        statistics = Tensor(f"{name}.statistics", x.dims[:-1], Element.FP32)
        normed, result = Tensor(f"{name}.normed", x.dims), Tensor(name, x.dims)
        weights, over = [ctx.weight(f"{name}.weight", x.dims[-1])], {x.dims[-1]: 1}
        whole = (d.SEQUENCE,)
        saves = [x, statistics]
        ctx.build.elementwise(name, [x], normed, saves=saves, weights=weights, reduces=over, whole=whole)
        return ctx.build.elementwise(f"{name}_gate", [normed, gate], result, saves=[normed, gate], whole=whole)


def _in_turn(ctx: Context, name: str, x: Tensor, gate: Tensor, activation: Activation) -> Tensor:
    """Write Transformers' RMSNormGated, each step a kernel in fp32: both inputs are widened, one is squared, averaged
    and scaled, the other activated. A SiLU keeps its input, a sigmoid its result. Behind a SiLU the normed values are
    narrowed before they meet the weight (modeling_qwen3_next.py), behind a sigmoid they are not
    (modeling_kimi_linear.py).
    """

    def kept(part: str, element: Element) -> Tensor:
        return Tensor(f"{name}.{part}", x.dims, element)

    silu = activation is Activation.SILU
    middle = Element.ACTIVATION if silu else Element.FP32
    saves = [
        kept("fp32", Element.FP32),
        kept("gate_active", Element.FP32),
        kept("normed", middle),
        kept("scaled", middle),
    ]
    if silu:
        saves.append(kept("gate_fp32", Element.FP32))
    saves.append(Tensor(f"{name}.statistics", x.dims[:-1], Element.FP32))
    return ctx.build.elementwise(
        name,
        [x, gate],
        Tensor(name, x.dims),
        saves=saves,
        weights=[ctx.weight(f"{name}.weight", x.dims[-1])],
        # Passes over tensors of 16 and 32 bits, as multiples of reading both and writing the result, and what is kept.
        traffic=(2, Fraction(5, 2)),
        reduces={x.dims[-1]: 1},
        whole=(d.SEQUENCE,),
        launches=(8, 10),
    )
