"""A pipeline of equal stages under every schedule: what a schedule by itself can do, as papers state it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from symconfig.errors import InputError, Problem
from symconfig.format import several
from symconfig.schedule.interleaved import PAIRED_INTERLEAVED
from symconfig.schedule.schedule import Schedule
from symconfig.schedule.schedules import SCHEDULES
from symconfig.schedule.simulate import simulate
from symconfig.schedule.times import Array, Times

_CHUNKS = (1, 2)


@dataclass(frozen=True, slots=True)
class Even:
    """A schedule on equal stages.

    speedup: over one stage that does all the work, one microbatch after another. idle: mean share of the time. held:
    microbatches on the fullest stage, in whole stages. weights: copies of a stage's, those of other chunks and older
    versions included. staleness: in optimizer steps, where it is most.
    """

    schedule: Schedule
    vpp: int
    speedup: float
    idle: float
    held: float
    weights: float
    staleness: int


def even(schedule: Schedule, stages: int, microbatches: int, slow: Array | float = 1.0) -> Even:
    """Simulate the schedule with backwards of twice a forward and free messages; `slow` as of `Times`.

    Raises InputError with what it lacks in the chunks that it has.
    """
    problems = []
    for vpp in _CHUNKS:
        problem = schedule.problem(stages, vpp, microbatches)
        if problem is None:
            break
        problems.append(f"with {several(vpp, 'chunk')} on each stage, {problem}")
    else:
        raise InputError(list(map(Problem, problems)))
    each = np.full((stages, vpp), 1.0 / vpp)
    line = simulate(schedule, Times(each, 0.0 * each, each, each, slow=slow), microbatches)
    held = max(float(line.held(stage)[1].sum(axis=1).max()) for stage in range(stages))
    weights = max(len(placed) / vpp * schedule.versions(line.shape, stage) for stage, placed in enumerate(line.placed))
    return Even(
        schedule=schedule,
        vpp=vpp,
        speedup=3.0 * stages * microbatches / line.step_s,
        idle=max(0.0, 1.0 - float(line.busy_s.mean()) / line.step_s),
        held=held / vpp / schedule.slices,
        weights=weights,
        staleness=max(schedule.staleness(line.shape, stage) for stage in range(stages)),
    )


def every(stages: int, microbatches: int, slow: Array | float = 1.0) -> tuple[list[Even], list[tuple[Schedule, str]]]:
    """Return the schedules that run such a pipeline, the fastest first, and those that do not, with why."""
    able, refused = [], []
    for schedule in SCHEDULES.values():
        if schedule is PAIRED_INTERLEAVED:  # differs from interleaving in what it hides, and nothing is to hide here
            continue
        try:
            able.append(even(schedule, stages, microbatches, slow))
        except InputError as error:
            refused.append((schedule, "; ".join(problem.what for problem in error.problems)))
    return sorted(able, key=lambda row: (-row.speedup, row.schedule.name)), refused
