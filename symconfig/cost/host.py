"""The thread that launches a block's kernels: what it spends on each operator, and which of them graphs launch."""

from __future__ import annotations

import numpy as np

from symconfig.cost.framework import Framework
from symconfig.cost.lattice import Array, Lattice
from symconfig.cost.machine import Machine
from symconfig.graph.block import Place
from symconfig.graph.derived import AttentionWork, Collective, DerivedBlock, Matmul, Phase
from symconfig.graph.implementation import ExpertKernels
from symconfig.graph.layout import Kind
from symconfig.graph.operator import Leg

WHOLE = frozenset(Leg)  # replayed: everything
# Host time of each further product of a grouped one, in operators: a loop in C++ without autograd around it
# (Transformer Engine, pytorch/csrc/extensions/gemm.cpp). Fitted by hand to runs with 8 and 16 experts a rank.
_NEXT_PRODUCT = 1 / 3
# In low precision, of the forward and of the input's gradient: one to quantise what comes in, one to find the quantised
# weight and to make the tensors' objects (pytorch/module/grouped_linear.py: get_weight_workspace for each expert).
_LOW_PRECISION = 3.0
# To rearrange the scales of one operand's blocks (te_general_grouped_gemm in pytorch/csrc/extensions/gemm.cpp). Fitted
# by hand: B200 with microbatches of 4,096 tokens, 5 us each.
_SWIZZLE = 0.1


def inside_experts(block: DerivedBlock) -> frozenset[str]:
    """Return the operators from the one that brings tokens to their experts to the one that brings them back."""
    return block.on(Leg.OUT, Leg.EXPERTS, Leg.BACK)


def is_dispatch(c: Collective) -> bool:
    """Tell whether a collective brings tokens to their experts, or back."""
    return c.kind is Kind.ALL_TO_ALL and "ep" in c.axes


def graphed(block: DerivedBlock, framework: Framework) -> frozenset[str]:
    """Return the operators that CUDA graphs launch: those of parts of a layer hold neither the look-up nor the head."""
    if block.place is not Place.LAYER and framework.graphed != WHOLE:
        return frozenset()
    legs = dict(block.legs)
    return frozenset(work.op for work in block.work if legs.get(work.op, Leg.APART) in framework.graphed)


def host_seconds(
    block: DerivedBlock, lattice: Lattice, machine: Machine, framework: Framework
) -> dict[tuple[str, Phase], Array]:
    """Return the launching thread's time, with nothing replayed."""
    result: dict[tuple[str, Phase], Array] = {}
    for work in block.work:
        turns = 1.0 if isinstance(work, AttentionWork) else lattice.value(work.turns)
        if isinstance(work, Matmul) and framework.implementation.experts.kernels is not ExpertKernels.IN_TURN:
            turns = 1 + (turns - 1) * _NEXT_PRODUCT
        if isinstance(work, Matmul) and work.low_precision and machine.cast_bytes and work.phase is not Phase.WEIGHT:
            turns = turns * _LOW_PRECISION
        if isinstance(work, Matmul) and work.low_precision:
            turns = turns + machine.swizzles * _SWIZZLE * lattice.value(work.turns)
        previous = result.get((work.op, work.phase), np.zeros(lattice.points))
        result[work.op, work.phase] = previous + framework.host_kernel_s * machine.launching * turns
    return result
