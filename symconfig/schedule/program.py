"""A schedule's tasks on all stages in one order in which each comes after what it needs: the simulator's input."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from symconfig.errors import InputError
from symconfig.schedule.schedule import Kind, Order, Schedule, Shape, Task

Ints = NDArray[np.intp]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Program:
    """Tasks 0 to n - 1 in an order in which each comes after its needs, whatever they take.

    stage, need: of each task; need is 1 + the task whose message it waits for, 0 for none.
    kind, chunk, microbatch: [n]. received, sent: [n], whether what it needs (makes) comes from (goes to) another stage.
    placed: for each stage, the model's chunks that it holds. first, last: the first forward and the last gradient of
    weights of each (stage, chunk).
    """

    stage: list[int]
    need: list[int]
    kind: Ints
    chunk: Ints
    microbatch: Ints
    received: Bools
    sent: Bools
    placed: tuple[tuple[int, ...], ...]
    first: dict[int, tuple[int, int]]
    last: dict[int, tuple[int, int]]


@lru_cache(maxsize=64)
def program(schedule: Schedule, shape: Shape) -> Program:
    """The tasks of a schedule. Raises InputError if the shape is none of it, or names the task at which it hangs."""
    orders = schedule.orders(*shape)
    stage, need, tasks = _arrange(schedule, shape, orders)
    kind, chunk, microbatch = (np.array(column, dtype=np.intp) for column in zip(*tasks, strict=True))
    stages, needs = np.array(stage), np.array(need)
    received = (needs > 0) & (stages[needs - 1] != stages)
    sent = np.zeros(len(stages), dtype=np.bool_)
    sent[needs[received] - 1] = True
    makes = Kind.WEIGHT if schedule.splits else Kind.BACKWARD
    first: dict[tuple[int, int], int] = {}
    last: dict[tuple[int, int], int] = {}
    for n, (where, task) in enumerate(zip(stage, tasks, strict=True)):
        first.setdefault((where, task.chunk), n)
        if task.kind == makes:
            last[where, task.chunk] = n
    placed = tuple(tuple(sorted(chunk for where, chunk in first if where == s)) for s in range(shape.pp))
    return Program(
        stage, need, kind, chunk, microbatch, received, sent, placed,
        {n: place for place, n in first.items()}, {n: place for place, n in last.items()},
    )


def _needed(task: Task, chunks: int) -> Task | None:
    """The task whose message this one waits for."""
    kind, chunk, microbatch = task
    if kind == Kind.FORWARD:
        return Task(kind, chunk - 1, microbatch) if chunk else None
    if kind == Kind.WEIGHT:
        return Task(Kind.BACKWARD, chunk, microbatch)
    return Task(kind, chunk + 1, microbatch) if chunk + 1 < chunks else Task(Kind.FORWARD, chunk, microbatch)


def _arrange(schedule: Schedule, shape: Shape, orders: tuple[Order, ...]) -> tuple[list[int], list[int], list[Task]]:
    """Stage, need and task, in the order found by running each stage until it waits."""
    done: dict[Task | None, int] = {None: 0}
    stages: list[int] = []
    needs: list[int] = []
    tasks: list[Task] = []
    place = [0] * shape.pp
    total = sum(map(len, orders))
    while len(tasks) < total:
        before = len(tasks)
        for stage, order in enumerate(orders):
            at = place[stage]
            while at < len(order):
                task = order[at]
                need = done.get(_needed(task, shape.chunks))
                if need is None:
                    break
                tasks.append(task)
                stages.append(stage)
                needs.append(need)
                done[task] = len(tasks)
                at += 1
            place[stage] = at
        if len(tasks) == before:
            raise _hung(schedule, shape, orders, place)
    return stages, needs, tasks


def _hung(schedule: Schedule, shape: Shape, orders: tuple[Order, ...], place: list[int]) -> InputError:
    stage = next(stage for stage, order in enumerate(orders) if place[stage] < len(order))
    task = orders[stage][place[stage]]
    need = _needed(task, shape.chunks)
    assert need is not None

    def say(what: Task) -> str:
        return f"{what.kind.name.lower()} of microbatch {what.microbatch} in chunk {what.chunk}"

    return InputError(f"{schedule.title} hangs: stage {stage} waits at the {say(task)} for the {say(need)}")
