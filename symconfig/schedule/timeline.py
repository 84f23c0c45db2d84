"""What a simulated step looked like: when each stage did what, and what it held."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from symconfig.schedule.channel import Window
from symconfig.schedule.program import Ints, Program
from symconfig.schedule.schedule import Kind, Schedule, Shape
from symconfig.schedule.times import Array, Times, by_chunk


class Event(NamedTuple):
    """One thing on a stage's track.

    kind: forward, recompute, backward, weight, receive (the stage is busy); send (a message is under way); gather,
    reduce (the stage's channel of data parallelism; microbatch -1). chunk: its place on the stage, 0 to vpp - 1;
    `Timeline.placed` has its number in the model.
    """

    kind: str
    chunk: int
    microbatch: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """One simulated step. clock_s: [pp], end of each stage's last task; until_s: [pp], of its last collective."""

    schedule: Schedule
    shape: Shape
    times: Times
    work: Program
    end_s: Array
    ready_s: Array
    clock_s: Array
    until_s: Array
    gathers: tuple[Window, ...]
    reduces: tuple[Window, ...]

    @property
    def pp(self) -> int:
        return self.shape.pp

    @property
    def vpp(self) -> int:
        return self.shape.vpp

    @property
    def m(self) -> int:
        return self.shape.m

    @property
    def placed(self) -> tuple[tuple[int, ...], ...]:
        """For each stage, the numbers in the model of the chunks that it holds."""
        return self.work.placed

    @property
    def finish_s(self) -> Array:
        """[pp]: when each stage is done, its reductions included."""
        return np.maximum(self.clock_s, self.until_s)

    @property
    def step_s(self) -> float:
        """Until the last stage is done."""
        return float(self.finish_s.max())

    @property
    def busy_s(self) -> Array:
        """[pp]: seconds in which each stage works or receives."""
        busy = np.zeros(self.pp)
        np.add.at(busy, self.work.stage, self.end_s - self._starts())
        return busy

    def _starts(self) -> Array:
        """[n]: when each task starts: after the stage's task before it, with its message and its weights."""
        stages, needs = np.array(self.work.stage), np.array(self.work.need)
        arrived = np.concatenate(([0.0], self.end_s + self.times.lag_s * self.work.sent))[needs]
        start: Array = np.maximum(arrived, self.ready_s)
        for stage in range(self.pp):
            mine = np.flatnonzero(stages == stage)
            start[mine[1:]] = np.maximum(start[mine[1:]], self.end_s[mine[:-1]])
        return start

    def _mine(self, stage: int) -> Ints:
        return np.flatnonzero(np.array(self.work.stage) == stage)

    def events(self, stage: int) -> Iterator[Event]:
        """Everything on one stage's track: its tasks in order, then its collectives."""
        starts = self._starts()
        parts = self._parts()
        for n in self._mine(stage):
            chunk, microbatch = self.placed[stage].index(int(self.work.chunk[n])), int(self.work.microbatch[n])
            start, end = float(starts[n]), float(self.end_s[n])
            if self.work.received[n] and self.times.busy_s:
                yield Event("receive", chunk, microbatch, start, start + self.times.busy_s)
                start += self.times.busy_s
            named = [(name, seconds) for name, seconds in parts(int(n)) if seconds]
            whole = sum(seconds for _, seconds in named)
            stretch = (end - start) / whole if whole else 0.0  # a collective beside it slows all of it
            for name, seconds in named:
                yield Event(name, chunk, microbatch, start, start + seconds * stretch)
                start += seconds * stretch
            if self.work.sent[n]:
                yield Event("send", chunk, microbatch, end, end + self.times.lag_s + self.times.busy_s)
        for name, windows in (("gather", self.gathers), ("reduce", self.reduces)):
            for window in windows:
                if window.stage == stage and window.end_s > window.start_s:
                    yield Event(name, self.placed[stage].index(window.chunk), -1, window.start_s, window.end_s)

    def _parts(self) -> Callable[[int], list[tuple[str, float]]]:
        """Of a task: the names and seconds of what it is made of."""
        forward, recompute, backward, weight = (
            by_chunk(getattr(self.times, name)).tolist() for name in ("forward", "recompute", "backward", "weight")
        )

        def parts(n: int) -> list[tuple[str, float]]:
            kind, c = self.work.kind[n], int(self.work.chunk[n])
            if kind == Kind.FORWARD:
                return [("forward", forward[c])]
            last = ("weight", weight[c])
            if kind == Kind.WEIGHT:
                return [last]
            own = [("recompute", recompute[c]), ("backward", backward[c])]
            return own if self.schedule.splits else [*own, last]

        return parts

    def held(self, stage: int) -> tuple[Array, NDArray[np.intp]]:
        """Times [e] at which what a stage holds changes, and microbatches of each chunk held from then on [e, chunks].

        A microbatch is held from the start of its forward to the end of its last gradient.
        """
        mine = self._mine(stage)
        frees = Kind.WEIGHT if self.schedule.splits else Kind.BACKWARD
        kind = self.work.kind[mine]
        takes, gives = kind == Kind.FORWARD, kind == frees
        when = np.concatenate((self._starts()[mine][takes], self.end_s[mine][gives]))
        place = np.searchsorted(self.placed[stage], self.work.chunk[mine])
        change = np.zeros((len(when), len(self.placed[stage])), dtype=np.intp)
        change[np.arange(len(when)), np.concatenate((place[takes], place[gives]))] = np.repeat(
            (1, -1), (takes.sum(), gives.sum())
        )
        # What ends at a moment is given back before what starts then is taken.
        order = np.lexsort((change.sum(axis=1), when))
        return when[order], change[order].cumsum(axis=0)
