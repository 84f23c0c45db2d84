"""A candidate of a plan, simulated again, as a chart."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from symconfig.errors import InputError, Problem, among
from symconfig.format import count, microbatches, percent, seconds
from symconfig.frameworks.known import BACKENDS
from symconfig.plans.plan import Candidate, Plan
from symconfig.report.timeline.chart import Chart, chart
from symconfig.schedule.schedule import Schedule
from symconfig.schedule.schedules import SCHEDULES
from symconfig.schedule.timeline import Timeline
from symconfig.schedule.times import Array
from symconfig.solve.costed import costed
from symconfig.solve.restore import restore
from symconfig.solve.timeline import idle, refined_time, stage_memory, suited, timeline


def schedule(name: str) -> Schedule:
    """Return a schedule by its name. Raises InputError that names those there are."""
    if name not in SCHEDULES:
        raise InputError("there is no such schedule", field="schedule", got=name, **among(name, SCHEDULES))
    return SCHEDULES[name]


def seen(
    plan: Plan, candidate: Candidate, other: Schedule | None = None, slow: Mapping[int, float] | None = None
) -> Chart:
    """Simulate the candidate as its target runs it, or by another schedule with other chunks.

    slow: stages that are slower than planned, and by how much.

    Raises InputError if that schedule can run no such shape.
    """
    point = restore(plan, candidate)
    parts = costed(point)
    own, time = timeline(point, parts), refined_time(point, parts)
    cut, recut = suited(point, parts, other) if other is not None else (point, parts)
    line = timeline(cut, recut, other, slower(slow, point.split.pp))
    # What follows the pipeline, or is not of it, is the same whatever the schedule.
    notes = [_step(line, sum(time.values()) - own.step_s + line.step_s)]
    if line.left_out:
        notes.append(f"{microbatches(line.left_out)} of the steady part, {seconds(line.left_out_s)} s, are not drawn.")
    if other is not None:
        runs_in = " and ".join(BACKENDS[name].label for name in other.runs_in) or "not in Megatron-LM/DeepSpeed"
        notes.append(f"{other.title} ({other.source}): {runs_in}.")
    if slow:
        notes.append(
            f"Slowed: {', '.join(f'stage {stage} by {factor:g}' for stage, factor in slow.items())}; "
            f"without that the pipeline takes {seconds(timeline(cut, recut, other).step_s)} s."
        )
    return chart(_title(plan, candidate, line), notes, line, stage_memory(cut, recut, line), time["optimizer"])


def slower(slow: Mapping[int, float] | None, stages: int) -> Array:
    """Return by how much each stage is slower [stages]. Raises InputError for no stage of it, or one that is faster."""
    factors, wrong = np.ones(stages), list[Problem]()
    for stage, factor in (slow or {}).items():
        if not 0 <= stage < stages:
            need = f"a stage from 0 to {stages - 1}"
            wrong.append(Problem("there is no such stage", field="slow", got=str(stage), need=need))
        elif not 1.0 <= factor < np.inf:
            wrong.append(Problem("is not slower", field="slow", got=f"{factor:g}", need="a number from 1 on"))
        else:
            factors[stage] = factor
    if wrong:
        raise InputError(wrong)
    return factors


def _title(plan: Plan, candidate: Candidate, line: Timeline) -> str:
    where = f"{plan.model.name} on {count(candidate.parallel.world_size)} x {plan.cluster.gpu.product}"
    if line.pp == 1:
        return f"{where}: one stage, {microbatches(line.m)}"
    chunks = f" x {line.vpp} chunks" if line.vpp > 1 else ""
    return f"{where}: {line.schedule.title}, {line.pp} stages{chunks}, {microbatches(line.m)}"


def _step(line: Timeline, step_s: float) -> str:
    if line.pp == 1:
        return f"A step takes {seconds(step_s)} s, its microbatches {seconds(line.step_s)} s of that."
    return (
        f"A step takes {seconds(step_s)} s, the pipeline {seconds(line.step_s)} s of that, in which a stage is "
        f"idle for {percent(idle(line))} of the time on average."
    )
