"""The schedule in numbers, and schedules beside each other: what each would make of a plan, and where it can be run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from symconfig.format import gib, percent, picked, seconds, several
from symconfig.frameworks.known import BACKENDS
from symconfig.report.grid import Block, Grid
from symconfig.report.timeline.chart import Chart
from symconfig.schedule.schedule import Schedule
from symconfig.solve.schedules import Compared, Scheduled

NOWHERE = "not in Megatron-LM/DeepSpeed"


def runs_in(schedule: Schedule) -> str:
    """Name the frameworks that have the schedule."""
    return " and ".join(BACKENDS[name].label for name in schedule.runs_in) or NOWHERE


def table(scheduled: Sequence[Scheduled]) -> Grid:
    """Return a row for each, the plan's own marked."""
    rows = (
        {
            "schedule": row.schedule.title + (" (planned)" if row.own else ""),
            "chunks": str(row.vpp),
            "step s": seconds(row.step_s),
            "idle": percent(row.idle),
            "peak GiB": gib(row.peak_bytes),
            "fits": "yes" if row.fits else "no",
            "runs in": runs_in(row.schedule),
        }
        for row in scheduled
    )
    marked = next((number for number, row in enumerate(scheduled) if row.own), None)
    title = "The same plan under other schedules"
    return Grid.of(rows, title, words=("schedule", "fits", "runs in"), marked=marked)


def stages(chart: Chart) -> Grid:
    """Return a row for each stage: the share of the pipeline's time without work, and its peak memory."""
    rows = (
        {"stage": str(stage), "idle": percent(chart.idle(stage)), "peak GiB": gib(memory.peak_bytes)}
        for stage, memory in enumerate(chart.memory)
    )
    return Grid.of(rows, fixed=("idle", "peak GiB"))


def runnable(compared: Compared, backend: str) -> Compared:
    """Return the schedules that this framework has, and the plan's own."""
    return Compared(
        tuple(row for row in compared.able if row.own or backend in row.schedule.runs_in),
        tuple(each for each in compared.refused if backend in each.schedule.runs_in),
    )


def refusals(refused: Iterable[tuple[Schedule, str]]) -> list[str]:
    """Say why schedules cannot run, as sentences."""
    return [f"{schedule.title} cannot run it: {why}." for schedule, why in refused]


def blocks(compared: Compared, backend: str, *, every: bool = False) -> list[Block]:
    """Return the table, and below it what is not in it. every: also schedules that the framework does not run."""
    if not compared.able:
        return ["A single stage has no schedule to choose."]
    shown = compared if every else runnable(compared, backend)
    reasons = refusals((each.schedule, each.why) for each in shown.refused)
    if left := len(compared.able) + len(compared.refused) - len(shown.able) - len(shown.refused):
        reasons.append(f"{several(left, 'schedule')} that {BACKENDS[backend].label} does not run: --all.")
    return [table(shown.able), *(["\n".join(reasons)] if reasons else [])]


def to_dict(compared: Compared) -> list[dict[str, Any]]:
    """Return plain data: schedules that can run it, then those that cannot."""
    able = [
        _named(row.schedule) | {"planned": row.own, **picked(row, "vpp", "step_s", "idle", "peak_bytes")}
        for row in compared.able
    ]
    return able + [_named(each.schedule) | {"refused": each.why} for each in compared.refused]


def _named(schedule: Schedule) -> dict[str, Any]:
    """Return what a schedule is called, and where it is from and runs, as plain data."""
    return {"schedule": schedule.name, **picked(schedule, "title", "source", "runs_in")}


def chart_data(chart: Chart, schedules: Compared) -> dict[str, Any]:
    """Return the contents of `symconfig explain --timeline --json`; seconds and bytes. trace.json has the single
    events."""
    line = chart.timeline
    return {
        "schema": "symconfig.timeline/1",
        "title": chart.title,
        "notes": list(chart.notes),
        "schedule": line.schedule.name if line.pp > 1 else None,
        "num_microbatches": line.m,
        "pipeline_s": line.step_s,
        "optimizer_s": chart.optimizer_s,
        "stages": [
            {
                "chunks": list(line.placed[stage]),
                "busy_s": float(line.busy_s[stage]),
                "idle": chart.idle(stage),
                "finish_s": float(line.finish_s[stage]),
                "peak_bytes": memory.peak_bytes,
            }
            for stage, memory in enumerate(chart.memory)
        ],
        "schedules": to_dict(schedules),
    }
