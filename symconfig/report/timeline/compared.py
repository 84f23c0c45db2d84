"""All schedules beside each other: what each would make of the same plan, and where it can be run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from symconfig.format import gib, percent, seconds
from symconfig.plan import Candidate, Plan
from symconfig.report.grid import Block, Grid
from symconfig.schedule.schedule import Schedule
from symconfig.solve.schedules import Scheduled

NOWHERE = "not in Megatron-LM/DeepSpeed"
_FRAMEWORKS = {"megatron": "Megatron-LM", "deepspeed": "DeepSpeed"}


def runs_in(schedule: Schedule) -> str:
    """The frameworks that have it."""
    return " and ".join(_FRAMEWORKS[name] for name in schedule.runs_in) or NOWHERE


def table(rows: Sequence[Scheduled], most_bytes: float) -> Grid:
    """The fastest first; the plan's own is marked. most_bytes: that a GPU has for it. stale: by how many optimizer
    steps the weights of a gradient are older than those that it is applied to."""
    cells = tuple(
        (row.schedule.title + (" (planned)" if row.own else ""), str(row.vpp), seconds(row.step_s), percent(row.idle),
         gib(row.peak_bytes), "yes" if row.peak_bytes <= most_bytes else "no", str(row.staleness),
         runs_in(row.schedule))
        for row in rows if row.refused is None
    )
    marked = next((number for number, row in enumerate(rows) if row.own), None)
    headers = ("schedule", "chunks", "step s", "idle", "peak GiB", "fits", "stale", "runs in")
    return Grid(headers, cells, left=(0, 5, 7), marked=marked, title="The same plan under every schedule")


def refused(rows: Sequence[Scheduled]) -> list[str]:
    """Why the others cannot run, as sentences."""
    return [f"{row.schedule.title} cannot run it: {row.refused}." for row in rows if row.refused is not None]


def blocks(rows: Sequence[Scheduled], most_bytes: float) -> list[Block]:
    """The table, and below it what is not in it."""
    if not rows:
        return ["A single stage has no schedule to choose."]
    return [table(rows, most_bytes), *(["\n".join(said)] if (said := refused(rows)) else [])]


def most_bytes(plan: Plan, candidate: Candidate) -> float:
    """What may be allocated at the peak: the usable memory without what is in use beside allocations."""
    return plan.usable_bytes - (candidate.predicted.device_bytes - candidate.predicted.peak_bytes)


def to_dict(rows: Sequence[Scheduled]) -> list[dict[str, Any]]:
    """The same as plain data."""
    return [
        {"schedule": row.schedule.name, "title": row.schedule.title, "planned": row.own, "refused": row.refused,
         "runs_in": list(row.schedule.runs_in), "source": row.schedule.source}
        | ({} if row.refused is not None else
           {"vpp": row.vpp, "step_s": row.step_s, "idle": row.idle, "peak_bytes": row.peak_bytes,
            "staleness": row.staleness})
        for row in rows
    ]
