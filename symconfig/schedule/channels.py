"""Collectives of data parallelism beside a stage's work: gathers before its first forwards, reductions after."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import repeat
from typing import NamedTuple

import numpy as np

from symconfig.schedule.program import Program
from symconfig.schedule.times import Array, Start, Times, by_chunk

After = Callable[[list[float], list[float]], None]


class Window(NamedTuple):
    """A time for which a stage's channel is busy with a "gather" or a "reduce". chunk: its number in the model."""

    stage: int
    kind: str
    chunk: int
    start_s: float
    end_s: float


class Channels:
    """The data-parallel channels of one run, one for each stage.

    until: when each is free again, by stage; the simulator slows work that starts before. ready: when a task's weights
    are there, [n]. windows: what has occupied the channels so far.
    """

    __slots__ = ("_hide", "_own_s", "_times", "_work", "ready", "until", "windows")

    def __init__(self, work: Program, times: Times, own_s: Array) -> None:
        """Create a run's channels, at time 0; gathers are queued at once unless on demand.

        own_s: seconds of each task without receiving, [n].
        """
        self._work, self._times, self._own_s = work, times, own_s
        self.until = [0.0] * len(work.placed)
        self.ready = np.zeros(len(own_s))
        self.windows: list[Window] = []
        self._hide = by_chunk(np.broadcast_to(np.asarray(times.hide, dtype=np.float64), times.forward.shape))
        if times.gather is not None and times.gathers is not Start.ON_DEMAND:
            self._gather(by_chunk(times.gather))

    def _gather(self, seconds: Array) -> None:
        """Queue all gathers in the order of the first forwards, and set `ready` of these forwards.

        seconds: of each chunk. If gathers run apart, a stage's first forwards wait for all of them.
        """
        for (stage, chunk), n in self._work.first.items():
            self._occupy(stage, "gather", chunk, self.until[stage], float(seconds[chunk]))
            self.ready[n] = self.until[stage] - self._hide[chunk] * self._own_s[n]
        if self._times.gathers is Start.APART:
            for (stage, _), n in self._work.first.items():
                self.ready[n] = self.until[stage]

    def _occupy(self, stage: int, kind: str, chunk: int, start_s: float, seconds: float) -> None:
        self.until[stage] = start_s + seconds
        self.windows.append(Window(stage, kind, chunk, start_s, start_s + seconds))

    def cuts(self) -> Iterator[tuple[int, After]]:
        """Yield (number of tasks to run, callback to call after them), to the end of the run.

        The callbacks change clocks, ends of tasks and channels: they wait for gathers and launch reductions.
        """
        cuts: list[tuple[int, After]] = []
        gather, reduce = self._times.gather, self._times.reduce
        if gather is not None and self._times.gathers is Start.ON_DEMAND:
            seconds = by_chunk(gather)
            cuts += [
                (n, self._demanded(stage, chunk, n, float(seconds[chunk])))
                for (stage, chunk), n in self._work.first.items()
            ]
        elif gather is not None:
            cuts += [(n, self._gathered(stage, float(self.ready[n]))) for (stage, _), n in self._work.first.items()]
        if reduce is not None and self._times.reduces is not Start.APART:
            seconds = by_chunk(reduce)
            cuts += [
                (n + 1, self._reducing(stage, chunk, n, float(seconds[chunk]))) for n, stage, chunk in self._launches()
            ]
        cuts.sort(key=lambda cut: cut[0])
        at = 0
        for cut, after in cuts:
            yield cut - at, after
            at = cut
        yield len(self._own_s) - at, self._end

    def _launches(self) -> Iterator[tuple[int, int, int]]:
        """Yield (task after which it may start, stage, chunk) of each reduction, in order on each stage.

        Stage i's reductions start i tasks after its gradients are complete, so that all stages start together and what
        a reduction slows on one is not waited for on the next (Megatron-LM, --align-grad-reduce, on by default); one
        that overlaps with its own backward does not wait.
        """
        work = self._work
        for stage, (tasks, place) in enumerate(work.made):
            chunks = work.chunk[tasks[place]]
            behind = np.where(self._hide[chunks] > 0, 0, stage)
            after = tasks[np.minimum(place + behind, len(tasks) - 1)]
            yield from zip(after.tolist(), repeat(stage), chunks.tolist(), strict=False)

    def _gathered(self, stage: int, ready: float) -> After:
        """Return a callback that advances a stage's clock to when its weights are `ready`."""

        def after(clock: list[float], ends: list[float]) -> None:
            clock[stage] = max(clock[stage], ready)

        return after

    def _demanded(self, stage: int, chunk: int, n: int, seconds: float) -> After:
        """Return a callback that gathers a chunk's weights when the input of its first forward, task n, has arrived.

        It records the window and advances `ready` and the stage's clock.
        """
        need = int(self._work.need[n]) - 1
        lag_s = self._times.lag_s * bool(need >= 0 and self._work.sent[need])

        def after(clock: list[float], ends: list[float]) -> None:
            arrived = ends[need] + lag_s if need >= 0 else 0.0
            start = max(clock[stage], arrived, self.until[stage])
            self._occupy(stage, "gather", chunk, start, seconds)
            self.ready[n] = clock[stage] = max(start, start + seconds - float(self._hide[chunk] * self._own_s[n]))

        return after

    def _reducing(self, stage: int, chunk: int, n: int, seconds: float) -> After:
        """Return a callback that reduces a chunk's gradients, complete after task n, when the channel is free.

        A part may overlap with the backward that makes them, which is slowed by contention: the callback delays task
        n's end.
        """

        def after(clock: list[float], ends: list[float]) -> None:
            start = max(self.until[stage], ends[n] - float(self._hide[chunk] * self._own_s[n]))
            overlapped_s = min(max(ends[n] - start, 0.0), seconds)
            ends[n] = clock[stage] = ends[n] + self._times.contention * overlapped_s
            self._occupy(stage, "reduce", chunk, start, seconds)

        return after

    def _end(self, clock: list[float], ends: list[float]) -> None:
        """Record the reductions that run apart, after each stage's last task; do nothing for others."""
        if self._times.reduce is None or self._times.reduces is not Start.APART:
            return
        seconds = by_chunk(self._times.reduce)
        for (stage, chunk), _ in sorted(self._work.last.items(), key=lambda item: item[1]):
            self._occupy(stage, "reduce", chunk, max(clock[stage], self.until[stage]), float(seconds[chunk]))
