"""A schedule's tasks on all stages in one order in which each comes after what it needs: the simulator's input."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from symconfig.errors import InputError
from symconfig.schedule.schedule import BACKWARD, FORWARD, INPUT, PAIRED, WEIGHT, Order, Schedule, Shape

Ints = NDArray[np.int32]  # half of what is kept for large shapes
Bools = NDArray[np.bool_]
_NAMES = {FORWARD: "forward", PAIRED: "forward", BACKWARD: "backward", INPUT: "backward", WEIGHT: "weight gradient"}


@dataclass(frozen=True, slots=True)
class Program:
    """The tasks of all stages, 0 to n - 1, in an order in which each comes after the task that it waits for.

    stage, kind, chunk, microbatch: [n]. need: [n], 1 + the task whose message it waits for, 0 for none. before: [n], 1
    + the stage's previous task, 0 for none. received, sent: [n], whether its input (output) comes from (goes to)
    another stage. partner: [n], 1 + the forward that is paired with this backward, 0 for none; that forward only waits
    for its message, and both end with the backward. placed: for each stage, the model's chunks on it. first, last: the
    first forward and the last weight gradients of each (stage, chunk). made: for each stage, its tasks of the kinds
    that compute weight gradients, and the indices among them after which a chunk's are complete.
    """

    stage: Ints
    kind: Ints
    chunk: Ints
    microbatch: Ints
    need: Ints
    before: Ints
    received: Bools
    sent: Bools
    partner: Ints
    placed: tuple[tuple[int, ...], ...]
    first: dict[tuple[int, int], int]
    last: dict[tuple[int, int], int]
    made: tuple[tuple[NDArray[np.intp], NDArray[np.intp]], ...]


@dataclass(frozen=True, slots=True)
class _Codes:
    """All stages' tasks, one stage after the other, with numbers for what passes between them.

    need: what each task waits for, 0 for nothing. made: what it makes; `also`: what its paired forward makes. Where
    that is nothing, both have the last number, which no task waits for. starts: index of each stage's first task.
    """

    tasks: Ints
    starts: Ints
    need: Ints
    made: Ints
    also: Ints
    count: int


@lru_cache(maxsize=8)
def program(schedule: Schedule, shape: Shape) -> Program:
    """Return the tasks of all stages in an order in which each comes after the task it waits for. Cached.

    Raises:
        InputError: the schedule cannot have the shape, or hangs; the text then names the first waiting task.
    """
    orders = schedule.orders(*shape)
    codes = _codes(orders, shape.chunks)
    at = _arrange(schedule, shape, codes)
    # 1 + the place in `at` of the task that each one waits for, 0 for none.
    place = np.zeros(codes.count, dtype=np.int32)
    for what in (codes.made, codes.also):
        place[what[at]] = np.arange(1, len(at) + 1)
    result: Ints = place[codes.need[at]]
    need = result
    kind, chunk, microbatch = codes.tasks[at].T
    stage = (np.searchsorted(codes.starts, at, side="right") - 1).astype(np.int32)
    before = np.zeros(len(at), dtype=np.int32)
    for one in range(shape.pp):
        mine = np.flatnonzero(stage == one)
        before[mine[1:]] = mine[:-1] + 1
    received = (need > 0) & (stage[need - 1] != stage)
    partner = np.where((before > 0) & (kind[before - 1] == PAIRED), before, 0).astype(np.int32)
    kind = np.where(kind == PAIRED, FORWARD, kind).astype(np.int32)
    sent = np.zeros(len(at), dtype=np.bool_)
    sent[need[received] - 1] = True
    forwards, gradients = np.flatnonzero(kind == FORWARD), np.flatnonzero((kind == BACKWARD) | (kind == WEIGHT))
    first = _latest(forwards[::-1], stage, chunk, shape.chunks)
    last = _latest(gradients, stage, chunk, shape.chunks)
    placed = tuple(tuple(sorted(c for where, c in first if where == one)) for one in range(shape.pp))
    made = tuple(_weight_gradient_tasks(kind, stage == one, last) for one in range(shape.pp))
    return Program(
        stage=stage,
        kind=kind,
        chunk=chunk,
        microbatch=microbatch,
        need=need,
        before=before,
        received=received,
        sent=sent,
        partner=partner,
        placed=placed,
        first=first,
        last=last,
        made=made,
    )


def _codes(orders: tuple[Order, ...], chunks: int) -> _Codes:
    """Return the tasks with a number for everything that one task makes and another waits for.

    That is a chunk's output and the gradients of its input and its weights, for each microbatch.
    """
    numbers = chain.from_iterable(chain.from_iterable(orders))
    tasks = np.fromiter(numbers, dtype=np.int32).reshape(-1, 3)
    starts = np.cumsum([0, *(len(order) for order in orders)], dtype=np.int32)[:-1]
    kind, chunk, microbatch = tasks.T
    of_each = int(microbatch.max()) + 1
    none = 3 * chunks * of_each + 1

    def number(what: Ints | int, where: Ints) -> Ints:
        result: Ints = (what * chunks + where) * of_each + microbatch + 1
        return result

    passes = np.array([0, 1, 1, 2, 0])[kind]  # output, gradient of the input, of the weights
    below = np.where(chunk > 0, number(0, chunk - 1), 0)
    above = np.where(chunk + 1 < chunks, number(1, chunk + 1), number(0, chunk))
    need = np.select((passes == 0, passes == 1), (below, above), number(1, chunk))
    made = number(passes, chunk)
    paired = kind == PAIRED
    also = np.append(none, np.where(paired, made, none)[:-1])
    return _Codes(tasks, starts, need, np.where(paired, none, made), also, none + 1)


def _arrange(schedule: Schedule, shape: Shape, codes: _Codes) -> Ints:
    """Return the indices of all tasks in dependency order: each stage in turn runs until it waits.

    Raises:
        InputError: no stage can go on, and tasks are left.
    """
    need, made, also = codes.need.tolist(), codes.made.tolist(), codes.also.tolist()
    done = [False] * codes.count
    done[0] = True
    place = codes.starts.tolist()
    stop = [*place[1:], len(need)]
    places: list[int] = []
    while len(places) < len(need):
        count = len(places)
        for stage in range(shape.pp):
            at, end = place[stage], stop[stage]
            while at < end and done[need[at]]:
                done[made[at]] = done[also[at]] = True
                at += 1
            places.extend(range(place[stage], at))
            place[stage] = at
        if len(places) == count:
            raise _hang_error(schedule, shape, codes, place, stop)
    return np.array(places, dtype=np.int32)


def _latest(tasks: NDArray[np.intp], stage: Ints, chunk: Ints, chunks: int) -> dict[tuple[int, int], int]:
    """Return for each (stage, chunk) the task that comes last in `tasks`, in ascending order of the tasks."""
    latest = np.full((int(stage.max()) + 1) * chunks, -1)
    latest[stage[tasks] * chunks + chunk[tasks]] = tasks
    return {(int(stage[n]), int(chunk[n])): n for n in np.sort(latest[latest >= 0]).tolist()}


def _weight_gradient_tasks(
    kind: Ints, mine: Bools, last: dict[tuple[int, int], int]
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return (tasks of a stage that make weight gradients, indices of those after which a chunk's are complete)."""
    complete = np.zeros(len(kind), dtype=np.bool_)
    complete[list(last.values())] = True
    tasks = np.flatnonzero(np.isin(kind, list(set(kind[complete].tolist()))) & mine)
    return tasks, np.flatnonzero(complete[tasks])


def _hang_error(schedule: Schedule, shape: Shape, codes: _Codes, place: list[int], stop: list[int]) -> InputError:
    """Return an error that names the first stage that waits for a task that never ran, and both tasks."""
    stage = next(stage for stage in range(shape.pp) if place[stage] < stop[stage])
    kind, chunk, microbatch = codes.tasks[place[stage]].tolist()
    if kind in (FORWARD, PAIRED):
        other, waits = FORWARD, chunk - 1
    elif kind == WEIGHT:
        other, waits = INPUT, chunk
    else:
        other, waits = (INPUT, chunk + 1) if chunk + 1 < shape.chunks else (FORWARD, chunk)
    return InputError(
        f"{schedule.title} hangs: stage {stage} waits with the {_NAMES[kind]} of microbatch {microbatch} in chunk "
        f"{chunk} for its {_NAMES[other]} in chunk {waits}"
    )
