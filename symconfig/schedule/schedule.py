"""What a pipeline schedule is: an order of work for every stage, and what it asks of the shape."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from symconfig.errors import InputError

# What a stage does with a microbatch in a chunk: forward; backward, or its gradients of the inputs and of the weights
# apart; a forward that runs beside the backward which comes next. Plain numbers, with which the simulator counts.
FORWARD, BACKWARD, INPUT, WEIGHT, PAIRED = range(5)

# Kind, chunk's number in the model (0 to pp vpp - 1), microbatch from 0. A plain tuple: orders have tens of thousands.
Task = tuple[int, int, int]


class Shape(NamedTuple):
    """Stages, chunks of a stage, microbatches, and how many of these pass a chunk in a row if interleaved."""

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

    order: yields the tasks of a stage in order. A task starts when the one before it has ended and its input has
    arrived, which is the previous chunk's forward, the next chunk's backward, or for weight gradients the same chunk's
    backward. A chunk lies on the stage whose order it is in.
    limit: returns why a shape cannot have the schedule, as a sentence; None if it can.
    runs_in: the targets that support it, whose plans can have it.
    by_layer: a forward that is paired with a backward takes memory layer by layer as the backward frees it.
    """

    name: str
    title: str
    source: str
    order: Callable[[Shape, int], Iterable[Task]]
    limit: Callable[[Shape], str | None]
    runs_in: tuple[str, ...] = ()
    by_layer: bool = False

    def orders(self, pp: int, vpp: int, m: int, group: int | None = None) -> tuple[Order, ...]:
        """Return the tasks of every stage in order.

        group: microbatches that pass a chunk in a row; None for pp, as in Megatron.

        Raises:
            InputError: the schedule cannot have this shape; its text is that of `problem`.
        """
        shape = Shape(pp, vpp, m, group or pp)
        problem = self.limit(shape)
        if problem:
            raise InputError(problem)
        return tuple(tuple(self.order(shape, stage)) for stage in range(pp))

    def problem(self, pp: int, vpp: int, m: int, group: int | None = None) -> str | None:
        """Return why the schedule cannot have this shape, a sentence with got and need; None if it can."""
        return self.limit(Shape(pp, vpp, m, group or pp))


def one_chunk(title: str) -> Callable[[Shape], str | None]:
    """Return the limit of a schedule with one chunk per stage: a function that returns a sentence unless vpp is 1."""

    def limit(shape: Shape) -> str | None:
        return None if shape.vpp == 1 else f"{title} gives each stage one chunk (got vpp {shape.vpp}, need 1)"

    return limit
