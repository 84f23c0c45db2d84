"""Commands that make many plans: `sweep` into one table, `size` for the fewest GPUs in time."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from symconfig.cli.options import JOBS, Command, flag, option, repeated, some
from symconfig.cli.shared import (
    INTERRUPTED,
    note,
    show,
    whole,
    within,
    working,
)
from symconfig.errors import FailedError, InputError, Problem

if TYPE_CHECKING:
    from symconfig.runs.sweep.run import Done


def run_sweep(arguments: argparse.Namespace) -> int:
    """Plan all combinations, write the table and print the summary; return the exit code. 0: all were answered and at
    least one has a plan; 1: none has one, or some failed or were lost; 130: interrupted. --force discards the journal.
    Raises InputError with all problems before any work, also for an existing table without journal unless --force.
    """
    from symconfig.api.sweep import read_sweep
    from symconfig.report.sweep import sweep_blocks, sweep_data
    from symconfig.runs.sweep.job import LIMIT
    from symconfig.runs.sweep.run import Status, check, journal_of, sweep

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
    show(arguments, lambda: sweep_data(swept, points, out), lambda: sweep_blocks(swept, points, out))
    if swept.interrupted:
        note("interrupted")
        return INTERRUPTED
    failed = swept.counts[Status.DEFECT] + swept.counts[Status.LOST]
    return FailedError.exit_code if failed or not swept.counts[Status.PLANNED] else 0


def _telling(say: Callable[[str], None]) -> Callable[[Done], None]:
    """Return a function that passes a sweep's progress to `say` as text: rows done, those without a plan, plans per
    second since this call, and the time left.
    """
    started = time.monotonic()

    def tell(progress: Done) -> None:
        rate = progress.fresh / max(time.monotonic() - started, 1e-3)
        minutes = (progress.points - progress.rows) / rate / 60
        left = f"{minutes:.0f} min" if minutes >= 1 else f"{60 * minutes:.0f} s"
        without = f", {progress.unplanned:,} without a plan" if progress.unplanned else ""
        say(f"{progress.rows:,} of {progress.points:,}{without}; {rate:.1f} plans/s, {left} left")

    return tell


def run_size(arguments: argparse.Namespace) -> int:
    """Print the numbers of GPUs by cluster; return 0 if a cluster meets the deadline, else 1. Raises InputError with
    all problems, their fields named by the options.
    """
    from symconfig.api.sweep import ALL, size
    from symconfig.cli.job import request
    from symconfig.report.sweep import size_blocks, size_data
    from symconfig.runs.sweep.size import MOST_GPUS

    job = request(arguments)
    clusters = ALL if arguments.clusters == ALL else _BETWEEN.split(arguments.clusters)
    with working() as progress:
        answer = size(
            **{"model": None, **job.document.data},
            deadline=arguments.deadline,
            tokens=arguments.tokens,
            clusters=clusters,
            batch_tokens=arguments.batch_tokens,
            gpus_max=arguments.gpus_max or MOST_GPUS,
            goodput=1.0 if arguments.goodput is None else arguments.goodput,
            prices=dict(filter(None, arguments.price)),
            jobs=arguments.jobs,
            problems=(*arguments.problems.all, *job.problems),
            progress=lambda done, total: progress.say(f"planned {done:,} of {total:,}"),
        )
    show(arguments, lambda: size_data(answer), lambda: size_blocks(answer))
    return 0 if answer.met else FailedError.exit_code


_SHARE = "a share above 0, at most 1"
# A comma between clusters; one in a cluster's name is followed by a blank, or by a field that is changed.
_BETWEEN = re.compile(r",(?!\s|[A-Za-z_.]+=)")


def _price(text: str) -> tuple[str, float]:
    """Return (cluster, price) of `h100=2.5`, split at the last "=". Raises InputError unless 0 <= price < infinity."""
    name, _, value = text.rpartition("=")
    try:
        price = float(value)
    except ValueError:
        price = -1.0
    if not name or not 0 <= price < float("inf"):
        raise InputError("not of the form CLUSTER=PRICE", got=repr(text), hint="--price h100=2.5")
    return name, price


COMMANDS = (
    Command(
        name="sweep",
        does="plan many combinations of a job's fields, into one table",
        examples=("symconfig sweep sweep.yaml --out results.csv",),
        rows=lambda: (
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
        ),
        run=run_sweep,
    ),
    Command(
        name="size",
        does="how many GPUs of which cluster meet a deadline, at what cost",
        examples=("symconfig size --model llama3.1-8b --tokens 100B --deadline 30d \\\n    --clusters h100,a100-80gb",),
        rows=lambda: (
            "what is asked",
            *some("model"),
            option("--deadline", "T", "the time there is: 30d, 12h, 2w", required=True),
            option("--tokens", "N", "tokens to train on: 2T, 500B", required=True),
            option("--clusters", "A,B", "zoo names or paths (default: all of the zoo)", default="all"),
            option("--gpus-max", "N", "most GPUs (default 16384, or what the cluster has)", type=whole),
            option(
                "--goodput",
                "X",
                "share of the time in which steps run (default 1)",
                type=within(float, 0, 1, _SHARE),
                default=1.0,
            ),
            repeated("--price", "C=P", "price of a GPU-hour: h100=2.5; may be repeated", type=_price),
            "the job",
            *some("global_batch_size"),
            option(
                "--batch-tokens", "N", "the same in tokens (default 4 Mi): 4M; rounded to an even number of sequences"
            ),
            *some("seq_length", "backend", "megatron_version", "precision"),
            repeated("--pin", "NAME=VALUE", "as for plan: tp=8, pp=2..8; may be repeated"),
            *some("limits.memory_margin"),
            "",
            JOBS,
        ),
        run=run_size,
    ),
)
