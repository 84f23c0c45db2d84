"""`symconfig plan`, the fastest configuration that fits and its files, and `serve`, the same in a browser."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from symconfig.cli.options import JOB_FILE, Command, answer_rows, flag, job, option, wanted
from symconfig.cli.shared import (
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
from symconfig.errors import InputError

if TYPE_CHECKING:
    from symconfig.cli.job import Request
    from symconfig.descriptor.cluster import MixedCluster


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
        raise InputError((*problems.all, *job.problems))
    with working() as progress:
        result = api.solve(
            job.document,
            model_base=job.model_base,
            cluster_base=job.cluster_base,
            top=arguments.top or 1,
            writes=out is not None,
            compares=True,
            problems=(*problems.all, *job.problems),
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
            problems=(*arguments.problems.all, *job.problems),
            progress=progress,
        )
    written = result.write(out, arguments.force, replaced) if out is not None else []
    show(arguments, result.to_dict, lambda: mixed_blocks(result.plan))
    if out is not None:
        wrote(out, written, arguments.json, ())
    return 0


def run_serve(arguments: argparse.Namespace) -> int:
    """Print the address and serve until interrupted; with --mcp answer on stdin and stdout until they close.

    Raises InputError for wrong options, an unusable port, or --mcp without its extra.
    """
    if arguments.problems.all:
        raise InputError(arguments.problems.all)
    if arguments.mcp:
        from symconfig.serve.agents import serve

        serve()
        return 0
    from symconfig.serve.app import Server

    with Server(arguments.port, arguments.workers, float(arguments.timeout)) as server:
        say([f"http://127.0.0.1:{server.server_port}/"])
        server.serve_forever()
    return 0


COMMANDS = (
    Command(
        name="plan",
        does="find the fastest configuration that fits, and write its files",
        examples=(
            "symconfig plan --model llama2-13b --cluster h100 --gpus 64 \\\n    --global-batch-size 1024 --out out",
            "symconfig plan job.yaml --set network=4x200Gb/s --pin tp=8 --html plan.html",
        ),
        first=(
            "--model",
            "--cluster",
            "--gpus",
            "--global-batch-size",
            "--seq-length",
            "--task",
            "--backend",
            "--precision",
            "--pin",
            "--out",
        ),
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
        does="plan in a browser: a page with a form, on this machine; or as an agent's tools",
        examples=("symconfig serve --port 8080 --workers 4", "symconfig serve --mcp"),
        rows=lambda: (
            flag("--mcp", "be a server of the Model Context Protocol on stdin and stdout, for agents and editors"),
            option(
                "--port",
                "P",
                "0: any that is free (default 8000)",
                type=within(int, 0, 65535, "a port from 0 to 65535"),
                default=8000,
            ),
            option("--workers", "N", "searches at once (default 2)", type=whole, default=2),
            option("--timeout", "S", "seconds for a search (default 300)", type=whole, default=300),
        ),
        run=run_serve,
    ),
)
