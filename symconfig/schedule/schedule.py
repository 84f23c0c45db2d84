"""What a pipeline schedule is: an order of work for every stage, and what it asks of the shape."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

from symconfig.errors import InputError


class Kind(IntEnum):
    """What a stage does with one microbatch in one chunk."""

    FORWARD = 0
    BACKWARD = 1  # gradients of the inputs; of the weights too where the schedule does not split them off
    WEIGHT = 2  # gradients of the weights


class Task(NamedTuple):
    """One piece of a stage's work. chunk: its number in the model, 0 to pp vpp - 1."""

    kind: Kind
    chunk: int
    microbatch: int


class Shape(NamedTuple):
    """Stages, chunks a stage, microbatches, and how many of these pass a chunk in a row where chunks take turns."""

    pp: int
    vpp: int
    m: int
    group: int

    @property
    def chunks(self) -> int:
        return self.pp * self.vpp


Order = tuple[Task, ...]


@dataclass(frozen=True, slots=True)
class Schedule:
    """A pipeline schedule.

    order: the tasks of a stage, one after the other; a task starts when the one before it has ended and what it needs
    has arrived: the chunk below's forward, the chunk above's backward, the same chunk's backward for the weights.
    limit: a sentence that names what a shape lacks, or None.
    runs_in: the targets that can run it. splits: whether gradients of weights are tasks of their own.
    """

    name: str
    title: str
    source: str
    order: Callable[[Shape, int], Iterable[Task]]
    limit: Callable[[Shape], str | None]
    runs_in: tuple[str, ...] = ()
    splits: bool = False

    def orders(self, pp: int, vpp: int, m: int, group: int | None = None) -> tuple[Order, ...]:
        """The tasks of every stage. group: None for pp, as in Megatron. Raises InputError where `problem` says why."""
        return _orders(self, Shape(pp, vpp, m, group or pp))

    def problem(self, pp: int, vpp: int, m: int, group: int | None = None) -> str | None:
        """What the schedule lacks in such a shape, as a sentence with need and got; None if it runs."""
        return self.limit(Shape(pp, vpp, m, group or pp))


@lru_cache(maxsize=64)
def _orders(schedule: Schedule, shape: Shape) -> tuple[Order, ...]:
    problem = schedule.limit(shape)
    if problem:
        raise InputError(problem)
    return tuple(tuple(schedule.order(shape, stage)) for stage in range(shape.pp))


def one_chunk(title: str) -> Callable[[Shape], str | None]:
    """The limit of a schedule that gives each stage one chunk."""

    def limit(shape: Shape) -> str | None:
        return None if shape.vpp == 1 else f"{title} gives each stage one chunk (got vpp {shape.vpp}, need 1)"

    return limit
