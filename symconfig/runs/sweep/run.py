"""A sweep run: what is known already is taken from its journal, the rest is planned, and the table is made of both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from symconfig.runs.sweep import journal, pool, table
from symconfig.runs.sweep.columns import Value, inputs
from symconfig.runs.sweep.planner import planner
from symconfig.runs.sweep.points import Point
from symconfig.runs.sweep.task import Row, Status, Task


@dataclass(frozen=True, slots=True)
class Done:
    """The progress of a sweep. rows: of all points that have one; fresh: planned just now."""

    points: int
    rows: int
    fresh: int
    unplanned: int


Progress = Callable[[Done], None]


@dataclass(frozen=True, slots=True)
class Swept:
    """rows: of the points that have one, by id. known: rows that were in the journal. interrupted: not every point has
    a row."""

    points: tuple[Point, ...]
    rows: Mapping[str, Row]
    prices: Mapping[str, float]
    known: int
    interrupted: bool

    @property
    def counts(self) -> Counter[Status]:
        """Count rows by status."""
        return Counter(row.status for row in self.rows.values())

    @property
    def records(self) -> list[dict[str, Value]]:
        """Return the table's rows, by column."""
        return [self._record(point) for point in self.points if point.id in self.rows]

    def _record(self, point: Point) -> dict[str, Value]:
        row = self.rows[point.id]
        record = {"id": point.id, **inputs(point.job), **row.values, "status": str(row.status), "reason": row.reason}
        price = self.prices.get(str(point.job["cluster"]), self.prices.get(point.cluster.name))
        hours = record.get("gpu_hours")
        return {**record, "cost": price * hours if price is not None and isinstance(hours, int | float) else None}


def sweep(
    points: Sequence[Point],
    out: Path,
    prices: Mapping[str, float],
    fresh: bool,
    progress: Progress,
    executor: Executor | None = None,
    jobs: int | None = None,
) -> Swept:
    """Plan every point that the journal beside `out` does not have, and write the table.

    Also of a part of them, when it is interrupted.

    fresh: forget the journal. executor, jobs: as of `pool.run`. Raises InputError for an output that cannot be written.
    """
    table.check(out)
    path = journal.path_of(out)
    kept = {} if fresh else journal.read(path)
    known = {
        point.id: row
        for point in points
        if (row := kept.get((point.id, planner()))) is not None and row.status.answered
    }
    rows, interrupted = dict(known), False
    with journal.appending(path, fresh) as append:
        try:
            for row in pool.run([Task.of(point) for point in points if point.id not in known], executor, jobs):
                append(row)
                rows[row.id] = row
                progress(_done(points, rows, known))
        except KeyboardInterrupt:
            interrupted = True
    swept = Swept(tuple(points), rows, prices, len(known), interrupted)
    table.write(out, swept.records)
    return swept


def _done(points: Sequence[Point], rows: Mapping[str, Row], known: Mapping[str, Any]) -> Done:
    return Done(
        len(points), len(rows), len(rows) - len(known), sum(row.status is not Status.PLANNED for row in rows.values())
    )
