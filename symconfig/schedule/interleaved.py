"""Interleaved 1F1B: several chunks a stage, a group of microbatches through each in turn; Megatron's order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from symconfig.schedule.one_f_one_b import in_turn
from symconfig.schedule.schedule import BACKWARD, FORWARD, Schedule, Shape, Task


def table(shape: Shape) -> Iterator[tuple[int, int]]:
    """(microbatch, place of the chunk on its stage), in order: megatron-core's get_schedule_table."""
    for first in range(0, shape.m, shape.group):
        for place in range(shape.vpp):
            for microbatch in range(first, min(first + shape.group, shape.m)):
                yield microbatch, place


def order(shape: Shape, stage: int) -> Iterable[Task]:
    """Megatron's forward_backward_pipelining_with_interleaving; warm-up of its get_pp_rank_microbatches."""
    forwards = [Task(FORWARD, stage + place * shape.pp, microbatch) for microbatch, place in table(shape)]
    backwards = [
        Task(BACKWARD, stage + (shape.vpp - 1 - place) * shape.pp, microbatch)
        for microbatch, place in table(shape)
    ]
    return in_turn(forwards, backwards, 2 * (shape.pp - stage - 1) + (shape.vpp - 1) * shape.group)


def limit(shape: Shape) -> str | None:
    """What forward_backward_pipelining_with_interleaving raises for, megatron-core 0.16.1."""
    pp, vpp, m, group = shape
    if vpp < 2 or pp < 2:
        return f"interleaved 1F1B needs 2 stages and 2 chunks a stage at least (got pp {pp}, vpp {vpp})"
    if not pp <= group <= m:
        return (
            "interleaved 1F1B runs a group of microbatches, at least pp and at most all of them, through a chunk at a "
            f"time (got {group}, need {pp} to {m})"
        )
    if 0 < m % group < pp:
        return (
            "interleaved 1F1B's last group of microbatches must be whole or at least pp "
            f"(got {m % group} of {m} in groups of {group}, need 0 or {pp} at least)"
        )
    return None


INTERLEAVED = Schedule(
    "interleaved", "interleaved 1F1B", "arXiv 2104.04473, figure 4", order, limit, ("megatron",)
)
