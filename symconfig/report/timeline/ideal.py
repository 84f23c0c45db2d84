"""Schedules by themselves, on stages that are all equal, and replicas of which one is slow: tables and plain data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from symconfig.format import percent, picked
from symconfig.report.grid import Grid
from symconfig.report.timeline.compared import named, runs_in
from symconfig.schedule import stragglers
from symconfig.schedule.even import Even
from symconfig.schedule.schedule import Schedule

BOUNDS = (0, 1, 2, 4, 8, 16, None)
_ROUNDS = 20  # in which every replica is slow once


def table(rows: Sequence[Even], stages: int, microbatches: int) -> Grid:
    """Return a row for each schedule. held: microbatches on the fullest stage; weights: copies of a stage's."""
    cells = [
        {
            "schedule": row.schedule.title,
            "speed-up": f"{row.speedup:.2f}",
            "idle": percent(row.idle),
            "held": f"{row.held:g}",
            "weights": f"{row.weights:g}",
            "stale": str(row.staleness),
            "runs in": runs_in(row.schedule),
        }
        for row in rows
    ]
    title = f"{stages} equal stages, {microbatches} microbatches: speed-up over one stage that does it all"
    words = ("schedule", "runs in")
    return Grid.of(cells, title, words=words, fixed=[head for head in cells[0] if head not in words])


def replicas(count: int, slow: float) -> list[tuple[int | None, float, float]]:
    """Return, for each bound on staleness, the mean time of a step over one without a slow replica. Another replica
    slow at each step, and always the same one."""
    clocks = _ROUNDS * count
    turns, same = stragglers.in_turn(count, slow, clocks), stragglers.always(count, slow, clocks)
    return [(bound, stragglers.step_s(turns, bound), stragglers.step_s(same, bound)) for bound in BOUNDS]


def replica_table(count: int, slow: float) -> Grid:
    """Return `replicas` as a table."""
    cells = tuple(
        ("no bound" if bound is None else str(bound), f"{turns:.3f}", f"{same:.3f}")
        for bound, turns, same in replicas(count, slow)
    )
    title = f"{count} replicas, one of them {slow:g} times slower: a step over one in which none is"
    return Grid(("staleness", "one in turn", "always the same"), cells, left=(0,), title=title, fixed=(1, 2))


def to_dict(rows: Sequence[Even], refused: Sequence[tuple[Schedule, str]]) -> list[dict[str, Any]]:
    """Return the schedules as plain data: those that run, then those that do not."""
    able = [named(row.schedule) | picked(row, "vpp", "speedup", "idle", "held", "weights", "staleness") for row in rows]
    return able + [named(schedule) | {"refused": why} for schedule, why in refused]


def replicas_to_dict(count: int, slow: float) -> list[dict[str, Any]]:
    """Return `replicas` as plain data; staleness null is no bound."""
    return [
        {"staleness": bound, "in_turn": turns, "always_the_same": same} for bound, turns, same in replicas(count, slow)
    ]
