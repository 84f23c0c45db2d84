"""The finished jobs of a sweep on disk: one JSON line each, by the job's digest and by the planner that did it.

The file stays beside the table, so that a sweep that was killed, or has more combinations now, plans only what is new.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from symconfig import resources
from symconfig.runs.sweep.task import Row

SUFFIX = ".journal"
Key = tuple[str, str]  # id of the point, and which planner


def path_of(out: Path) -> Path:
    """Return the path of the journal of a table."""
    return out.with_name(out.name + SUFFIX)


def read(path: Path) -> dict[Key, Row]:
    """Return the finished jobs, the last one of each key; none without a file. Raises InputError.

    A line that is no row is passed over: the last one of a sweep that was killed may be torn.
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
    """Give a function that appends a row, which is on the disk when it returns. fresh: the file is emptied first.

    Raises InputError where the file cannot be written.
    """
    with resources.appending(path, fresh) as stream:
        if stream.tell():
            stream.seek(-1, os.SEEK_END)
            if stream.read() != b"\n":  # a torn line stays one of its own
                stream.write(b"\n")

        def add(row: Row) -> None:
            stream.write(json.dumps(row.to_dict(), ensure_ascii=False, allow_nan=False).encode() + b"\n")
            stream.flush()
            os.fsync(stream.fileno())

        yield add
