"""What a simulated step takes in, and what it looks like: when each stage did what, and what it held."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from symconfig.schedule.schedules import BACKWARD, FORWARD, Schedule, Shape, Task

Array = NDArray[np.float64]


class Start(Enum):
    """When a stage's data-parallel collectives run; those of one stage follow one another.

    APART: all gathers before the stage's first task, all reductions after its last one.
    AHEAD: gathers from time 0 on; a reduction when the chunk's gradients are complete on all stages.
    ON_DEMAND: a gather when the chunk's first input has arrived; a reduction as for AHEAD.
    """

    APART = "apart"
    AHEAD = "ahead"
    ON_DEMAND = "on demand"


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of one microbatch in each chunk: arrays [pp, vpp]; [i, k] is chunk i + k pp of the model.

    recompute: the forward again, before the backward. backward: gradients of the inputs. weight: gradients of the
    weights, which follow.
    busy_s: for which a message (an activation or a gradient from another stage) occupies its receiver.
    lag_s: further time that a message is under way, while nobody needs to wait.
    gather: all-gather of a chunk's new weights before its first forward. reduce: the reduction of a chunk's gradients
    after its last backward. gathers, reduces: when they run, on a channel of the stage's own.
    paired: what a microbatch's forward and backward in a chunk save, half each, where they are paired with a backward
    and a forward of other microbatches (expert all-to-alls under the other one's products).
    hide: the share of a chunk's own first forward (last backward) that its gather (reduction) overlaps with, unless
    apart; [pp, vpp], or one for all.
    contention: the share of an overlapped collective's time by which it slows the work down; below 1.
    slow: [pp], how many times longer each stage's GPUs take for any work, or one for all.
    """

    forward: Array
    recompute: Array
    backward: Array
    weight: Array
    busy_s: float = 0.0
    lag_s: float = 0.0
    gather: Array | None = None
    reduce: Array | None = None
    gathers: Start = Start.AHEAD
    reduces: Start = Start.AHEAD
    hide: Array | float = 0.0
    contention: float = 0.0
    paired: Array | None = None
    slow: Array | float = 1.0


class Window(NamedTuple):
    """A time for which a stage's channel is busy with a "gather" or a "reduce". chunk: its number in the model."""

    kind: str
    chunk: int
    start_s: float
    end_s: float


class Event(NamedTuple):
    """One event on a stage's track.

    kind: forward, recompute, backward, weight, receive (the stage is busy); send (a message is under way); gather,
    reduce (the stage's data-parallel channel; microbatch -1). chunk: its index on the stage, 0 to vpp - 1.
    """

    kind: str
    chunk: int
    microbatch: int
    start_s: float
    end_s: float


