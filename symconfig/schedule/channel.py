"""Collectives of data parallelism beside a stage's work: gathers before its first forwards, reductions after."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from symconfig.schedule.program import Program
from symconfig.schedule.times import Array, Times, by_chunk

After = Callable[[list[float], list[float]], None]


class Window(NamedTuple):
    """When a stage's channel is busy, and for which chunk of the model."""

    stage: int
    chunk: int
    start_s: float
    end_s: float


class Channel:
    """One run's channels, one a stage.

    until: when each stage's channel is free again; the simulator slows work that starts before. `segments` cuts the
    run where a collective matters and says what then happens to the stages' clocks.
    """

    __slots__ = ("_own_s", "_times", "_work", "contention", "gathers", "ready", "reduces", "until")

    def __init__(self, work: Program, times: Times, own_s: Array) -> None:
        """own_s: [n], seconds of each task without what receiving takes."""
        self.contention = times.contention
        self.until = [0.0] * len(work.placed)
        self.gathers: list[Window] = []
        self.reduces: list[Window] = []
        self.ready = np.zeros(len(work.stage))
        self._work, self._times, self._own_s = work, times, own_s
        if times.gather is not None:
            self._gather(by_chunk(times.gather))

    def _gather(self, seconds: Array) -> None:
        """All gathers, and when the first forward of each chunk may start."""
        for n, (stage, chunk) in self._work.first.items():
            start = self.until[stage]
            end = self.until[stage] = start + float(seconds[chunk])
            self.gathers.append(Window(stage, chunk, start, end))
            self.ready[n] = end - self._times.hide * self._own_s[n]
        if not self._times.hide:
            for n, (stage, _) in self._work.first.items():
                self.ready[n] = self.until[stage]

    def segments(self) -> Iterator[tuple[int, After]]:
        """(how many tasks to run, what then happens), to the end."""
        cuts: list[tuple[int, After]] = []
        if self._times.gather is not None:
            cuts += [(n, self._waiting(stage, float(self.ready[n]))) for n, (stage, _) in self._work.first.items()]
        reduce = self._times.reduce
        if reduce is not None and self._times.hide:
            seconds = by_chunk(reduce)
            cuts += [
                (n + 1, self._reducing(stage, chunk, n, float(seconds[chunk])))
                for n, (stage, chunk) in self._work.last.items()
            ]
        cuts.sort(key=lambda cut: cut[0])
        at = 0
        for cut, after in cuts:
            yield cut - at, after
            at = cut
        yield len(self._work.stage) - at, self._end

    def _waiting(self, stage: int, ready: float) -> After:
        """A stage is not before its next chunk's weights."""

        def after(clock: list[float], ends: list[float]) -> None:
            clock[stage] = max(clock[stage], ready)

        return after

    def _reducing(self, stage: int, chunk: int, n: int, seconds: float) -> After:
        """The chunk's gradients are all there: their reduction began while they were made, and slowed that."""

        def after(clock: list[float], ends: list[float]) -> None:
            start = max(self.until[stage], ends[n] - self._times.hide * float(self._own_s[n]))
            slowed = self.contention * min(max(ends[n] - start, 0.0), seconds)
            ends[n] = clock[stage] = ends[n] + slowed
            self.until[stage] = start + seconds
            self.reduces.append(Window(stage, chunk, start, start + seconds))

        return after

    def _end(self, clock: list[float], ends: list[float]) -> None:
        """Reductions that nothing hides follow the last task."""
        if self._times.reduce is None or self._times.hide:
            return
        self.until[:] = clock
        seconds = by_chunk(self._times.reduce)
        for stage, chunk in self._work.last.values():
            start = self.until[stage]
            end = self.until[stage] = start + float(seconds[chunk])
            self.reduces.append(Window(stage, chunk, start, end))
