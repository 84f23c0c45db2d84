"""Model FLOPs of one token, for MFU: causal attention at half, no weight gradients of frozen weights, no recompute."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from symconfig.graph.derived import GRADIENTS, AttentionWork, DerivedBlock, Matmul, Phase, Task

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
    """Return the unsharded FLOP of one sequence through one block of each kind.

    phases: those that count, all by default.
    """
    values = {**numbers, **_ONE}
    return {kind: _block(block, values, phases) for kind, block in blocks.items()}


def _block(block: DerivedBlock, values: Mapping[str, float], phases: Collection[Phase]) -> float:
    return sum(work_flops(work, values) for work in block.work if work.phase in phases)


def work_flops(work: Task, values: Mapping[str, float]) -> float:
    """Return the FLOP of one operator in one phase; memory traffic has those of its inner products, else 0.

    values: of every symbol in its sizes; KeyError if one is missing.
    """
    if isinstance(work, Matmul):
        return 2 * work.batch.value(values) * work.m.value(values) * work.n.value(values) * work.k.value(values)
    times = 1 if work.phase is Phase.FORWARD else GRADIENTS
    if isinstance(work, AttentionWork):
        channels = sum(values[name] for name in work.channels)
        return times * 2 * work.queries.value(values) * values[work.keys] * channels
    return sum(times * 2 * size.value(values) for size, _ in work.products)
