"""A candidate of a plan, simulated again, as a chart."""

from __future__ import annotations

from symconfig.errors import InputError, Problem
from symconfig.format import count, percent, seconds
from symconfig.plan import Candidate, Plan
from symconfig.report.timeline.chart import Chart, chart
from symconfig.schedule.schedule import Schedule
from symconfig.schedule.schedules import SCHEDULES
from symconfig.schedule.timeline import Timeline
from symconfig.solve.detail import detail
from symconfig.solve.memory import stage_memory
from symconfig.solve.restore import restore
from symconfig.solve.timeline import refined_time, timeline

NOWHERE = "not in Megatron-LM/DeepSpeed"
_FRAMEWORKS = {"megatron": "Megatron-LM", "deepspeed": "DeepSpeed"}


def schedule(name: str) -> Schedule:
    """By its name. Raises InputError that names those there are."""
    if name not in SCHEDULES:
        raise InputError(Problem("there is no such schedule", field="--schedule", got=name, need=", ".join(SCHEDULES)))
    return SCHEDULES[name]


def seen(plan: Plan, candidate: Candidate, other: Schedule | None = None) -> Chart:
    """The candidate as its target runs it, or by another schedule. Raises InputError if that cannot run its shape."""
    found = restore(plan, candidate)
    parts = detail(found)
    own = timeline(found, parts)
    line = timeline(found, parts, other) if other is not None else own
    # What follows the pipeline, or is not of it, is the same whatever the schedule.
    time = refined_time(found, parts)
    step_s = sum(time.values()) - own.step_s + line.step_s
    notes = (_step(line, step_s), *((f"{other.title}: {runs_in(other)} ({other.source}).",) if other else ()))
    return chart(_title(plan, candidate, line), notes, line, stage_memory(found, parts, line), time["optimizer"])


def runs_in(known: Schedule) -> str:
    """Where the schedule can be run, in words."""
    return "in " + " and ".join(_FRAMEWORKS[name] for name in known.runs_in) if known.runs_in else NOWHERE


def _title(plan: Plan, candidate: Candidate, line: Timeline) -> str:
    where = f"{plan.model.name} on {count(candidate.parallel.world_size)} x {plan.cluster.gpu.product}"
    microbatches = f"{count(line.m)} microbatch{'es' if line.m > 1 else ''}"
    if line.pp == 1:
        return f"{where}: one stage, {microbatches}"
    chunks = f" x {line.vpp} chunks" if line.vpp > 1 else ""
    return f"{where}: {line.schedule.title}, {line.pp} stages{chunks}, {microbatches}"


def _step(line: Timeline, step_s: float) -> str:
    if line.pp == 1:
        return f"A step takes {seconds(step_s)} s, passes over the microbatches {seconds(line.step_s)} s of it."
    idle = 1.0 - float(line.busy_s.mean()) / line.step_s
    return (f"A step takes {seconds(step_s)} s, the pipeline {seconds(line.step_s)} s of it, in which a stage is idle "
            f"for {percent(idle)} of the time on average.")
