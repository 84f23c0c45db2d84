"""Measure the speed and memory of the planner: `python -m tools bench`, as `make bench`, prints and records.

Most rows are medians of several new processes, as a ratio to `python -c "import numpy, sympy"` in CPU seconds
(`benchmarks/process.py`). A limit that is not met is printed as MISSED and fails nothing: figures of one machine on one
day are no test. `--check` measures nothing: it fails where the record is of other sources of the solver than these.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from fnmatch import fnmatchcase

from benchmarks import record
from benchmarks.rows import QUICK, ROWS, WHOLE, Row


def chosen(words: Sequence[str]) -> list[Row]:
    """Return the rows of these names or patterns. Raises SystemExit for one that no row has."""
    if unknown := [word for word in words if not any(fnmatchcase(row.name, word) for row in ROWS)]:
        raise SystemExit(f"no row is named {', '.join(unknown)}; rows: {', '.join(row.name for row in ROWS)}")
    return [row for row in ROWS if not words or any(fnmatchcase(row.name, word) for word in words)]


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", metavar="NAME,...", default="", help="these rows only; plan-* is all of a kind")
    parser.add_argument("--quick", action="store_true", help="one process a row, fewer jobs and points")
    parser.add_argument(
        "--record", action="store_true", help="into results.json, history.jsonl and docs/evidence/speed.md"
    )
    parser.add_argument("--check", action="store_true", help="measure nothing, fail where the record is too old")
    parser.add_argument(
        "--page", action="store_true", help="measure nothing, put the record into docs/evidence/speed.md"
    )
    arguments = parser.parse_args(words)
    if arguments.quick and arguments.record:
        parser.error("what is measured with --quick is not recorded")
    if arguments.check:
        if why := record.check():
            print(f"error: {why}", file=sys.stderr)
        return bool(why)
    if arguments.page:
        record.write_page(record.read())
        return 0
    return measure(chosen([word for word in arguments.rows.split(",") if word]), arguments.quick, arguments.record)


def measure(rows: Sequence[Row], quick: bool, recorded: bool) -> int:
    """Measure and print rows, one line each, and record them, also where that was interrupted. A row that cannot be
    measured is named, and the status is then 1."""
    measured, failed = dict[str, dict[str, object]](), False
    try:
        for row in rows:
            try:
                figures = row.measure(QUICK if quick else WHOLE)
            except RuntimeError as error:
                print(f"{row.shown:44}cannot be measured: {error}", flush=True)
                failed = True
                continue
            measured[row.name] = figures
            print(record.line(row, measured[row.name]), flush=True)
    finally:
        if recorded and measured:
            record.put(measured)
            record.write_page(record.read())
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