class Track(NamedTuple):
    """What one stage did.

    tasks: in order; those from `warm` on alternate between forward and backward. start_s, end_s: of each task, [n]. Of
    a pair the forward only waits for its message, and the backward's time has the work of both. windows: of the
    stage's channel. finish_s: when the stage is done, its reductions included.
    """

    tasks: tuple[Task, ...]
    warm: int
    start_s: Array
    end_s: Array
    windows: tuple[Window, ...]
    finish_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """One simulated step.

    left_out: microbatches of a long step that were extrapolated: they are not in `tracks`, but delay every stage's
    finish by `left_out_s`. left_out_busy_s: their busy seconds, [pp].
    """

    schedule: Schedule
    shape: Shape
    times: Times
    tracks: tuple[Track, ...]
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
    def finish_s(self) -> Array:
        """Return when each stage is done, its reductions included: [pp]."""
        return np.array([track.finish_s for track in self.tracks]) + self.left_out_s

    @property
    def step_s(self) -> float:
        """Return the seconds of the step: when the last stage is done."""
        return float(self.finish_s.max())

    @property
    def busy_s(self) -> Array:
        """Return the seconds for which each stage computes or receives in the step: [pp]."""
        busy = np.array([(track.end_s - track.start_s).sum() for track in self.tracks])
        result: Array = busy + self.left_out_busy_s
        return result

    def events(self, stage: int) -> Iterator[Event]:
        """Yield the events of one stage: its tasks in order with their messages, then its data-parallel collectives.

        A task's receive comes first, its parts (forward; recompute, backward, weight) share the other time in
        proportion, and a send follows its end. A pair's forward is yielded with its backward. Parts and collectives
        without time, receives without busy_s, and microbatches that were left out of the simulation have no events.
        """
        track, pairs = self.tracks[stage], self._pairs(stage)
        for n, task in enumerate(track.tasks):
            done = () if n + 1 in pairs else (track.tasks[n - 1], task) if n in pairs else (task,)
            start, end = float(track.start_s[n]), float(track.end_s[n])
            if receives(self.shape, task) and self.times.busy_s:
                yield Event("receive", task[1] // self.pp, task[2], start, start + self.times.busy_s)
                start += self.times.busy_s
            parts = [part for each in done for part in self._parts(stage, each)]
            whole = sum(seconds for *_, seconds in parts)
            stretch = (end - start) / whole if whole else 0.0  # what overlaps with a task shortens or lengthens it
            for name, (_, chunk, microbatch), seconds in parts:
                yield Event(name, chunk // self.pp, microbatch, start, start + seconds * stretch)
                start += seconds * stretch
            for each in done:
                if sends(self.shape, each):
                    arrival = end + self.times.lag_s + self.times.busy_s
                    yield Event("send", each[1] // self.pp, each[2], end, arrival)
        for kind, chunk, begins, ends in track.windows:
            if ends > begins:
                yield Event(kind, chunk // self.pp, -1, begins, ends)

    def _pairs(self, stage: int) -> range:
        """Return the indices of the tasks in which a stage runs a backward together with the forward before it."""
        track = self.tracks[stage]
        return range(track.warm + 1, len(track.tasks) - track.warm, 2) if self.schedule.paired else range(0)

    def _parts(self, stage: int, task: Task) -> list[tuple[str, Task, float]]:
        """Return (kind of event, task, seconds without slowdown) of each part of a task that takes time."""
        names = ("forward",) if task[0] == FORWARD else ("recompute", "backward", "weight")
        parts = [(name, task, float(getattr(self.times, name)[stage, task[1] // self.pp])) for name in names]
        return [part for part in parts if part[2]]

    def held(self, stage: int) -> tuple[Array, NDArray[np.intp]]:
        """Return times in order, [e], and the number of microbatches of each chunk held from then on, [e, vpp]; two per
        microbatch and chunk.

        A microbatch is held from the start of its forward to the end of its backward; the forward of a pair only from
        the pair's end on, since it takes memory as its partner frees it. At equal times backwards come first.
        """
        track = self.tracks[stage]
        begin = track.start_s.copy()
        for n in self._pairs(stage):
            begin[n - 1] = track.end_s[n]
        kind, chunk, _ = np.array(track.tasks).T
        takes, gives = np.flatnonzero(kind == FORWARD), np.flatnonzero(kind == BACKWARD)
        when = np.concatenate((begin[takes], track.end_s[gives]))
        change = np.repeat((1, -1), (len(takes), len(gives)))
        # What ends at a moment is given back before what starts then is taken.
        order = np.lexsort((change, when))
        steps = np.zeros((len(order), self.vpp), dtype=np.intp)
        steps[np.arange(len(order)), chunk[np.concatenate((takes, gives))[order]] // self.pp] = change[order]
        return when[order], steps.cumsum(axis=0)


def receives(shape: Shape, task: Task) -> bool:
    """Return whether a task's input comes from another stage; False for a single stage."""
    kind, chunk, _ = task
    return shape.pp > 1 and (chunk > 0 if kind == FORWARD else chunk + 1 < shape.pp * shape.vpp)


def sends(shape: Shape, task: Task) -> bool:
    """Return whether a task's result goes to another stage; False for a single stage."""
    kind, chunk, _ = task
    return shape.pp > 1 and (chunk + 1 < shape.pp * shape.vpp if kind == FORWARD else chunk > 0)
