"""Seconds of a block's operators, before any collective: matmuls, attention, memory traffic."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from symconfig.cost.formulas import (
    CONTENTION,
    all_to_all_s,
    attention_s,
    chunked_s,
    overlapped_s,
    product_s,
    ring_s,
    traffic_s,
)
from symconfig.cost.framework import Framework
from symconfig.cost.lattice import Array, Lattice
from symconfig.cost.machine import Machine
from symconfig.cost.tape import maximum, minimum
from symconfig.graph.block import Place
from symconfig.graph.derived import GRADIENTS, AttentionWork, Collective, DerivedBlock, Matmul, Phase, Task, Traffic
from symconfig.graph.dims import Monomial
from symconfig.graph.implementation import Dispatch, ExpertKernels
from symconfig.graph.layout import GTP, Kind
from symconfig.graph.operator import ELEMENT_BYTES, Element, Leg

CACHEFUL = 2**14  # seconds worked out together: what they are made from stays in the cache
# FLOP of products that an SM makes a second in chunked scans (Triton: flash-linear-attention, mamba-ssm), whose kernels
# do as much between their products as in them, beside their traffic. From the gated delta rule of
# flash-linear-attention 0.5, forward and backward, 32 heads of 128 channels and 32,768 tokens: 7.6 ms on H200, 8.0 ms
# on GB200 (QwenLM/FlashQLA, benchmark/benchmark_results_H200.txt, _GB200.txt); forward, 96 heads and 8,192 tokens, 3.2
# ms on H20 (MoonshotAI/FlashKDA, BENCHMARK_H20.md). This gives 1.11, 0.90 and 0.87 of these times (1.25 and 1.06 of the
# forward and the backward alone on H200); neither tensor cores nor memory of a newer GPU make such kernels faster by as
# much. With 16 heads it gives 0.85 and 0.65, since chunks then wait for each other, which is left out. Mamba-2's
# kernels are taken to be as fast; no public measurement of theirs was found.
_SCAN_FLOPS_PER_UNIT = 0.65e12
_OUTSIDE_SCANS = 2  # products that one operator has at most, such as scores of an index, at the rate of any product


def work_seconds(
    block: DerivedBlock, lattice: Lattice, machine: Machine, framework: Framework
) -> dict[tuple[str, Phase], Array]:
    """Return the seconds of every operator and phase, [points] each, before collectives and overlap.

    Work of the same operator and phase is summed; weight gradients include the traffic of the framework's
    accumulated_bytes. Traffic with `products` takes the longer of the two; traffic `among` a group of ranks is 0 s if
    the group has one.
    """
    result: dict[tuple[str, Phase], Array] = {}

    def add(work: Task, seconds: Array) -> None:
        key = work.op, work.phase
        result[key] = result[key] + seconds if key in result else seconds

    matmuls = [work for work in block.work if isinstance(work, Matmul)]
    together = max(1, CACHEFUL // lattice.points)
    for start in range(0, len(matmuls), together):
        some = matmuls[start : start + together]
        for matmul, row in zip(some, _products(some, block, lattice, machine, framework), strict=True):
            add(matmul, row)
            if matmul.phase is Phase.WEIGHT and framework.accumulated_bytes:
                batch, m, n = (lattice.value(size) for size in (matmul.batch, matmul.m, matmul.n))
                add(matmul, traffic_s(machine, framework.accumulated_bytes * batch * m * n))
    for work in block.work:
        if isinstance(work, AttentionWork):
            channels = sum(np.max(lattice.numbers[name]) for name in work.channels) / 2
            seconds = attention_s(
                machine,
                lattice.value(work.queries),
                lattice.numbers[work.keys],
                channels,
                work.phase is Phase.FORWARD,
                launches=lattice.value(work.steps),
            )
            add(work, seconds / framework.attention_rate)
        elif isinstance(work, Traffic):
            moved = sum((lattice.value(m) * ELEMENT_BYTES[e] for m, e in work.moved), np.zeros(lattice.points))
            seconds = traffic_s(machine, moved)
            if work.products:
                seconds = maximum(seconds, _scanned(work, lattice, machine))
            several = True if work.among is None else lattice.value(work.among) > 1
            add(work, np.where(several, seconds, 0.0))
    return result


def _scanned(work: Traffic, lattice: Lattice, machine: Machine) -> Array:
    """Return the seconds of the products within an operator's kernels, which overlap with its memory traffic: [points].

    With more than _OUTSIDE_SCANS products it is a chunked scan, at the slower rate of such kernels.
    """
    amount = sum((2.0 * times * lattice.value(size) for size, times in work.products), np.zeros(lattice.points))
    rate = machine.high_peak_flops * machine.efficiency
    if len(work.products) > _OUTSIDE_SCANS:
        rate = minimum(rate, _SCAN_FLOPS_PER_UNIT * machine.compute_units)
    return amount / rate


def _products(
    matmuls: Sequence[Matmul], block: DerivedBlock, lattice: Lattice, machine: Machine, framework: Framework
) -> Array:
    """Return the seconds of matmuls, casts and launches included: [matmuls, points].

    Low precision runs at its own peak and efficiency, experts' grouped products slower. A tensor-parallel product that
    is split to overlap with its collective counts as `tp_pieces` small ones, one after the other, if tp > 1.
    """
    pieces = framework.hide.tp_pieces
    chunked = {c.behind for c in block.collectives if c.chunked and c.axes[0] == "tp"} if pieces > 1 else set()
    batch, m = lattice.stack([work.batch for work in matmuls]), lattice.stack([work.m for work in matmuls])
    n, k = lattice.stack([work.n for work in matmuls]), lattice.stack([work.k for work in matmuls])
    low = np.array([[work.low_precision] for work in matmuls])
    cast = low & (machine.cast_bytes > 0)
    # A weight's gradient meets operands that the forward and the input's gradient have cast already; the second copy of
    # the output's gradient is written in its cast.
    weight = np.array([[work.phase is Phase.WEIGHT] for work in matmuls])
    experts = inside_experts(block)
    inside = np.array([[work.op in experts] for work in matmuls])
    slower = np.where(inside & cast, machine.grouped_cast, 1.0)
    # A product that is cut up to run beside its collective is as many small ones, one after the other.
    cut = np.array([[pieces if (work.op, work.phase) in chunked else 1.0] for work in matmuls])
    cut = np.where(lattice.numbers["tp"] > 1, cut, 1.0)
    result: Array = cut * product_s(
        machine,
        batch,
        m / cut,
        n,
        k,
        peak_flops=np.where(low, machine.peak_flops, machine.high_peak_flops),
        efficiency=np.where(cast, machine.low_efficiency * framework.low_rate, machine.efficiency) / slower,
        element_bytes=np.where(cast, 1.0, 2.0),
        cast_bytes=np.where(cast, np.where(weight, machine.transpose_bytes + n / m, machine.cast_bytes), 0.0),
        launches=1 + cast,  # the cast is a kernel, too
    )
    return result


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
    """Return the names of the operators that CUDA graphs replay: those in the parts of a layer that are captured.

    `framework.graphed` names these parts. None of a block outside the layers, unless every part (Leg) is captured.
    """
    if block.place is not Place.LAYER and framework.graphed != WHOLE:
        return frozenset()
    legs = dict(block.legs)
    return frozenset(work.op for work in block.work if legs.get(work.op, Leg.APART) in framework.graphed)


def host_seconds(
    block: DerivedBlock, lattice: Lattice, machine: Machine, framework: Framework
) -> dict[tuple[str, Phase], Array]:
    """Return the launching thread's seconds for each operator and phase, without CUDA graphs: [points] each.

    An operator takes `host_kernel_s` x `machine.launching` for each of its turns (1 of attention). Further turns of
    grouped kernels that loop over experts count _NEXT_TURN each, block-scaled low-precision matmuls _BLOCK_SCALED times
    as much.
    """
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


_ONE = dict.fromkeys(("tp", "cp", "dp", "ep", "etp", "micro_batch", "expert_imbalance"), 1.0)


def flops_per_token(
    blocks: Mapping[str, DerivedBlock], sequence: tuple[str, ...], numbers: Mapping[str, float]
) -> float:
    """Return the model FLOP of one token, forward and backward: the sum over the blocks of a sequence over its length.

    sequence: kinds of all blocks in order. numbers: of dims, seq_length, keys_full, keys_window. Attention's backward
    counts as four products, although flash attention recomputes the scores; that of a product inside a scan as two.
    """
    per_kind = block_flops(blocks, numbers)
    return sum(per_kind[kind] for kind in sequence) / numbers["seq_length"]


def block_flops(
    blocks: Mapping[str, DerivedBlock], numbers: Mapping[str, float], phases: Collection[Phase] = tuple(Phase)
) -> dict[str, float]:
    """Return by kind of block the FLOP of one sequence through one block, not sharded.

    phases: those that count, all by default.
    """
    values = {**numbers, **_ONE}
    return {
        kind: sum(work_flops(work, values) for work in block.work if work.phase in phases)
        for kind, block in blocks.items()
    }


def work_flops(work: Task, values: Mapping[str, float]) -> float:
    """Return the FLOP of one operator in one phase; memory traffic has those of its inner products, 0 without any.

    Backward phases of attention and of inner products count GRADIENTS times the forward. values: of every symbol in its
    sizes; KeyError if one is missing.
    """
    if isinstance(work, Matmul):
        return 2 * work.batch.value(values) * work.m.value(values) * work.n.value(values) * work.k.value(values)
    times = 1 if work.phase is Phase.FORWARD else GRADIENTS
    if isinstance(work, AttentionWork):
        channels = sum(values[name] for name in work.channels)
        return times * 2 * work.queries.value(values) * values[work.keys] * channels
    return sum(times * 2 * size.value(values) for size, _ in work.products)


def collective_s(c: Collective, lattice: Lattice, machine: Machine, framework: Framework) -> Array:
    """Return a collective's seconds before any overlap, all its repetitions together; 0 for a group of one: [points].

    An all-to-all costs `all_to_all_s`; over ep, copies of a token for one rank travel once unless the dispatch is
    SLOTS. A token dispatch with Dispatch.EVERYWHERE costs an all-gather of all tokens. All else is a ring.
    """
    ranks = lattice.value(Monomial.of(*c.axes))
    several = ranks > 1
    if not several.any():
        return np.zeros(lattice.points)
    stride = framework.stride(c.axes, lattice.numbers)
    bytes_each = framework.bytes.gradient if c.element is Element.GRADIENT else ELEMENT_BYTES[c.element]
    amount = lattice.value(c.elements) * bytes_each
    if c.kind is Kind.ALL_TO_ALL:
        copies, groups, chosen = (lattice.value(size) for size in (c.copies, c.groups, c.chosen_groups))
        dispatch = framework.implementation.experts.dispatch
        if is_dispatch(c) and dispatch is Dispatch.EVERYWHERE:
            everything = amount / copies * ranks
            return np.where(several, ring_s(everything, 1, ranks, stride, **machine.levels) * c.times, 0.0)
        once = float("ep" in c.axes and dispatch is not Dispatch.SLOTS)
        seconds = all_to_all_s(amount, ranks, stride, copies, once, groups, chosen, **machine.levels)
    else:
        seconds = ring_s(amount, c.kind.passes, ranks, stride, **machine.levels)
    return np.where(several, seconds * c.times, 0.0)


def exposed(c: Collective, seconds: Array, work: dict[tuple[str, Phase], Array], framework: Framework) -> Array:
    """Return the exposed seconds of a collective beside the operator that it overlaps with: [points].

    All of `seconds` if it overlaps with none, for an all-to-all, or if the framework overlaps nothing on its first axis
    in this pass. Over gtp, and over tp unless products are cut into pieces, as a whole (`overlapped_s`); else piece by
    piece (`chunked_s`). Weights over gtp overlap as ZeRO's do.

    work: seconds of every operator and phase.
    """
    axis = c.axes[0]
    # What is cut into pieces in the forward is in the backward, too: the gradient's gather before the input's gradient.
    direction = "forward" if c.phase is Phase.FORWARD or c.chunked else "backward"
    hide: float = getattr(framework.hide, "sharded_weights" if axis == GTP else f"{axis}_{direction}", 0.0)
    # The kernel beside an all-to-all needs all of what travels, while a ring brings keys one part after the other.
    if c.behind is None or hide == 0.0 or c.kind is Kind.ALL_TO_ALL:
        return seconds
    pieces = framework.hide.tp_pieces if axis == "tp" else 1
    if axis == GTP or (axis == "tp" and pieces == 1):
        result: Array = overlapped_s(seconds, work[c.behind], hide)
    else:
        result = chunked_s(seconds, work[c.behind], hide, 1 / pieces if pieces > 1 else 0.0)
    return result


def paired_collectives_s(
    block: DerivedBlock, seconds: tuple[Array, ...], work: dict[tuple[str, Phase], Array], hide: float
) -> tuple[Array, ...]:
    """Return each collective's exposed seconds while one microbatch runs forward and another backward through a layer.

    Only the experts' all-to-alls change: each overlaps with the share `hide` of the other microbatch's work in the same
    one of four turns, none of which begins before the last one has ended: combine's gradient beside what precedes the
    experts forward, dispatch beside the experts backward, dispatch's gradient beside the experts forward, combine
    beside what precedes the experts backward (Megatron-LM core_v0.14 to 0.19, model_chunk_schedule_plan.py,
    TransformerLayerSchedulePlan.run). The share CONTENTION always stays exposed.

    seconds: of each collective, exposed, [points]. work: of every operator and phase.
    """
    among = inside_experts(block)

    def meanwhile(c: Collective) -> Array:
        """Return the seconds of the other microbatch's work that runs in the same turn as a collective: [points]."""
        ahead, inside = c.phase is Phase.FORWARD, c.leg is not Leg.BACK
        turn = (key for key in work if (key[0] in among) is inside and (key[1] is Phase.FORWARD) is not ahead)
        return sum((work[key] for key in turn), np.zeros_like(seconds[0]))

    return tuple(
        chunked_s(t, meanwhile(c), hide, CONTENTION) if is_dispatch(c) else t
        for c, t in zip(block.collectives, seconds, strict=True)
    )
