"""A candidate of a plan, simulated again, as a chart."""

from __future__ import annotations

from symconfig.errors import InputError, among
from symconfig.format import count, microbatches, percent, seconds
from symconfig.frameworks.known import BACKENDS
from symconfig.plans.plan import Candidate, Plan
from symconfig.report.timeline.chart import Chart, chart
from symconfig.schedule.schedule import Schedule
from symconfig.schedule.schedules import SCHEDULES
from symconfig.schedule.timeline import Timeline
from symconfig.solve.costed import costed
from symconfig.solve.restore import restore
from symconfig.solve.timeline import idle, refined_time, stage_memory, suited, timeline


def schedule(name: str) -> Schedule:
    """Return the schedule of a name. Raises InputError that lists the known ones."""
    if name not in SCHEDULES:
        raise InputError("there is no such schedule", field="schedule", got=name, **among(name, SCHEDULES))
    return SCHEDULES[name]


def seen(plan: Plan, candidate: Candidate, other: Schedule | None = None) -> Chart:
    """Return the simulated step of a candidate, under its own schedule or `other` with suitable chunks.

    Raises InputError if `other` cannot run this shape.
    """
    point = restore(plan, candidate)
    parts = costed(point)
    own, time = timeline(point, parts), refined_time(point, parts)
    cut, recut = suited(point, parts, other) if other is not None else (point, parts)
    line = timeline(cut, recut, other)
    # What follows the pipeline, or is not of it, is the same whatever the schedule.
    notes = [_step(line, sum(time.values()) - own.step_s + line.step_s)]
    if line.left_out:
        notes.append(f"{microbatches(line.left_out)} of the steady part, {seconds(line.left_out_s)} s, are not drawn.")
    if other is not None:
        runs_in = " and ".join(BACKENDS[name].label for name in other.runs_in) or "not in Megatron-LM/DeepSpeed"
        notes.append(f"{other.title} ({other.source}): {runs_in}.")
    return chart(_title(plan, candidate, line), notes, line, stage_memory(cut, recut, line), time["optimizer"])


def _title(plan: Plan, candidate: Candidate, line: Timeline) -> str:
    where = f"{plan.model.name} on {count(candidate.parallel.world_size)} x {plan.cluster.gpu.product}"
    if line.pp == 1:
        return f"{where}: one stage, {microbatches(line.m)}"
    chunks = f" x {line.vpp} chunks" if line.vpp > 1 else ""
    return f"{where}: {line.schedule.title}, {line.pp} stages{chunks}, {microbatches(line.m)}"


def _step(line: Timeline, step_s: float) -> str:
    """Return the sentence on step, pipeline and idle time."""
    if line.pp == 1:
        return f"A step takes {seconds(step_s)} s, its microbatches {seconds(line.step_s)} s of that."
    return (
        f"A step takes {seconds(step_s)} s, the pipeline {seconds(line.step_s)} s of that, in which a stage is "
        f"idle for {percent(idle(line))} of the time on average."
    )
