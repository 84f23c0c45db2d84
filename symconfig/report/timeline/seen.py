"""A candidate of a plan, simulated again, as a chart."""

from __future__ import annotations

from symconfig.format import count, microbatches, percent, seconds
from symconfig.plans.plan import Candidate, Plan
from symconfig.report.timeline.chart import Chart, chart
from symconfig.schedule.timeline import Timeline
from symconfig.solve.costed import costed
from symconfig.solve.restore import restore
from symconfig.solve.timeline import idle, refined_time, stage_memory, timeline


def seen(plan: Plan, candidate: Candidate) -> Chart:
    """Return the simulated step of a candidate. Raises InputError if its shape cannot be simulated."""
    point = restore(plan, candidate)
    parts = costed(point)
    line, time = timeline(point, parts), refined_time(point, parts)
    notes = [_step(line, sum(time.values()))]
    if line.left_out:
        notes.append(f"{microbatches(line.left_out)} of the steady part, {seconds(line.left_out_s)} s, are not drawn.")
    return chart(_title(plan, candidate, line), notes, line, stage_memory(point, parts, line), time["optimizer"])


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
