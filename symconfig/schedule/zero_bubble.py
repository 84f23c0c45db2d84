"""Zero-bubble schedules: gradients of the weights are taken later, where a stage would wait."""

from __future__ import annotations

from collections.abc import Iterator

from symconfig.schedule.schedule import FORWARD, INPUT, WEIGHT, Schedule, Shape, Task, one_chunk


def h1_order(shape: Shape, stage: int) -> Iterator[Task]:
    """Yield 1F1B, in which stage i's gradients of weights stay i microbatches behind: 1F1B's memory of the first stage.

    Figure 3 and section 2.1 of arXiv 2401.10241.
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
    """Yield the tasks of two chunks a stage, down the stages and back up: the order of PyTorch's ScheduleZBVZeroBubble.

    The order is that of the 2 p - 1 microbatches that fill the pipeline at least; fewer leave gaps in it.
    """
    down, up = stage, 2 * shape.pp - 1 - stage
    for task in _v_order(max(shape.m, 2 * shape.pp - 1), shape.pp, stage, down, up):
        if task[2] < shape.m:
            yield task


def _v_order(m: int, pp: int, stage: int, down: int, up: int) -> Iterator[Task]:
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


_FORK = "sail-sg/zero-bubble-pipeline-parallelism, a fork of Megatron-LM"
ZB_H1 = Schedule("zb-h1", "ZB-H1", "arXiv 2401.10241", h1_order, one_chunk("ZB-H1"), elsewhere=(_FORK,))
ZB_V = Schedule(
    "zb-v",
    "ZB-V",
    "arXiv 2401.10241, section 6",
    v_order,
    v_limit,
    elsewhere=("PyTorch's ScheduleZBVZeroBubble", _FORK),
)
