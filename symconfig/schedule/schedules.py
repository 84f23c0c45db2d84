"""Megatron-LM's pipeline schedules: the order in which each stage works, and the microbatches that it holds.

1F1B (arXiv 2104.04473, figure 3) for stages of one chunk; interleaved 1F1B (figure 4) for several. With
--overlap-moe-expert-parallel-comm a forward of the latter is paired with the backward of another microbatch.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

FORWARD, BACKWARD = 0, 1  # kinds of tasks: plain numbers, with which the simulator counts
Task = tuple[int, int, int]  # kind, chunk's number in the model (0 to pp vpp - 1), microbatch from 0
Number = TypeVar("Number", int, Any)  # Any: arrays, or terms of a tape


class Shape(NamedTuple):
    """Stages, chunks of a stage, microbatches, and microbatches that pass a chunk in a row if interleaved."""

    pp: int
    vpp: int
    m: int
    group: int


class Schedule(NamedTuple):
    """name: as JSON has it. title: as people read it. paired: each forward after the warm-up runs with a backward."""

    name: str
    title: str
    paired: bool = False


ONE_F_ONE_B = Schedule("1f1b", "1F1B")
INTERLEAVED = Schedule("interleaved", "interleaved 1F1B")
PAIRED_INTERLEAVED = Schedule(
    "interleaved-paired", "interleaved 1F1B, experts' all-to-alls beside another microbatch", paired=True
)


def problem(shape: Shape) -> str | None:
    """Return why Megatron-LM refuses a shape, as a sentence with got and need, the first reason only; None if it runs
    it.

    One chunk per stage always runs. Interleaved needs pp >= 2, m >= pp, pp <= group <= m, and m a multiple of group or
    with a remainder of at least pp (megatron-core 0.16.1, forward_backward_pipelining_with_interleaving).
    """
    pp, vpp, m, group = shape
    if vpp == 1:
        return None
    if pp < 2:
        return f"interleaved 1F1B needs at least 2 stages (got pp {pp}, vpp {vpp})"
    if m < pp:
        return f"interleaved 1F1B needs at least as many microbatches as stages (got {m}, need {pp})"
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


def warm_up(pp: Number, vpp: Number, group: Number, stage: Number) -> Number:
    """Return how many chunk forwards precede a stage's first backward if interleaved.

    As get_pp_rank_microbatches of megatron-core; not limited to the number of forwards that there are.
    """
    return 2 * (pp - stage - 1) + (vpp - 1) * group


@lru_cache(maxsize=8)
def orders(shape: Shape, paired: bool = False) -> tuple[tuple[tuple[Task, ...], int], ...]:
    """Return for each stage (its tasks in order, the number of forwards in its warm-up). Cached.

    After the warm-up one forward and one backward alternate, then the remaining backwards follow. A stage with one
    chunk warms up with pp - stage - 1 forwards, others with `warm_up`, at most all. Chunks take turns as in
    get_schedule_table of megatron-core: a group of microbatches through each, backwards from the last chunk to the
    first. paired: an interleaved warm-up has one forward more; each later forward is to run together with the backward
    after it.
    """
    pp, vpp, m, group = shape
    in_a_row = group if vpp > 1 else m
    turns = [
        (place, microbatch)
        for first in range(0, m, in_a_row)
        for place in range(vpp)
        for microbatch in range(first, min(first + in_a_row, m))
    ]
    result = []
    for stage in range(pp):
        warm = min(len(turns), warm_up(pp, vpp, group, stage) + paired if vpp > 1 else pp - stage - 1)
        forwards = [(FORWARD, stage + place * pp, microbatch) for place, microbatch in turns]
        backwards = [(BACKWARD, stage + (vpp - 1 - place) * pp, microbatch) for place, microbatch in turns]
        pairs = zip(forwards[warm:], backwards, strict=False)
        tasks = (*forwards[:warm], *chain.from_iterable(pairs), *backwards[len(turns) - warm :])
        result.append((tasks, warm))
    return tuple(result)


@lru_cache(maxsize=4096)
def held(stage: int, pp: int, vpp: int, group: int, microbatches: int) -> NDArray[np.float64]:
    """Return how many microbatches' activations a stage holds of each chunk, at every moment of a possible peak.
    Cached.

    [moments, vpp]: the first moment is before the stage's first backward, each further one a forward and a backward
    later, over one turn of the chunks at most. A stage of one chunk has one moment, with min(microbatches, pp - stage).
    """
    if vpp == 1:
        return np.array([[float(min(microbatches, pp - stage))]])
    chunk = np.arange(float(vpp))
    total = microbatches * vpp
    ahead = min(total, warm_up(pp, vpp, group, stage) + 1)
    steps = np.arange(float(min(group * vpp, total - ahead + 1)))[:, None]

    def done(passes: Any, place: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return, for each chunk, how many microbatches went through it after `passes` chunk passes of the stage, at
        most all.

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
