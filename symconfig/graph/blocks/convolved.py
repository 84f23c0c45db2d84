"""What scans have in common: the causal convolution before them, and the gated norm behind them."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from symconfig.graph import dims as d
from symconfig.graph.blocks.context import Context
from symconfig.graph.implementation import NormKernel
from symconfig.graph.operator import Element, Tensor

Pass = int | Fraction


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
        name,
        given,
        results[0],
        beside=results[1:],
        saves=given,
        weights=weights,
        whole=(d.SEQUENCE, kernel),
    )
    return results


def gated_norm(
    ctx: Context,
    name: str,
    x: Tensor,
    gate: Tensor,
    *,
    weight: Sequence[str],
    by: Sequence[str],
    gate_norm: bool = False,
    whole: Sequence[str] = (),
) -> Tensor:
    """RMSNorm times an activation of a gate.

    by: dims of its statistics. gate_norm: Kimi's, whose weight meets the normed values in fp32.
    A fused kernel keeps what it reads and the statistics. An eager chain (Transformers' RMSNormGated) widens both inputs
    and keeps the wide input, its normed narrow copy, the wide gate, the gate's activation and the product's other factor
    in fp32.
    """
    result, statistics = Tensor(name, x.dims), Tensor(f"{name}.statistics", tuple(by), Element.FP32)
    saves, traffic = [x, gate, statistics], (Fraction(1), Fraction(1))
    if ctx.how.norm is not NormKernel.FUSED:
        wide = [
            Tensor(f"{name}.{part}", x.dims, Element.FP32) for part in ("fp32", "gate_fp32", "gate_active", "scaled")
        ]
        narrow = Tensor(f"{name}.normed", x.dims, Element.FP32 if gate_norm else Element.ACTIVATION)
        scaled = wide[3] if gate_norm else Tensor(f"{name}.scaled", x.dims)
        saves, traffic = [*wide[:3], scaled, narrow, statistics], (Fraction(3), Fraction(2))
    ctx.build.elementwise(
        name,
        [x, gate],
        result,
        saves=saves,
        weights=[ctx.weight(f"{name}.weight", *weight)],
        traffic=traffic,
        reduces={x.dims[-1]: 1},
        whole=whole,
    )
    return result
