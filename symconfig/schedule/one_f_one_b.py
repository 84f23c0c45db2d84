"""1F1B: after a warm-up each stage does one forward and one backward in turn; Megatron's without interleaving."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from symconfig.schedule.schedule import BACKWARD, FORWARD, Schedule, Shape, Task, one_chunk


def in_turn(forwards: list[Task], backwards: list[Task], warm: int) -> Iterator[Task]:
    """Yield `warm` forwards, then one forward and one backward in turn, then the remaining backwards.

    With fewer than `warm` forwards, all of them come first.
    """
    warm = min(warm, len(forwards))
    yield from forwards[:warm]
    for ahead, back in zip(forwards[warm:], backwards, strict=False):
        yield ahead
        yield back
    yield from backwards[len(forwards) - warm :]


def order(shape: Shape, stage: int) -> Iterable[Task]:
    """Yield a stage's tasks of 1F1B, with pp - stage - 1 forwards in the warm-up.

    As Megatron's forward_backward_pipelining_without_interleaving.
    """
    forwards, backwards = ([(kind, stage, i) for i in range(shape.m)] for kind in (FORWARD, BACKWARD))
    return in_turn(forwards, backwards, shape.pp - stage - 1)


ONE_F_ONE_B = Schedule("1f1b", "1F1B", "arXiv 2104.04473, figure 3", order, one_chunk("1F1B"), ("megatron",))
