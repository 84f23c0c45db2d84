"""Megatron-LM's pipeline schedules, the times of their parts, and a step's timeline.

A schedule is the order in which each stage works, and the microbatches that it holds: 1F1B (arXiv 2104.04473, figure 3)
for stages of one chunk; interleaved 1F1B (figure 4) for several. With --overlap-moe-expert-parallel-comm a forward of
the latter is paired with the backward of another microbatch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
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
