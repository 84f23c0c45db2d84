"""PipeDream, PipeDream-2BW and PipeMare: 1F1B that never flushes; older weights instead of a bubble."""

from __future__ import annotations

from collections.abc import Iterable

from symconfig.schedule import one_f_one_b
from symconfig.schedule.schedule import Schedule, Shape, Task, one_chunk


def stream(shape: Shape, stage: int) -> Iterable[Task]:
    """Order the tasks of 1F1B of so many microbatches that m of them see neither the start nor the end."""
    return one_f_one_b.order(shape._replace(m=2 * (shape.m + shape.pp)), stage)


def _stashed(shape: Shape, stage: int) -> int:
    """Count the weights' versions, one for each microbatch in flight: arXiv 1806.03377, section 3.3."""
    return shape.pp - stage


def _behind(shape: Shape, stage: int) -> int:
    """Count the microbatches that update the weights between a microbatch's forward and its backward, section 3.3."""
    return shape.pp - 1 - stage


def _two(shape: Shape, stage: int) -> int:
    """Double buffering: arXiv 2006.09503, section 3.1."""
    return 2


def _one_behind(shape: Shape, stage: int) -> int:
    """Return 1, alike for all stages: arXiv 2006.09503, section 3.1."""
    return 1


def _older(shape: Shape, stage: int) -> int:
    """Return the updates that the microbatches ahead make: arXiv 1910.05124, section 2.1, PipeMare's forward delay."""
    return -(-_behind(shape, stage) // shape.m)


def _accumulates(shape: Shape) -> str | None:
    """Say that a version must outlive the microbatches in flight when it is made."""
    if shape.m < shape.pp:
        return f"PipeDream-2BW accumulates over a microbatch a stage at least (got {shape.m}, need {shape.pp})"
    return one_chunk("PipeDream-2BW")(shape)


PIPEDREAM = Schedule(
    "pipedream",
    "PipeDream",
    "arXiv 1806.03377",
    stream,
    one_chunk("PipeDream"),
    endless=True,
    versions=_stashed,
    staleness=_behind,
)
PIPEDREAM_2BW = Schedule(
    "pipedream-2bw",
    "PipeDream-2BW",
    "arXiv 2006.09503",
    stream,
    _accumulates,
    endless=True,
    versions=_two,
    staleness=_one_behind,
)
# Its backward takes the newest weights: nothing is stashed, and only the forward is behind (table 1).
PIPEMARE = Schedule(
    "pipemare",
    "PipeMare",
    "arXiv 1910.05124",
    stream,
    one_chunk("PipeMare"),
    endless=True,
    staleness=_older,
)
