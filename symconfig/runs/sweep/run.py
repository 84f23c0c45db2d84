"""A sweep run: what its journal has is taken from there, the rest is planned, and the table is made of both.

The journal holds the finished jobs, a line of JSON each, by the job's digest and by the release that did it. It stays
beside the table, so that a sweep that was killed, or has more combinations now, plans only what is new.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from symconfig import resources
from symconfig.install import VERSION
from symconfig.runs.sweep import pool
from symconfig.runs.sweep.columns import COLUMNS, Value, inputs
from symconfig.runs.sweep.job import Point
from symconfig.runs.sweep.pool import Row, Status, Task

Key = tuple[str, str]  # id of the point, and symconfig's release


@dataclass(frozen=True, slots=True)
class Done:
    """The progress of a sweep. rows: points with a row; fresh: rows of this run; unplanned: rows without a plan."""

    points: int
    rows: int
    fresh: int
    unplanned: int


@dataclass(frozen=True, slots=True)
class Swept:
    """The result of a sweep. rows: by point id, only points done. known: number of rows taken from the journal.
    interrupted: whether points are missing.
    """

    points: tuple[Point, ...]
    rows: Mapping[str, Row]
    known: int
    interrupted: bool

    @property
    def counts(self) -> Counter[Status]:
        """Return the number of rows by status."""
        return Counter(row.status for row in self.rows.values())

    @property
    def records(self) -> list[dict[str, Value]]:
        """Return the table's rows as {column: value}, for the points that have a row: id, inputs, then the plan's
        values, which win, status and reason.
        """
        answered = ((point, self.rows[point.id]) for point in self.points if point.id in self.rows)
        return [
            {"id": point.id, **inputs(point.job), **row.values, "status": str(row.status), "reason": row.reason}
            for point, row in answered
        ]


def sweep(
    points: Sequence[Point], out: Path, fresh: bool, progress: Callable[[Done], None], jobs: int | None = None
) -> Swept:
    """Plan all points that the journal beside `out` lacks, and write journal and table; return the rows.

    On Ctrl-C it stops and writes the rows so far (`interrupted`). Rows of another release, defects and lost ones are
    planned again. fresh: the journal is emptied first. jobs: as of `pool.run`. progress: called after each new row.
    Raises InputError if an output cannot be written, FailedError as `pool.run`.
    """
    check(out)
    path = journal_of(out)
    kept = {} if fresh else read_journal(path)
    again = (Status.DEFECT, Status.LOST)
    known = {point.id: row for point in points if (row := kept.get((point.id, VERSION))) and row.status not in again}
    rows, interrupted = dict(known), False
    with appending(path, fresh) as append:
        try:
            for row in pool.run([Task.of(point) for point in points if point.id not in known], jobs):
                append(row)
                rows[row.id] = row
                unplanned = sum(one.status is not Status.PLANNED for one in rows.values())
                progress(Done(len(points), len(rows), len(rows) - len(known), unplanned))
        except KeyboardInterrupt:
            interrupted = True
    done = Swept(tuple(points), rows, len(known), interrupted)
    resources.write_file(out, _csv(done.records))
    return done


def check(out: Path) -> None:
    """Raise InputError if the table cannot be written at `out` or its name does not end in .csv."""
    resources.check_output(out, "--out", (".csv",), "no table has this ending", "a name that ends in .csv")


def _csv(records: Sequence[Mapping[str, Value]]) -> bytes:
    """Return the table as CSV in UTF-8 with a header of COLUMNS; booleans in lower case, None and missing columns as
    empty cells, other values by str.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = [column.name for column in COLUMNS]
    writer.writerow(names)
    for record in records:
        cells = (record.get(name) for name in names)
        writer.writerow("" if one is None else str(one).lower() if isinstance(one, bool) else str(one) for one in cells)
    return text.getvalue().encode()


def journal_of(out: Path) -> Path:
    """Return the path of a table's journal."""
    return out.with_name(out.name + ".journal")


def read_journal(path: Path) -> dict[Key, Row]:
    """Return the rows by (id, release), the last one of each; {} without a file. Malformed lines are skipped. Raises
    InputError if it cannot be read.
    """
    rows: dict[Key, Row] = {}
    if path.exists():
        with resources.opened(path) as stream:
            for line in stream:
                try:
                    row = Row.from_dict(json.loads(line))
                except (KeyError, TypeError, ValueError, RecursionError):
                    continue
                rows[row.id, row.planner] = row
    return rows


@contextmanager
def appending(path: Path, fresh: bool = False) -> Iterator[Callable[[Row], None]]:
    """Yield a function that appends a row as a line of JSON and syncs it to disk. fresh: the file is emptied first. A
    last line without an end is ended first. Raises InputError if the file cannot be written.
    """
    with resources.appending(path, fresh) as stream:
        if stream.tell():
            stream.seek(-1, os.SEEK_END)
            if stream.read() != b"\n":  # a torn line stays one of its own
                stream.write(b"\n")

        def add(row: Row) -> None:
            """Append the row as a line of JSON and fsync the file."""
            stream.write(json.dumps(row.to_dict(), ensure_ascii=False, allow_nan=False).encode() + b"\n")
            stream.flush()
            os.fsync(stream.fileno())

        yield add
