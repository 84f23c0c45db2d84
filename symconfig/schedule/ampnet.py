"""AMPNet: examples pass the stages as messages do, at most so many at a time, and each stage updates by itself."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import lru_cache
from heapq import heappop, heappush

from symconfig.schedule.schedule import BACKWARD, FORWARD, Order, Schedule, Shape, Task, one_chunk

ACTIVE = 4
_LASTS = {FORWARD: 1, BACKWARD: 2}  # for the order alone, in which stages take what has come


@lru_cache(maxsize=8)
def ampnet(active: int) -> Schedule:
    """Keep `active` microbatches in flight at most (the paper's max_active_keys); no weights are stashed."""

    def order(shape: Shape, stage: int) -> Iterable[Task]:
        return _orders(shape.pp, 2 * (shape.m + shape.pp), active)[stage]

    def older(shape: Shape, stage: int) -> int:
        ended = late = 0
        for kind, _, microbatch in order(shape, stage):
            if kind == BACKWARD:
                ended += 1
            else:
                late = max(late, microbatch // shape.m - ended // shape.m)
        return late

    return Schedule(
        "ampnet",
        f"AMPNet, {active} active",
        "arXiv 1705.09786",
        order,
        _rounds(active),
        endless=True,
        staleness=older,
    )


def _rounds(active: int) -> Callable[[Shape], str | None]:
    """Return the limit under which a step is a whole number of rounds of what is in flight."""

    def limit(shape: Shape) -> str | None:
        if shape.pp > active and shape.m % active:
            return f"AMPNet keeps {active} microbatches in flight (got {shape.m} a step, need a multiple of {active})"
        return one_chunk("AMPNet")(shape)

    return limit


@lru_cache(maxsize=32)
def _orders(stages: int, count: int, active: int) -> tuple[Order, ...]:
    """Return what each stage takes as it comes, gradients first, where all take equally long."""
    taken: list[list[Task]] = [[] for _ in range(stages)]
    forwards = [deque[int]() for _ in range(stages)]
    backwards = [deque[int]() for _ in range(stages)]
    forwards[0].extend(range(min(active, count)))
    entered = len(forwards[0])
    busy = [False] * stages
    ends: list[tuple[int, int, int, int]] = []  # when, stage, kind, microbatch

    def take(now: int, stage: int) -> None:
        waiting = backwards[stage] or forwards[stage]
        if waiting and not busy[stage]:
            kind = BACKWARD if waiting is backwards[stage] else FORWARD
            microbatch = waiting.popleft()
            busy[stage] = True
            taken[stage].append((kind, stage, microbatch))
            heappush(ends, (now + _LASTS[kind], stage, kind, microbatch))

    take(0, 0)
    while ends:
        now = ends[0][0]
        while ends and ends[0][0] == now:
            _, stage, kind, microbatch = heappop(ends)
            busy[stage] = False
            if kind == FORWARD and stage + 1 < stages:
                forwards[stage + 1].append(microbatch)
            elif kind == FORWARD:
                backwards[stage].append(microbatch)
            elif stage:
                backwards[stage - 1].append(microbatch)
            elif entered < count:
                forwards[0].append(entered)
                entered += 1
        for stage in range(stages):
            take(now, stage)
    return tuple(map(tuple, taken))


AMPNET = ampnet(ACTIVE)
