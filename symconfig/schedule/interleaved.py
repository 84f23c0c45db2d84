"""Interleaved 1F1B: several chunks a stage, a group of microbatches through each in turn; Megatron's order."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from symconfig.schedule.one_f_one_b import in_turn
from symconfig.schedule.schedule import BACKWARD, FORWARD, PAIRED, Schedule, Shape, Task


@lru_cache(maxsize=8)  # the same for all stages
def table(shape: Shape) -> tuple[tuple[int, int], ...]:
    """Return (microbatch, place of the chunk on its stage) in order: megatron-core's get_schedule_table."""
    return tuple(
        (microbatch, place)
        for first in range(0, shape.m, shape.group)
        for place in range(shape.vpp)
        for microbatch in range(first, min(first + shape.group, shape.m))
    )


def warm_up(shape: Shape, stage: int) -> int:
    """Count the forwards ahead of the first backward: megatron-core's get_pp_rank_microbatches."""
    return 2 * (shape.pp - stage - 1) + (shape.vpp - 1) * shape.group


def passes(shape: Shape, stage: int, warm: int) -> Iterator[Task]:
    """Yield the tasks of Megatron's forward_backward_pipelining_with_interleaving; backward from the last chunk."""
    pp, last = shape.pp, shape.vpp - 1
    forwards = [(FORWARD, stage + place * pp, microbatch) for microbatch, place in table(shape)]
    backwards = [(BACKWARD, stage + (last - place) * pp, microbatch) for microbatch, place in table(shape)]
    return in_turn(forwards, backwards, warm)


def order(shape: Shape, stage: int) -> Iterator[Task]:
    return passes(shape, stage, warm_up(shape, stage))


def paired_order(shape: Shape, stage: int) -> Iterator[Task]:
    """Yield the tasks with one more forward ahead, so that each later one runs beside a backward that does not wait for
    it.
    """
    warm = warm_up(shape, stage) + 1
    for n, (kind, chunk, microbatch) in enumerate(passes(shape, stage, warm)):
        yield PAIRED if kind == FORWARD and n >= warm else kind, chunk, microbatch


def limit(shape: Shape) -> str | None:
    """Say why forward_backward_pipelining_with_interleaving raises, megatron-core 0.16.1."""
    pp, vpp, m, group = shape
    if vpp < 2 or pp < 2:
        return f"interleaved 1F1B needs 2 stages and 2 chunks a stage at least (got pp {pp}, vpp {vpp})"
    if m < pp:
        return f"interleaved 1F1B needs as many microbatches as stages at least (got {m}, need {pp})"
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


INTERLEAVED = Schedule("interleaved", "interleaved 1F1B", "arXiv 2104.04473, figure 4", order, limit, ("megatron",))
PAIRED_INTERLEAVED = Schedule(
    "interleaved-paired",
    "interleaved 1F1B, experts' all-to-alls beside another microbatch",
    "Megatron-LM, --overlap-moe-expert-parallel-comm",
    paired_order,
    limit,
    ("megatron",),
    by_layer=True,  # model_chunk_schedule_plan.py, TransformerModelChunkSchedulePlan.run
)
