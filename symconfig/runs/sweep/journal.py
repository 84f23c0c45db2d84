"""What is done of a sweep, on disk as soon as it is done: one row a line, each flushed to the disk before the next.

A sweep that was killed goes on from here; a line that was not written whole, or is no row of the table, is dropped. The
file stays beside the table, so that a sweep with more combinations plans only what is new. Rows of another planner, or
of combinations that are no longer asked for, stay in it and are not used.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from symconfig.errors import InputError
from symconfig.runs.sweep.columns import could_be_planned
from symconfig.runs.sweep.task import Row, Status

SCHEMA = "symconfig.sweep_journal/1"
SUFFIX = ".journal"
Key = tuple[str, str]  # id of the point, and which planner


class Journal:
    """rows: what was done before, the last one of each id and planner. dropped: lines that are none."""

    def __init__(self, path: Path, stream: IO[bytes]) -> None:
        self.path = path
        self.rows: dict[Key, Row] = {}
        self.dropped = 0
        self._stream = stream
        self._read()

    def add(self, row: Row) -> None:
        """Add a row, which is on the disk when this returns."""
        self.rows[row.id, row.planner] = row
        self._line(row.to_dict())

    def _line(self, data: dict[str, Any]) -> None:
        self._stream.write(json.dumps(data, ensure_ascii=False, allow_nan=False).encode() + b"\n")
        self._stream.flush()
        os.fsync(self._stream.fileno())

    def _read(self) -> None:
        """Read the journal; raise InputError for a file of something else."""
        self._stream.seek(0)
        whole = 0  # bytes of whole lines
        for number, line in enumerate(self._stream):
            if not line.endswith(b"\n"):
                self.dropped += 1
                break
            whole += len(line)
            if number == 0:
                self._check(line)
            elif (row := _row(line)) is not None:
                self.rows[row.id, row.planner] = row
            else:
                self.dropped += 1
        self._stream.truncate(whole)
        self._stream.seek(whole)
        if not whole:
            self._line({"schema": SCHEMA})

    def _check(self, line: bytes) -> None:
        try:
            data = json.loads(line)
            schema = data["schema"] if isinstance(data, dict) else None
        except (ValueError, KeyError, RecursionError):
            schema = None
        if schema != SCHEMA:
            got = repr(schema) if isinstance(schema, str) else "something else"
            raise InputError(
                "is not a journal of this version's sweeps",
                file=str(self.path),
                line=1,
                got=got,
                need=repr(SCHEMA),
                hint="another --out, or --force, which starts again",
            )


def _row(line: bytes) -> Row | None:
    """Parse a row; None: it is none.

    The file may have been edited, and its values go into the table as a plan's own.
    """
    try:
        row = Row.from_dict(json.loads(line))
        row.reason.encode()  # half a surrogate pair cannot be written into a table
    except (KeyError, TypeError, ValueError, RecursionError):
        return None
    whole = could_be_planned(row.values) if row.status is Status.PLANNED else not row.values
    return row if whole else None


def path_of(out: Path) -> Path:
    """Return the path of the journal of a table."""
    return out.with_name(out.name + SUFFIX)


@contextmanager
def journal(path: Path, fresh: bool = False) -> Iterator[Journal]:
    """Open the journal at `path`, made where there is none; fresh: emptied. Raises InputError.

    Nobody else can write it meanwhile.
    """
    try:
        stream = path.open("r+b" if path.exists() else "x+b")
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror or error}", file=str(path)) from None
    with stream:
        _lock(stream, path)
        if fresh:
            stream.truncate(0)
        yield Journal(path, stream)


def _lock(stream: IO[bytes], path: Path) -> None:
    try:
        import fcntl
    except ImportError:  # a system without it: two sweeps into one table are the user's own care
        return
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise InputError("another sweep is writing it", file=str(path), hint="another --out") from None
