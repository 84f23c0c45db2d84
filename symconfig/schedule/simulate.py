"""A pipeline step, simulated: each stage does its tasks in order, each as soon as what it needs has arrived."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

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
    arrived: list[float | None] = [None] * (2 * shape.pp * shape.vpp * shape.m) + [0.0]
    stages = [_Stage(times, shape, stage, paired, *order) for stage, order in enumerate(orders(shape, paired))]
    waiting = stages
    while waiting:
        for stage in waiting:
            stage.advance(arrived)
        waiting = [stage for stage in waiting if len(stage.ends) < len(stage.tasks)]
    return Timeline(schedule=schedule, shape=shape, times=times, tracks=tuple(stage.track() for stage in stages))


class _Stage:
    """One stage of a run: its clock, and its channel, on which data-parallel collectives follow one another.

    until: when the channel is free; work that starts before is slower. ready: when the weights of a chunk's first
    forward are there, by the task's index. reductions: the chunks whose reduction may start after a task, by its index.
    """

    def __init__(
        self, times: Times, shape: Shape, stage: int, paired: bool, tasks: tuple[Task, ...], warm: int
    ) -> None:
        """Create a stage at time 0, with its gathers queued and its reductions placed. tasks, warm: as of `orders`.

        paired: tasks after the warm-up are in pairs of a forward and a backward. `times.slow` multiplies the seconds of
        work.
        """
        self.times, self.shape, self.stage = times, shape, stage
        self.tasks, self.warm = tasks, warm
        self.pairs = (warm, len(tasks) - warm) if paired else (len(tasks), 0)  # forwards and backwards in turn
        slow = float(np.broadcast_to(times.slow, shape.pp)[stage])
        backward = times.recompute[stage] + times.backward[stage] + times.weight[stage]
        self.seconds: tuple[list[float], list[float]] = (
            (times.forward[stage] * slow).tolist(),
            (backward * slow).tolist(),
        )
        saved = np.zeros(shape.vpp) if times.paired is None else times.paired[stage] / 2.0
        self.saved_s: list[float] = (saved * slow).tolist()
        self.hide: list[float] = np.broadcast_to(times.hide, times.forward.shape)[stage].tolist()
        # of a chunk's own first forward, with which its gather overlaps
        self.overlapped_s: list[float] = [
            share * own for share, own in zip(self.hide, self.seconds[FORWARD], strict=True)
        ]
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
        first: dict[int, int] = {}
        for n, (kind, chunk, _) in enumerate(self.tasks):
            if kind == FORWARD:
                first.setdefault(chunk, n)
        for chunk, n in first.items():
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
        backwards = [n for n, (kind, *_) in enumerate(self.tasks) if kind == BACKWARD]
        last = {self.tasks[n][1]: place for place, n in enumerate(backwards)}
        for chunk, place in sorted(last.items(), key=lambda item: item[1]):
            behind = 0 if self.hide[chunk // self.shape.pp] > 0 else self.stage
            n = backwards[min(place + behind, len(backwards) - 1)]
            self.reductions[len(self.tasks) if self.times.reduces is Start.APART else n].append(chunk)

    def advance(self, arrived: list[float | None]) -> None:
        """Run tasks until one waits for a message; record starts, ends and the clock, and add results to `arrived`.

        A task starts when clock, message and, for a first forward, weights are there. It takes its seconds, busy_s more
        if a message came from another stage, and contention slows it while the channel is busy. Of a pair the forward
        takes none, and the backward has both, less the saved seconds. A result is there at the end, lag_s later on
        another stage. Then reductions that wait for the task are queued.

        arrived: by kind, chunk and microbatch, when a forward's output or a backward's gradient is at the stage that
        needs it; at -1 the model's input; None while it is not made. Mutated.
        """
        (pp, vpp, m, _), times, tasks = self.shape, self.times, self.tasks
        busy_s, lag_s, contention = times.busy_s, times.lag_s, times.contention
        last, far = pp * vpp - 1, pp > 1
        first_pair, pairs_end = self.pairs
        clock, n = self.clock, len(self.ends)
        while n < len(tasks):
            kind, chunk, microbatch = tasks[n]
            end = last if kind else 0  # the chunk that needs nothing of another one in this direction
            made = (kind * (last + 1) + chunk) * m + microbatch
            inner = far and chunk != end
            before = (
                -1 if made < m else made - m if kind == FORWARD else made + m if chunk < last else last * m + microbatch
            )
            there = arrived[before]
            if there is None:
                break
            own_s = self.seconds[kind][chunk // pp]
            partner = -1
            if first_pair <= n < pairs_end:
                if kind == FORWARD:
                    own_s = 0.0  # its work is in the backward's time
                else:
                    _, other, of = tasks[n - 1]
                    partner = other * m + of
                    own_s += self.seconds[FORWARD][other // pp]
                    own_s -= self.saved_s[chunk // pp] + self.saved_s[other // pp]
            if n in self.ready:
                clock = self._with_weights(n, clock, there)
            start = there if there > clock else clock
            takes = own_s + busy_s if inner else own_s
            if start < self.until:
                takes = min(takes / (1.0 - contention), takes + contention * (self.until - start))
            clock = start + takes
            if partner >= 0:
                arrived[partner] = clock + lag_s if far and partner < last * m else clock
            if kind or not first_pair <= n < pairs_end:
                arrived[made] = clock + lag_s if far and chunk != last - end else clock
            if n in self.reductions:
                clock = self._reduced(n, clock, own_s)
            self.starts.append(start)
            self.ends.append(clock)
            n += 1
        self.clock = clock

    def _with_weights(self, n: int, clock: float, arrived_s: float) -> float:
        """Return when task n, a chunk's first forward, has its weights: the clock or its `ready` time, the later one.

        On demand, the gather is queued at the latest of clock, the input's arrival and the channel's end, and the time
        is its end, less what the forward overlaps with, or its start if that is later.
        """
        if self.times.gather is None or self.times.gathers is not Start.ON_DEMAND:
            return max(clock, self.ready[n])
        chunk, start = self.tasks[n][1], max(clock, arrived_s, self.until)
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
        if len(self.tasks) in self.reductions:
            self.hide = [0.0] * self.shape.vpp
            self._reduced(len(self.tasks), self.clock, 0.0)
        times = np.array(self.starts), np.array(self.ends)
        return Track(self.tasks, self.warm, *times, tuple(self.windows), max(self.clock, self.until))
