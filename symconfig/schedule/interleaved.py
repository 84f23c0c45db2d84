"""Interleaved 1F1B: several chunks a stage, a group of microbatches through each in turn; Megatron's order."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from symconfig.schedule.one_f_one_b import in_turn
from symconfig.schedule.schedule import BACKWARD, FORWARD, PAIRED, Schedule, Shape, Task

Number = TypeVar("Number", int, Any)  # Any: arrays, or terms of a tape


@lru_cache(maxsize=8)  # the same for all stages
def table(shape: Shape) -> tuple[tuple[int, int], ...]:
    """Return (microbatch, index of the chunk on its stage) in order: megatron-core's get_schedule_table. Cached."""
    return tuple(
        (microbatch, place)
        for first in range(0, shape.m, shape.group)
        for place in range(shape.vpp)
        for microbatch in range(first, min(first + shape.group, shape.m))
    )


def warm_up(pp: Number, vpp: Number, group: Number, stage: Number) -> Number:
    """Return how many chunk forwards precede a stage's first backward: megatron-core's get_pp_rank_microbatches.

    It is not limited to the number of forwards that there are.
    """
    return 2 * (pp - stage - 1) + (vpp - 1) * group


@lru_cache(maxsize=4096)
def held(stage: int, pp: int, vpp: int, group: int, microbatches: int) -> NDArray[np.float64]:
    """Return how many microbatches' activations a stage holds of each chunk, at every moment of a possible peak.

    [moments, vpp]; the first moment is that of the stage's first backward. A stage of one chunk has one moment. Cached.
    """
    if vpp == 1:
        return np.array([[float(min(microbatches, pp - stage))]])
    chunk = np.arange(float(vpp))
    total = microbatches * vpp
    ahead = min(total, warm_up(pp, vpp, group, stage) + 1)
    steps = np.arange(float(min(group * vpp, total - ahead + 1)))[:, None]

    def done(passes: Any, place: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return how many microbatches passed a chunk after `passes` passes of all chunks.

        place: the chunk's index in the order of the passes.
        """
        whole, rest = np.divmod(passes, group * vpp)
        begun = np.minimum(np.maximum(rest - place * group, 0), group)
        result: NDArray[np.float64] = np.minimum(whole * group + begun, microbatches)
        return result

    result: NDArray[np.float64] = done(ahead + steps, chunk) - done(steps, vpp - 1 - chunk)
    return result


@lru_cache(maxsize=65536)
def most_held(stage: int, layers: tuple[int, ...], pp: int, group: int, microbatches: int) -> float:
    """Return the peak of held microbatches of a stage, the mean of its chunks weighted by their `layers`. Cached."""
    moments = held(stage, pp, len(layers), group, microbatches) @ np.array(layers, dtype=np.float64)
    return float(moments.max()) / sum(layers)


def passes(shape: Shape, stage: int, warm: int) -> Iterator[Task]:
    """Yield a stage's tasks in the order of Megatron's forward_backward_pipelining_with_interleaving.

    warm: forwards before the first backward. Backwards go from the last chunk to the first.
    """
    pp, last = shape.pp, shape.vpp - 1
    forwards = [(FORWARD, stage + place * pp, microbatch) for microbatch, place in table(shape)]
    backwards = [(BACKWARD, stage + (last - place) * pp, microbatch) for microbatch, place in table(shape)]
    return in_turn(forwards, backwards, warm)


def order(shape: Shape, stage: int) -> Iterator[Task]:
    return passes(shape, stage, warm_up(*shape[:2], shape.group, stage))


def paired_order(shape: Shape, stage: int) -> Iterator[Task]:
    """Yield a stage's tasks of interleaved 1F1B with one forward more in the warm-up.

    Each later forward is PAIRED: it runs beside the backward that follows it and does not depend on it.
    """
    warm = warm_up(*shape[:2], shape.group, stage) + 1
    for n, (kind, chunk, microbatch) in enumerate(passes(shape, stage, warm)):
        yield PAIRED if kind == FORWARD and n >= warm else kind, chunk, microbatch


def limit(shape: Shape) -> str | None:
    """Return why megatron-core 0.16.1 refuses a shape; None if it runs it.

    As forward_backward_pipelining_with_interleaving raises.
    """
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
