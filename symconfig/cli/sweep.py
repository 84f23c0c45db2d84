"""`symconfig sweep`: many plans into one table."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from symconfig.cli.options import JOBS, adds, flag, option
from symconfig.cli.shared import (
    INTERRUPTED,
    note,
    show,
    whole,
    working,
)
from symconfig.errors import FailedError, InputError, Problem

if TYPE_CHECKING:
    from symconfig.runs.sweep.run import Done

DOES = "plan many combinations of a job's fields, into one table"
EXAMPLES = ("symconfig sweep sweep.yaml --out results.csv",)


add_options = adds(
    lambda: (
        option("sweep", "SWEEP.yaml", "a job, lists of values for its fields, and what to leave out"),
        option(
            "--out",
            "FILE",
            "the table, a .csv (default: SWEEP.csv, here); what is done stays done in FILE.journal, and the same "
            "command goes on from there",
        ),
        JOBS,
        option("--limit", "N", "most combinations (default 10,000)", type=whole),
        flag("--force", "start again, and replace a table that exists"),
    )
)


def run(arguments: argparse.Namespace) -> int:
    """Plan all combinations, write the table and print the summary; return the exit code. 0: all were answered and at
    least one has a plan; 1: none has one, or some failed or were lost; 130: interrupted. --force discards the journal.
    Raises InputError with all problems before any work, also for an existing table without journal unless --force.
    """
    from symconfig.api.sweep import read_sweep
    from symconfig.report.sweep import blocks, to_dict
    from symconfig.runs.sweep.job import LIMIT
    from symconfig.runs.sweep.pool import Status
    from symconfig.runs.sweep.run import check, journal_of, sweep

    problems, out = arguments.problems, Path(arguments.out or f"{Path(arguments.sweep).stem}.csv")
    problems.collect(lambda: check(out))
    points = problems.collect(lambda: read_sweep(arguments.sweep, arguments.limit or LIMIT))
    if out.exists() and not journal_of(out).exists() and not arguments.force:
        what = "this file exists already, and no journal of a sweep beside it"
        problems.add(Problem(what, file=str(out), hint="--force, or another --out"))
    if problems.all or points is None:
        raise InputError(problems.all)
    with working() as progress:
        swept = sweep(points.points, out, arguments.force, _telling(progress.say), arguments.jobs)
    show(arguments, lambda: to_dict(swept, points, out), lambda: blocks(swept, points, out))
    if swept.interrupted:
        note("interrupted")
        return INTERRUPTED
    failed = swept.counts[Status.DEFECT] + swept.counts[Status.LOST]
    return FailedError.exit_code if failed or not swept.counts[Status.PLANNED] else 0


def _telling(say: Callable[[str], None]) -> Callable[[Done], None]:
    """Return a function that reports rows done, plans per second and the time left."""
    started = time.monotonic()

    def tell(progress: Done) -> None:
        rate = progress.fresh / max(time.monotonic() - started, 1e-3)
        minutes = (progress.points - progress.rows) / rate / 60
        left = f"{minutes:.0f} min" if minutes >= 1 else f"{60 * minutes:.0f} s"
        without = f", {progress.unplanned:,} without a plan" if progress.unplanned else ""
        say(f"{progress.rows:,} of {progress.points:,}{without}; {rate:.1f} plans/s, {left} left")

    return tell
