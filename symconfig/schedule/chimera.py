"""Chimera: the model twice, in opposite directions over the same stages, each for half the microbatches."""

from __future__ import annotations

from symconfig.schedule.schedule import BACKWARD, FORWARD, Schedule, Shape, Task


def order(shape: Shape, stage: int) -> list[Task]:
    """Order pp microbatches, half of them down and half up (section 3.1).

    With forward and backward of one slot each, the j-th microbatch in one direction passes that direction's i-th chunk
    in slot i + 2 j and comes back in slot 2 pp - 1 - i + 2 j: no two on a stage at once. The order of the slots is the
    schedule.
    """
    pp, half = shape.pp, shape.pp // 2
    slots: list[tuple[int, Task]] = []
    for microbatch in range(pp):
        upward, j = divmod(microbatch, half)
        chunk = pp - 1 - stage if upward else stage
        start = 2 * j
        slots.append((start + chunk, (FORWARD, chunk, microbatch)))
        slots.append((start + 2 * pp - 1 - chunk, (BACKWARD, chunk, microbatch)))
    return [task for _, task in sorted(slots)]


def limit(shape: Shape) -> str | None:
    if shape.vpp != 1:
        return f"Chimera gives each stage one chunk of each direction (got vpp {shape.vpp}, need 1)"
    if shape.pp % 2:
        return f"Chimera needs an even number of stages (got {shape.pp})"
    if shape.m != shape.pp:
        return (
            "Chimera is simulated for one microbatch a stage: more need its forward doubling "
            f"(got {shape.m}, need {shape.pp})"
        )
    return None


CHIMERA = Schedule("chimera", "Chimera", "arXiv 2107.06925", order, limit)
