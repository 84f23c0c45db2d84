"""What a simulated step looked like: when each stage did what, and what it held."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from symconfig.schedule.channels import Window
from symconfig.schedule.program import Ints, Program
from symconfig.schedule.schedule import BACKWARD, FORWARD, INPUT, WEIGHT, Schedule, Shape
from symconfig.schedule.times import Array, Times

_MADE_OF = {
    FORWARD: ("forward",),
    BACKWARD: ("recompute", "backward", "weight"),
    INPUT: ("recompute", "backward"),
    WEIGHT: ("weight",),
}


class Event(NamedTuple):
    """One event on a stage's track.

    kind: forward, recompute, backward, weight, receive (the stage is busy); send (a message is under way); gather,
    reduce (the stage's data-parallel channel; microbatch -1). chunk: its index on the stage, 0 to vpp - 1;
    `Timeline.placed` has its number in the model.
    """

    kind: str
    chunk: int
    microbatch: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """One simulated step.

    end_s: [n], of each task. ready_s: [n], when its weights are there. finish_s: [pp], when each stage is done, its
    reductions included. windows: of the stages' channels. left_out: microbatches of a long step that were extrapolated:
    they are not in `work`, `end_s` and `windows`, but in `finish_s`, which they delay by `left_out_s`. left_out_busy_s:
    their busy seconds, [pp].
    """

    schedule: Schedule
    shape: Shape
    times: Times
    work: Program
    end_s: Array
    ready_s: Array
    finish_s: Array
    windows: tuple[Window, ...]
    left_out: int = 0
    left_out_s: float = 0.0
    left_out_busy_s: Array | float = 0.0

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
        """Return for each stage the numbers of its chunks in the model."""
        return self.work.placed

    @property
    def step_s(self) -> float:
        """Return the seconds of the step: when the last stage is done."""
        return float(self.finish_s.max())

    @property
    def busy_s(self) -> Array:
        """Return the seconds for which each stage computes or receives in the step: [pp]."""
        busy = np.zeros(self.pp)
        np.add.at(busy, self.work.stage, self.end_s - self._starts())
        result: Array = busy + self.left_out_busy_s
        return result

    def _starts(self) -> Array:
        """Return when each task starts, its stage free, its message arrived and its weights there: [n]."""
        work = self.work
        arrived = np.append(0.0, self.end_s + self.times.lag_s * work.sent)[work.need]
        start: Array = np.maximum(np.maximum(arrived, self.ready_s), np.append(0.0, self.end_s)[work.before])
        return start

    def events(self, stage: int) -> Iterator[Event]:
        """Yield the events of one stage: its tasks in order with their messages, then its data-parallel collectives.

        Microbatches that were left out of the simulation have no events.
        """
        starts, work = self._starts(), self.work
        place = {chunk: at for at, chunk in enumerate(self.placed[stage])}
        busy_s = self.times.busy_s

        def event(kind: str, n: int, start_s: float, end_s: float) -> Event:
            return Event(kind, place[int(work.chunk[n])], int(work.microbatch[n]), start_s, end_s)

        for n, done in self._tasks_with_work(stage):
            start, end = float(starts[n]), float(self.end_s[n])
            if work.received[n] and busy_s:
                yield event("receive", n, start, start + busy_s)
                start += busy_s
            parts = [part for task in done for part in self._parts(task)]
            whole = sum(seconds for *_, seconds in parts)
            stretch = (end - start) / whole if whole else 0.0  # what runs beside a task shortens or lengthens all of it
            for task, name, seconds in parts:
                yield event(name, task, start, start + seconds * stretch)
                start += seconds * stretch
            if work.sent[n]:
                yield from (event("send", task, end, end + self.times.lag_s + busy_s) for task in done)
        for where, kind, chunk, begins, ends in self.windows:
            if where == stage and ends > begins:
                yield Event(kind, place[chunk], -1, begins, ends)

    def _tasks_with_work(self, stage: int) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Yield (task, tasks whose work is done in it) of a stage.

        A forward that is paired with a backward has (): its work is done in the backward's task, which has both.
        """
        partner = self.work.partner
        waits = set((partner[partner > 0] - 1).tolist())
        for n in np.flatnonzero(self.work.stage == stage).tolist():
            if n in waits:
                yield n, ()
            else:
                yield n, (int(partner[n]) - 1, n) if partner[n] else (n,)

    def _parts(self, n: int) -> list[tuple[int, str, float]]:
        """Return (task, kind of event, seconds without slowdown) of each part of a task that takes time."""
        place, stage = divmod(int(self.work.chunk[n]), self.pp)
        parts = [(name, float(getattr(self.times, name)[stage, place])) for name in _MADE_OF[int(self.work.kind[n])]]
        return [(n, name, seconds) for name, seconds in parts if seconds]

    def held(self, stage: int) -> tuple[Array, Ints]:
        """Return times, [e], and the number of microbatches of each chunk held from then on, [e, chunks].

        A microbatch is held from the start of its forward to the end of its last gradient; with `by_layer` a paired
        forward is held only from the pair's end on, since it takes memory as its partner frees it.
        """
        work = self.work
        mine = np.flatnonzero(work.stage == stage)
        takes = mine[work.kind[mine] == FORWARD]
        gives = mine[(work.kind[mine] == BACKWARD) | (work.kind[mine] == WEIGHT)]
        begin, joined = self._starts(), np.flatnonzero(work.partner)
        if self.schedule.by_layer:
            begin[work.partner[joined] - 1] = self.end_s[joined]
        when = np.concatenate((begin[takes], self.end_s[gives]))
        change = np.repeat((1, -1), (len(takes), len(gives)))
        # What ends at a moment is given back before what starts then is taken.
        order = np.lexsort((change, when))
        place = np.searchsorted(self.placed[stage], work.chunk[np.concatenate((takes, gives))[order]])
        steps = np.zeros((len(order), len(self.placed[stage])), dtype=np.intp)
        steps[np.arange(len(order)), place] = change[order]
        return when[order], steps.cumsum(axis=0)
