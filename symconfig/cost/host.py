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
# Host time of each further turn of a loop over experts, in operators: a loop in C++ without autograd around it
# (Transformer Engine, pytorch/csrc/extensions/gemm.cpp; 13.5 us, TransformerEngine issue 2053).
_NEXT_TURN = 1 / 3
# Where blocks have scales of their own: each expert's operands are quantised, found and their scales rearranged
# (pytorch/module/grouped_linear.py; te_general_grouped_gemm in pytorch/csrc/extensions/gemm.cpp).
_BLOCK_SCALED = 3.0
# Over the host's usual time, where the experts' all-to-all runs beside another microbatch and no graph replays: two
# streams, their events, and callbacks of the backward in Python (Megatron-LM pull request 2168). Fitted by hand to
# Qwen3-235B on H100, B200 and B300.
PAIRED_HOST = 1.4


def inside_experts(block: DerivedBlock) -> frozenset[str]:
    """Return the names of the operators from the dispatch of tokens to the experts to their return."""
    return block.on(Leg.OUT, Leg.EXPERTS, Leg.BACK)


def is_dispatch(c: Collective) -> bool:
    """Return whether a collective is an all-to-all over expert-parallel ranks: tokens sent to experts, or returned."""
    return c.kind is Kind.ALL_TO_ALL and "ep" in c.axes


def graphed(block: DerivedBlock, framework: Framework) -> frozenset[str]:
    """Return the names of the operators that CUDA graphs replay.

    Embedding and output blocks have none unless all legs of a layer are captured.
    """
    if block.place is not Place.LAYER and framework.graphed != WHOLE:
        return frozenset()
    legs = dict(block.legs)
    return frozenset(work.op for work in block.work if legs.get(work.op, Leg.APART) in framework.graphed)


def host_seconds(
    block: DerivedBlock, lattice: Lattice, machine: Machine, framework: Framework
) -> dict[tuple[str, Phase], Array]:
    """Return the launching thread's seconds for each operator and phase, without CUDA graphs: [points] each."""
    result: dict[tuple[str, Phase], Array] = {}
    grouped = framework.implementation.experts.kernels is not ExpertKernels.IN_TURN
    for work in block.work:
        turns = 1.0 if isinstance(work, AttentionWork) else lattice.value(work.turns)
        if grouped and not isinstance(work, AttentionWork) and work.turns.powers:
            turns = 1 + (turns - 1) * _NEXT_TURN
        if isinstance(work, Matmul) and work.low_precision and machine.block_scaled:
            turns = turns * _BLOCK_SCALED
        previous = result.get((work.op, work.phase), np.zeros(lattice.points))
        result[work.op, work.phase] = previous + framework.host_kernel_s * machine.launching * turns
    return result
