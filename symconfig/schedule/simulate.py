"""A pipeline step, simulated: each stage does its tasks in order, each as soon as what it needs has arrived."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from symconfig.errors import InputError
from symconfig.schedule.timeline import (
    BACKWARD,
    FORWARD,
    INTERLEAVED,
    ONE_F_ONE_B,
    PAIRED_INTERLEAVED,
    Array,
    Shape,
    Start,
    Task,
    Timeline,
    Times,
    Track,
    Window,
    orders,
    problem,
    receives,
    sends,
)

MOST_TASKS = 2**18  # of a step that is simulated whole; a longer one is extrapolated


def simulate(times: Times, m: int, group: int | None = None, paired: bool = False) -> Timeline:
    """Return the timeline of one step of m microbatches: 1F1B for one chunk per stage, else interleaved.

    A step of more than MOST_TASKS tasks is simulated for fewer microbatches and extrapolated (`Timeline.left_out`) by
    the pace between two simulations, no faster than the busiest stage.

    group: microbatches that pass a chunk in a row if interleaved; None or 0 for pp. paired: forwards after the warm-up
    of an interleaved schedule run together with backwards; ignored with one chunk per stage.

    Raises:
        InputError: `not_simulated`: the schedule cannot have this shape, or has too many tasks even for a part.
    """
    pp, vpp = times.forward.shape
    shape = Shape(pp, vpp, m, group or pp)
    if why := not_simulated(shape):
        raise InputError(why)
    tasks = 2 * pp * vpp
    if tasks * m <= MOST_TASKS:
        return _simulated(times, shape, paired)
    # In its steady part a step takes as long for each further group of microbatches: the difference of two parts.
    period = shape.group if vpp > 1 else 1
    groups = min(m // period, max(8, 32 * pp // period))
    some, fewer = (
        _simulated(times, shape._replace(m=m % period + count * period), paired) for count in (groups, groups // 2)
    )
    more = some.m - fewer.m
    busy_s = (some.busy_s - fewer.busy_s) / more
    pace_s = max((some.step_s - fewer.step_s) / more, float(busy_s.max()))
    left_out = m - some.m
    return replace(
        some, shape=shape, left_out=left_out, left_out_s=left_out * pace_s, left_out_busy_s=left_out * busy_s
    )


def not_simulated(shape: Shape) -> str | None:
    """Return why a step of this shape cannot be simulated, as a sentence; None if it can.

    Megatron-LM refuses it (`problem`, which comes first), or it has more than 2 MOST_TASKS tasks, of at most four
    groups (each max(group, pp) microbatches): longer steps are extrapolated from these.
    """
    tasks = 2 * shape.pp * shape.vpp * min(shape.m, 4 * max(shape.group, shape.pp))
    too_long = f"the step is too long to be simulated (got {tasks:,} tasks, need <= {2 * MOST_TASKS:,})"
    return problem(shape) or (too_long if tasks > 2 * MOST_TASKS else None)


def _simulated(times: Times, shape: Shape, paired: bool) -> Timeline:
    """Return the timeline of a step, every task simulated; the stages advance in turn, each until it waits for a
    message.

    The schedule is 1F1B with one chunk per stage, whatever `paired` is; else interleaved, paired or not.
    """
    paired = paired and shape.vpp > 1
    schedule = ONE_F_ONE_B if shape.vpp == 1 else PAIRED_INTERLEAVED if paired else INTERLEAVED
    # When each result is at the stage that needs it, None before; last, the model's inputs.
    arrived: list[float | None] = [None] * (2 * shape.pp * shape.vpp * shape.m) + [0.0] * shape.m
    stages = [_Stage(times, shape, stage, order) for stage, order in enumerate(_orders(shape, paired))]
    waiting = [stage.run(arrived) for stage in stages]
    while waiting:
        waiting = [run for run in waiting if next(run, "done") is None]
    return Timeline(schedule=schedule, shape=shape, times=times, tracks=tuple(stage.track() for stage in stages))


Results = tuple[tuple[int, bool], ...]  # (index, whether it is sent to another stage) of each


class _Order(NamedTuple):
    """One stage's tasks in order; and by task the result that it needs, and those that are there at its end, by index.

    pairs: indices of the forwards that run together with the backward after them, at whose end both results are there.
    received: whether the input comes from another stage. first: the task with each chunk's first forward. reduced: each
    chunk, with the place of its last backward among `backwards`, rising.
    """

    tasks: tuple[Task, ...]
    warm: int
    pairs: range
    needs: list[int]
    received: list[bool]
    made: list[Results]
    first: dict[int, int]
    backwards: list[int]
    reduced: list[tuple[int, int]]


@lru_cache(maxsize=8)
def _orders(shape: Shape, paired: bool) -> tuple[_Order, ...]:
    """Return the order of each stage; results are numbered by kind, chunk and microbatch, then the inputs. Cached."""
    m, chunks = shape.m, range(shape.pp * shape.vpp)
    index = [c * m for c in chunks], [(len(chunks) + c) * m for c in chunks]
    # A forward needs the one before, a backward the one behind; the last backward the last forward.
    needed = [2 * len(chunks) * m, *index[FORWARD][:-1]], [*index[BACKWARD][1:], index[FORWARD][-1]]
    comes, goes = (
        [[each(shape, (kind, c, 0)) for c in chunks] for kind in (FORWARD, BACKWARD)] for each in (receives, sends)
    )
    result = []
    for tasks, warm in orders(shape, paired):
        pairs = range(warm, len(tasks) - warm, 2) if paired else range(0)
        made: list[Results] = [((index[kind][c] + j, goes[kind][c]),) for kind, c, j in tasks]
        for n in pairs:
            made[n : n + 2] = (), made[n] + made[n + 1]
        backwards = [n for n, task in enumerate(tasks) if task[0] == BACKWARD]
        result.append(
            _Order(
                tasks=tasks,
                warm=warm,
                pairs=pairs,
                needs=[needed[kind][c] + j for kind, c, j in tasks],
                received=[comes[kind][c] for kind, c, _ in tasks],
                made=made,
                first={c: n for n, (kind, c, j) in enumerate(tasks) if kind == FORWARD and j == 0},
                backwards=backwards,
                reduced=[(place, tasks[n][1]) for place, n in enumerate(backwards) if tasks[n][2] == m - 1],
            )
        )
    return tuple(result)


class _Stage:
    """One stage of a run: its clock, and its channel, on which data-parallel collectives follow one another.

    own_s: seconds of each task's work, a pair's with its backward. until: when the channel is free; work that starts
    before is slower. ready: when the weights of a chunk's first forward are there, by the task's index. reductions: the
    chunks whose reduction may start after a task, by its index.
    """

    def __init__(self, times: Times, shape: Shape, stage: int, order: _Order) -> None:
        """Create a stage at time 0, with its gathers queued and its reductions placed."""
        self.times, self.shape, self.stage, self.order = times, shape, stage, order
        backward = times.recompute[stage] + times.backward[stage] + times.weight[stage]
        seconds = times.forward[stage].tolist(), backward.tolist()
        self.own_s: list[float] = [seconds[kind][chunk // shape.pp] for kind, chunk, _ in order.tasks]
        saved_s = (np.zeros(shape.vpp) if times.paired is None else times.paired[stage] / 2.0).tolist()
        for n in order.pairs:
            other, own = (order.tasks[each][1] // shape.pp for each in (n, n + 1))
            self.own_s[n + 1] += self.own_s[n]
            self.own_s[n + 1] -= saved_s[own] + saved_s[other]
            self.own_s[n] = 0.0
        self.hide: list[float] = np.broadcast_to(times.hide, times.forward.shape)[stage].tolist()
        # of a chunk's own first forward, with which its gather overlaps
        self.overlapped_s: list[float] = [share * own for share, own in zip(self.hide, seconds[FORWARD], strict=True)]
        self.clock = self.until = 0.0
        self.starts: list[float] = []
        self.ends: list[float] = []
        self.windows: list[Window] = []
        self.ready: dict[int, float] = {}
        self.reductions: defaultdict[int, list[int]] = defaultdict(list)
        self._queue_gathers()
        self._place_reductions()

    def _occupy(self, kind: str, chunk: int, start_s: float, each: Array) -> None:
        """Record that the channel gathers or reduces a chunk from start_s on. each: seconds of chunks, [pp, vpp]."""
        self.until = start_s + float(each[self.stage, chunk // self.shape.pp])
        self.windows.append(Window(kind, chunk, start_s, self.until))

    def _queue_gathers(self) -> None:
        """Set `ready` for each chunk's first forward and, unless on demand, occupy the channel with gathers in order.

        The time is when the gather ends, less what the forward overlaps with; if gathers run APART, when all end; on
        demand 0. Nothing without gathers.
        """
        gather, start = self.times.gather, self.times.gathers
        if gather is None:
            return
        for chunk, n in self.order.first.items():
            self.ready[n] = 0.0
            if start is not Start.ON_DEMAND:
                self._occupy("gather", chunk, self.until, gather)
                self.ready[n] = self.until - self.overlapped_s[chunk // self.shape.pp]
        if start is Start.APART:
            self.ready = dict.fromkeys(self.ready, self.until)

    def _place_reductions(self) -> None:
        """Set `reductions`: after which task each chunk's reduction may start, after all if APART; {} without any.

        That is i backwards after its last one on stage i, at most the last backward, so that all stages start together
        and what a reduction slows on one is not waited for on the next (Megatron-LM, --align-grad-reduce, on by
        default); a chunk that overlaps with its own backward (`hide` > 0) does not wait.
        """
        if self.times.reduce is None:
            return
        backwards = self.order.backwards
        for place, chunk in self.order.reduced:
            behind = 0 if self.hide[chunk // self.shape.pp] > 0 else self.stage
            n = backwards[min(place + behind, len(backwards) - 1)]
            self.reductions[len(self.own_s) if self.times.reduces is Start.APART else n].append(chunk)

    def run(self, arrived: list[float | None]) -> Iterator[None]:
        """Run all tasks in order; yield None each time the next one's input has not arrived.

        A task starts when clock, input and, for a first forward, weights are there. It takes its seconds, busy_s more
        if the input came from another stage, and contention slows it while the channel is busy. Its results are there
        at its end, lag_s later on another stage; their times are written to `arrived`. Then reductions that wait for
        the task are queued.
        """
        times, order, clock = self.times, self.order, 0.0
        busy_s, lag_s, contention = times.busy_s, times.lag_s, times.contention
        every = enumerate(zip(self.own_s, order.needs, order.received, order.made, strict=True))
        for n, (own_s, needed, received, made) in every:
            while (there := arrived[needed]) is None:
                yield
            if n in self.ready:
                clock = self._with_weights(n, clock, there)
            start = there if there > clock else clock
            takes = own_s + busy_s if received else own_s
            if start < self.until:
                takes = min(takes / (1.0 - contention), takes + contention * (self.until - start))
            clock = start + takes
            for result, sent in made:
                arrived[result] = clock + lag_s if sent else clock
            if n in self.reductions:
                clock = self._reduced(n, clock, own_s)
            self.starts.append(start)
            self.ends.append(clock)
        self.clock = clock

    def _with_weights(self, n: int, clock: float, arrived_s: float) -> float:
        """Return when task n, a chunk's first forward, has its weights: the clock or its `ready` time, the later one.

        On demand, the gather is queued at the latest of clock, the input's arrival and the channel's end, and the time
        is its end, less what the forward overlaps with, or its start if that is later.
        """
        if self.times.gather is None or self.times.gathers is not Start.ON_DEMAND:
            return max(clock, self.ready[n])
        chunk, start = self.order.tasks[n][1], max(clock, arrived_s, self.until)
        self._occupy("gather", chunk, start, self.times.gather)
        return max(start, self.until - self.overlapped_s[chunk // self.shape.pp])

    def _reduced(self, n: int, clock: float, own_s: float) -> float:
        """Queue the reductions that may start after task n and return the clock, later by contention times what
        overlaps.

        Each starts when the channel is free, at the earliest `hide` times own_s, the backward's seconds, before the
        clock.
        """
        assert self.times.reduce is not None
        for chunk in self.reductions[n]:
            start = max(self.until, clock - self.hide[chunk // self.shape.pp] * own_s)
            self._occupy("reduce", chunk, start, self.times.reduce)
            overlapped_s = min(max(clock - start, 0.0), self.until - start)
            clock += self.times.contention * overlapped_s
        return clock

    def track(self) -> Track:
        """Return what the stage did; first, reductions that run APART are queued after its last task, without overlap.

        It finishes at its clock or the end of its channel's last collective, whichever is later.
        """
        if len(self.own_s) in self.reductions:
            self.hide = [0.0] * self.shape.vpp
            self._reduced(len(self.own_s), self.clock, 0.0)
        times = np.array(self.starts), np.array(self.ends)
        return Track(self.order.tasks, self.order.warm, *times, tuple(self.windows), max(self.clock, self.until))
