"""All schedules by name, and those that are simulated alone: GPipe, zero-bubble schedules and DualPipe."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping

from symconfig.schedule.interleaved import INTERLEAVED, PAIRED_INTERLEAVED
from symconfig.schedule.one_f_one_b import ONE_F_ONE_B
from symconfig.schedule.schedule import BACKWARD, FORWARD, INPUT, PAIRED, WEIGHT, Schedule, Shape, Task, one_chunk


def gpipe_order(shape: Shape, stage: int) -> Iterator[Task]:
    """Yield all forwards, then all backwards in reverse order, as in figure 2c of the paper."""
    for microbatch in range(shape.m):
        yield (FORWARD, stage, microbatch)
    for microbatch in reversed(range(shape.m)):
        yield (BACKWARD, stage, microbatch)


GPIPE = Schedule(
    "gpipe",
    "GPipe",
    "arXiv 1811.06965",
    gpipe_order,
    one_chunk("GPipe"),
)


def h1_order(shape: Shape, stage: int) -> Iterator[Task]:
    """Yield 1F1B with split backwards; stage i's weight gradients lag i microbatches behind those of its inputs.

    No stage holds more than 1F1B's first one (arXiv 2401.10241, figure 3 and section 2.1).
    """
    warm = min(shape.m, shape.pp - stage - 1)
    yield from ((FORWARD, stage, i) for i in range(warm))
    for i in range(shape.m):
        if warm + i < shape.m:
            yield FORWARD, stage, warm + i
        yield INPUT, stage, i
        if i >= stage:
            yield WEIGHT, stage, i - stage
    yield from ((WEIGHT, stage, i) for i in range(max(shape.m - stage, 0), shape.m))


def v_order(shape: Shape, stage: int) -> Iterator[Task]:
    """Yield a stage's tasks of two chunks, down the stages and back up: the order of PyTorch's ScheduleZBVZeroBubble.

    With fewer than 2 p - 1 microbatches, which fill the pipeline, it is their order with the missing ones left out.
    """
    down, up = stage, 2 * shape.pp - 1 - stage
    for task in _v_order(max(shape.m, 2 * shape.pp - 1), shape.pp, stage, down, up):
        if task[2] < shape.m:
            yield task


def _v_order(m: int, pp: int, stage: int, down: int, up: int) -> Iterator[Task]:
    """Yield a stage's tasks of ZB-V for m >= 2 pp - 1 microbatches. down, up: its two chunks."""
    count = {(kind, chunk): 0 for kind in (FORWARD, INPUT, WEIGHT) for chunk in (down, up)}

    def following(kind: int, chunk: int) -> Task:
        count[kind, chunk] += 1
        return kind, chunk, count[kind, chunk] - 1

    for _ in range(2 * (pp - stage) - 1):
        yield following(FORWARD, down)
    for _ in range(stage):
        yield following(FORWARD, up)
        yield following(FORWARD, down)
    for _ in range(pp - stage):
        for kind in (FORWARD, INPUT, WEIGHT):
            yield following(kind, up)
    while count[FORWARD, up] < m:
        if count[FORWARD, down] < m:
            yield following(FORWARD, down)
        yield following(INPUT, down)
        yield following(WEIGHT, down)
        for kind in (FORWARD, INPUT, WEIGHT):
            yield following(kind, up)
    for _ in range(stage):
        yield following(INPUT, down)
        yield following(INPUT, up)
    for _ in range(pp - stage):
        yield following(INPUT, down)
        yield following(WEIGHT, down)
    for chunk in (up, down):
        while count[WEIGHT, chunk] < m:
            yield following(WEIGHT, chunk)


def v_limit(shape: Shape) -> str | None:
    return None if shape.vpp == 2 else f"ZB-V gives each stage two chunks (got vpp {shape.vpp}, need 2)"


ZB_H1 = Schedule("zb-h1", "ZB-H1", "arXiv 2401.10241", h1_order, one_chunk("ZB-H1"))
ZB_V = Schedule(
    "zb-v",
    "ZB-V",
    "arXiv 2401.10241, section 6",
    v_order,
    v_limit,
)


class _Stage:
    """A stage's progress in DualPipe's two directions: 0 is that of the stage's first half, 1 the other one.

    chunk, following: by direction, the chunk and the next microbatch. weights: weight gradients still to compute.
    """

    def __init__(self, shape: Shape, stage: int) -> None:
        mirror = shape.pp - 1 - stage
        second_half = stage > mirror
        self.chunk = (mirror, stage) if second_half else (stage, mirror)
        # The first half of the microbatches enters at stage 0, the second at the last one.
        first = (shape.m // 2, 0) if second_half else (0, shape.m // 2)
        self.following = {(kind, phase): first[phase] for kind in (FORWARD, BACKWARD) for phase in (0, 1)}
        self.weights: deque[Task] = deque()

    def run(self, kind: int, phase: int) -> Task:
        """Return the next task of a kind in one direction and count it; an INPUT queues its WEIGHT in `weights`."""
        passes = FORWARD if kind in (FORWARD, PAIRED) else BACKWARD
        microbatch = self.following[passes, phase]
        self.following[passes, phase] += 1
        if kind == INPUT:
            self.weights.append((WEIGHT, self.chunk[phase], microbatch))
        return kind, self.chunk[phase], microbatch

    def pair(self, forward: int, backward: int) -> Iterator[Task]:
        yield self.run(PAIRED, forward)
        yield self.run(BACKWARD, backward)


def dualpipe_order(shape: Shape, stage: int) -> Iterator[Task]:
    """Yield a stage's tasks in the eight steps of DualPipe.step.

    github.com/deepseek-ai/DualPipe, dualpipe/dualpipe.py.
    """
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


def dualpipe_limit(shape: Shape) -> str | None:
    """Return which assertion of DualPipe.step a shape fails, as a sentence; None if it fails none."""
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
    dualpipe_order,
    dualpipe_limit,
)

SCHEDULES: Mapping[str, Schedule] = {
    schedule.name: schedule for schedule in (GPIPE, ONE_F_ONE_B, INTERLEAVED, PAIRED_INTERLEAVED, ZB_H1, ZB_V, DUALPIPE)
}
