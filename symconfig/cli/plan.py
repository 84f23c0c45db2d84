"""Commands that plan: `plan` one job, `serve` the same in a browser, `sweep` many jobs, `size` for a deadline."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from symconfig.cli.options import JOB_FILE, JOBS, Command, answer_rows, flag, job, option, repeated, some, wanted
from symconfig.cli.shared import (
    INTERRUPTED,
    PAGE,
    answer,
    file_of,
    folder,
    note,
    output,
    refuse,
    replaced,
    say,
    show,
    whole,
    within,
    working,
    wrote,
)
from symconfig.errors import FailedError, InputError, Problem

if TYPE_CHECKING:
    from symconfig.cli.job import Request
    from symconfig.descriptor.cluster import MixedCluster
    from symconfig.runs.sweep.run import Done


def run_plan(arguments: argparse.Namespace) -> int:
    """Print the ranked plans and write their files (--out) and page (--html); return 0. Notes and warnings go to
    standard error. A cluster of two kinds of GPUs is planned by `_run_mixed`. If no target can express the plan, it is
    printed, and files or a page asked for are not written and give the refusal's exit code. Raises InputError,
    InfeasibleError.
    """
    from symconfig.api import planning as api
    from symconfig.cli.job import request
    from symconfig.descriptor.load import mixed_of
    from symconfig.plans.sentences import batch_nearby
    from symconfig.report.rl import blocks as of_step
    from symconfig.report.table import blocks

    problems = arguments.problems
    out = folder(arguments)
    html = output(arguments, "html", PAGE)
    files = problems.collect(lambda: wanted(arguments))
    job = problems.collect(lambda: request(arguments))
    if job is None:
        raise InputError(problems.all)
    before = len(problems.all)
    if (mixed := problems.collect(lambda: mixed_of(job.document, job.cluster_base))) is not None:
        return _run_mixed(arguments, job, mixed)
    if len(problems.all) > before:
        raise InputError(problems.all)
    with working() as progress:
        result = api.solve(
            job.document,
            model_base=job.model_base,
            cluster_base=job.cluster_base,
            top=arguments.top or 1,
            writes=out is not None,
            compares=True,
            problems=problems.all,
            progress=progress,
        )
    for remark in result.remarks:
        note(f"note: {remark}")
    for sentence in result.plan.model.left_out:
        note(f"note: {result.plan.model.name}: {sentence}")
    for warning in result.warnings:
        note(f"warning: {warning}")
    if nearby := batch_nearby(result.plan):
        note(f"note: {nearby}")
    if job.without_pin:
        note(f"note: of {arguments.like} no pin can express: {'; '.join(job.without_pin)}")
    shown = (of_step if result.plan.rl else blocks)(result.plan)
    refused = result.inexpressible
    answer(arguments, result.plan, files if refused is None else None, result.to_dict, shown)
    if refused is None or (out is None and html is None):
        return 0
    for problem in refused.problems:
        note(f"error: {problem}")
    return refused.exit_code


def _run_mixed(arguments: argparse.Namespace, job: Request, mixed: MixedCluster) -> int:
    """Print the plans over two kinds of GPUs and write their files with --out; return 0. Raises InputError, also for
    --html, --launcher and --templates, and InfeasibleError.
    """
    from symconfig.api.mixed import solve
    from symconfig.report.table import mixed_blocks

    names = ("html", "launcher", "templates")
    refuse(arguments, names, "is not written for two kinds of GPUs", hint="--out or --json")
    out = file_of(arguments.out)
    with working() as progress:
        result = solve(
            job.document,
            mixed,
            model_base=job.model_base,
            top=arguments.top or 1,
            writes=out is not None,
            problems=arguments.problems.all,
            progress=progress,
        )
    written = result.write(out, arguments.force, replaced) if out is not None else []
    show(arguments, result.to_dict, lambda: mixed_blocks(result.plan))
    if out is not None:
        wrote(out, written, arguments.json, ())
    return 0


def run_serve(arguments: argparse.Namespace) -> int:
    """Print the address and serve until interrupted; with --mcp answer on stdin and stdout until they close. Raises
    InputError for wrong options, an unusable port, or --mcp without its extra.
    """
    arguments.problems.check()
    if arguments.mcp:
        from symconfig.serve.agents import serve

        serve()
        return 0
    from symconfig.serve.app import Server

    with Server(arguments.port, arguments.workers, float(arguments.timeout)) as server:
        say([f"http://127.0.0.1:{server.server_port}/"])
        server.serve_forever()
    return 0


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
    points = problems.need(points)
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
        sized = size(
            **{"model": None, **job.document.data},
            deadline=arguments.deadline,
            tokens=arguments.tokens,
            clusters=clusters,
            batch_tokens=arguments.batch_tokens,
            gpus_max=arguments.gpus_max or MOST_GPUS,
            goodput=arguments.goodput,
            prices=dict(filter(None, arguments.price)),
            jobs=arguments.jobs,
            problems=arguments.problems.all,
            progress=lambda done, total: progress.say(f"planned {done:,} of {total:,}"),
        )
    show(arguments, lambda: size_data(sized), lambda: size_blocks(sized))
    return 0 if sized.met else FailedError.exit_code


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


# What `plan --help` shows; `--help-all` shows the others, too.
_FIRST = (
    "--model", "--cluster", "--gpus", "--global-batch-size", "--seq-length", "--task", "--backend", "--precision",
    "--pin", "--out",
)  # fmt: skip
COMMANDS = (
    Command(
        name="plan",
        does="find the fastest configuration that fits, and write its files",
        examples=(
            "symconfig plan --model llama2-13b --cluster h100 --gpus 64 \\\n    --global-batch-size 1024 --out out",
            "symconfig plan job.yaml --set network=4x200Gb/s --pin tp=8 --html plan.html",
        ),
        first=_FIRST,
        rows=lambda: (
            JOB_FILE,
            option("--like", "NAME", "a published recipe: its job and its layout; `symconfig list recipes` lists them"),
            *job(),
            *answer_rows(),
        ),
        run=run_plan,
    ),
    Command(
        name="serve",
        does="serve the planner on this machine: a form in the browser, or tools for an agent",
        examples=("symconfig serve --port 8080 --workers 4", "symconfig serve --mcp"),
        rows=lambda: (
            flag("--mcp", "serve the Model Context Protocol on stdin and stdout, for agents and editors"),
            option(
                "--port",
                "P",
                "port to listen on; 0: any free one (default 8000)",
                type=within(int, 0, 65535, "a port from 0 to 65535"),
                default=8000,
            ),
            option("--workers", "N", "searches run in parallel (default 2)", type=whole, default=2),
            option("--timeout", "S", "seconds for a search (default 300)", type=whole, default=300),
        ),
        run=run_serve,
    ),
    Command(
        name="sweep",
        does="plan many combinations of a job's fields, and write one table",
        examples=("symconfig sweep sweep.yaml --out results.csv",),
        rows=lambda: (
            option("sweep", "SWEEP.yaml", "a job, lists of values for its fields, and what to leave out"),
            option(
                "--out",
                "FILE",
                "the table, a .csv (default: SWEEP.csv, here); finished plans are kept in FILE.journal, and the same "
                "command resumes from there",
            ),
            JOBS,
            option("--limit", "N", "largest number of combinations (default 10,000)", type=whole),
            flag("--force", "start again, and replace a table that exists"),
        ),
        run=run_sweep,
    ),
    Command(
        name="size",
        does="find how many GPUs of which cluster meet a deadline, and what they cost",
        examples=("symconfig size --model llama3.1-8b --tokens 100B --deadline 30d \\\n    --clusters h100,a100-80gb",),
        rows=lambda: (
            "what is asked",
            *some("model"),
            option("--deadline", "T", "the time available: 30d, 12h, 2w", required=True),
            option("--tokens", "N", "tokens to train on: 2T, 500B", required=True),
            option("--clusters", "A,B", "zoo names or paths (default: all of the zoo)", default="all"),
            option("--gpus-max", "N", "largest number of GPUs (default 16384, or what the cluster has)", type=whole),
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
