"""Schedules beside each other: what each would make of the same plan, and where it can be run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from symconfig.format import gib, percent, seconds, several
from symconfig.frameworks.known import BACKENDS
from symconfig.plans.plan import Candidate, Plan
from symconfig.report.grid import Block, Grid
from symconfig.schedule.schedule import Schedule
from symconfig.solve.schedules import Compared, Scheduled

NOWHERE = "not in Megatron-LM/DeepSpeed"


def runs_in(schedule: Schedule) -> str:
    """Name the frameworks that have the schedule."""
    return " and ".join(BACKENDS[name].label for name in schedule.runs_in) or NOWHERE


def table(scheduled: Sequence[Scheduled], most_bytes: float) -> Grid:
    """Return a row for each, the plan's own marked. most_bytes: that a GPU has for it. stale: by how many optimizer
    steps the weights of a gradient are older than those that it is applied to."""
    cells = tuple(
        (
            row.schedule.title + (" (planned)" if row.own else ""),
            str(row.vpp),
            seconds(row.step_s),
            percent(row.idle),
            gib(row.peak_bytes),
            "yes" if row.peak_bytes <= most_bytes else "no",
            str(row.staleness),
            runs_in(row.schedule),
        )
        for row in scheduled
    )
    marked = next((number for number, row in enumerate(scheduled) if row.own), None)
    headers = ("schedule", "chunks", "step s", "idle", "peak GiB", "fits", "stale", "runs in")
    return Grid(headers, cells, left=(0, 5, 7), marked=marked, title="The same plan under other schedules")


def runnable(compared: Compared, backend: str) -> Compared:
    """Return the schedules that this framework has, and the plan's own."""
    return Compared(
        tuple(row for row in compared.able if row.own or backend in row.schedule.runs_in),
        tuple(each for each in compared.refused if backend in each.schedule.runs_in),
    )


def refusals(compared: Compared) -> list[str]:
    """Say why the others cannot run, as sentences."""
    return [f"{each.schedule.title} cannot run it: {each.why}." for each in compared.refused]


def blocks(compared: Compared, plan: Plan, candidate: Candidate, *, every: bool = False) -> list[Block]:
    """Return the table, and below it what is not in it. every: also schedules that its framework does not run."""
    if not compared.able:
        return ["A single stage has no schedule to choose."]
    backend = candidate.target.backend
    shown = compared if every else runnable(compared, backend)
    reasons = refusals(shown)
    if left := len(compared.able) + len(compared.refused) - len(shown.able) - len(shown.refused):
        reasons.append(f"{several(left, 'schedule')} that {BACKENDS[backend].label} does not run: --all.")
    return [table(shown.able, most_bytes(plan, candidate)), *(["\n".join(reasons)] if reasons else [])]


def most_bytes(plan: Plan, candidate: Candidate) -> float:
    """Return what may be allocated at the peak: the usable memory without what is in use outside of allocations."""
    return plan.usable_bytes - (candidate.predicted.device_bytes - candidate.predicted.peak_bytes)


def to_dict(compared: Compared) -> list[dict[str, Any]]:
    """Return plain data: schedules that can run it, then those that cannot."""
    able = [
        named(row.schedule)
        | {
            "planned": row.own,
            "vpp": row.vpp,
            "step_s": row.step_s,
            "idle": row.idle,
            "peak_bytes": row.peak_bytes,
            "staleness": row.staleness,
        }
        for row in compared.able
    ]
    return able + [named(each.schedule) | {"refused": each.why} for each in compared.refused]


def named(schedule: Schedule) -> dict[str, Any]:
    """Return what a schedule is called, and where it is from and runs, as plain data."""
    return {
        "schedule": schedule.name,
        "title": schedule.title,
        "source": schedule.source,
        "runs_in": list(schedule.runs_in),
    }
