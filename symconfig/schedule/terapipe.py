"""TeraPipe: each sequence is cut into slices, which follow each other through the stages as microbatches do."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from symconfig.schedule.schedule import BACKWARD, FORWARD, Schedule, Shape, Task, one_chunk

SLICES = 8


@lru_cache(maxsize=8)
def terapipe(slices: int) -> Schedule:
    """Cut into slices that take equally long, as the paper's dynamic program looks for: later ones attend to more.

    A slice attends to the ones before it: forward in order, backward in the opposite order, all forwards first.
    """

    def order(shape: Shape, stage: int) -> Iterator[Task]:
        count = shape.m * slices
        yield from ((FORWARD, stage, i) for i in range(count))
        yield from ((BACKWARD, stage, i) for i in reversed(range(count)))

    return Schedule(
        "terapipe", f"TeraPipe, {slices} slices", "arXiv 2102.07988", order, one_chunk("TeraPipe"), slices=slices
    )


TERAPIPE = terapipe(SLICES)
