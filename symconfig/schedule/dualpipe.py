"""DualPipe: the model twice, in opposite directions; a forward of one runs beside a backward of the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from symconfig.schedule.schedule import BACKWARD, FORWARD, INPUT, PAIRED, WEIGHT, Schedule, Shape, Task


class _Stage:
    """The tasks that a stage has run in either phase: 0 is the direction of its first half, 1 the other one."""

    def __init__(self, shape: Shape, stage: int) -> None:
        mirror = shape.pp - 1 - stage
        second_half = stage > mirror
        self.chunk = (mirror, stage) if second_half else (stage, mirror)
        # The first half of the microbatches enters at stage 0, the second at the last one.
        first = (shape.m // 2, 0) if second_half else (0, shape.m // 2)
        self.following = {(kind, phase): first[phase] for kind in (FORWARD, BACKWARD) for phase in (0, 1)}
        self.weights: deque[Task] = deque()

    def run(self, kind: int, phase: int) -> Task:
        passes = FORWARD if kind in (FORWARD, PAIRED) else BACKWARD
        microbatch = self.following[passes, phase]
        self.following[passes, phase] += 1
        if kind == INPUT:
            self.weights.append((WEIGHT, self.chunk[phase], microbatch))
        return kind, self.chunk[phase], microbatch

    def pair(self, forward: int, backward: int) -> Iterator[Task]:
        yield self.run(PAIRED, forward)
        yield self.run(BACKWARD, backward)


def order(shape: Shape, stage: int) -> Iterator[Task]:
    """Yield the eight steps of DualPipe.step, github.com/deepseek-ai/DualPipe, dualpipe/dualpipe.py."""
    half = shape.pp // 2
    outer = min(stage, shape.pp - 1 - stage)  # 0 at both ends
    inner = half - outer - 1  # 0 in the middle
    do = _Stage(shape, stage)
    for _ in range(2 * inner):
        yield do.run(FORWARD, 0)
    for _ in range(outer + 1):
        yield do.run(FORWARD, 0)
        yield do.run(FORWARD, 1)
    for _ in range(inner):
        yield do.run(INPUT, 1)
        yield do.weights.popleft()
        yield do.run(FORWARD, 1)
    for i in range(shape.m // 2 - shape.pp + outer + 1):
        if i == 0 and inner == 0:  # the middle does not pair these two: less of a bubble
            yield do.run(FORWARD, 0)
            yield do.run(BACKWARD, 1)
        else:
            yield from do.pair(0, 1)
        yield from do.pair(1, 0)
    for _ in range(inner):
        yield do.run(BACKWARD, 1)
        yield from do.pair(1, 0)
    # The second half of what is left splits its backwards.
    for i in range(2 * (outer + 1)):
        yield do.run(INPUT if i > outer else BACKWARD, 1 - i % 2)
    for _ in range(inner):
        yield do.weights.popleft()
        yield do.run(INPUT, 0)
    yield from do.weights


def limit(shape: Shape) -> str | None:
    """Say what DualPipe.step asserts."""
    if shape.vpp != 1:
        return f"DualPipe gives each stage one chunk of each direction (got vpp {shape.vpp}, need 1)"
    if shape.pp % 2:
        return f"DualPipe needs an even number of stages (got {shape.pp})"
    if shape.m % 2 or shape.m < 2 * shape.pp:
        return f"DualPipe needs an even number of microbatches, 2 a stage at least (got {shape.m}, need {2 * shape.pp})"
    return None


# The V of it has both chunks of a stage from one copy of the model: DeepSpeed 0.19.8, runtime/pipe/dualpipev.py, for
# a module of its own; torch 2.13, distributed/pipelining/schedules.py.
DUALPIPE = Schedule(
    "dualpipe",
    "DualPipe",
    "arXiv 2412.19437, section 3.2.1",
    order,
    limit,
    elsewhere=("deepseek-ai/DualPipe", "as DualPipeV DeepSpeed's DualPipeVModule and PyTorch's ScheduleDualPipeV"),
)
