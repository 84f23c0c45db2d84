"""GPipe: every forward, then every backward."""

from __future__ import annotations

from collections.abc import Iterator

from symconfig.schedule.schedule import BACKWARD, FORWARD, Schedule, Shape, Task, one_chunk


def order(shape: Shape, stage: int) -> Iterator[Task]:
    """Yield all forwards, then all backwards in the opposite order, as in the paper's figure 2c."""
    for microbatch in range(shape.m):
        yield (FORWARD, stage, microbatch)
    for microbatch in reversed(range(shape.m)):
        yield (BACKWARD, stage, microbatch)


GPIPE = Schedule(
    "gpipe",
    "GPipe",
    "arXiv 1811.06965",
    order,
    one_chunk("GPipe"),
    elsewhere=("PyTorch's ScheduleGPipe", "torchgpipe"),
)
