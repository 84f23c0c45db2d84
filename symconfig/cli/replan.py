"""Commands for when something changes: `replan` solves again, `diff` compares, `checkpoint` says what loads."""

from __future__ import annotations

import argparse
import re
from functools import partial
from pathlib import Path

from symconfig.cli.options import PLAN, Command, answer_rows, flag, job, job_options, option, wanted
from symconfig.cli.shared import PAGE, answer, folder, note, output, plan_of, refuse, replaced, show, within, working
from symconfig.errors import InputError, Problem

# Options that say how one run goes on as another.
_OF_A_RUN = ("accept_edits", "release", "checkpoint", "at_step", "schedule", "html")


def run_replan(arguments: argparse.Namespace) -> int:
    """Print the new plan and what changes, and write its files and page; return 0. With --lose-nodes as
    `_on_fewer_nodes`. Raises InputError and InfeasibleError.
    """
    from symconfig.api.replan import replan
    from symconfig.cli.job import request
    from symconfig.report.replan import replan_blocks

    if arguments.lose_nodes is not None:
        return _on_fewer_nodes(arguments)
    problems = arguments.problems
    files = problems.collect(lambda: wanted(arguments))
    output(arguments, "html", PAGE)
    folder(arguments)
    job = request(arguments)
    with working() as progress:
        result = replan(
            arguments.plan,
            **job.document.data,
            release=[name.strip() for name in arguments.release.split(",")] if arguments.release is not None else (),
            checkpoint=arguments.checkpoint,
            at_step=arguments.at_step,
            schedule=arguments.schedule or "keep",
            accept_edits=arguments.accept_edits,
            top=arguments.top or 1,
            changes=job.changes,
            problems=problems.all,
            progress=progress,
        )
    shown = replan_blocks(result.found)
    answer(arguments, result.found.new, files, result.to_dict, shown, before=shown)
    return 0


def _on_fewer_nodes(arguments: argparse.Namespace) -> int:
    """Print the plans for fewer nodes and write their files with --out; return 1 if no number of nodes has a plan, else
    0. Raises InputError, also for options of the job or of a run, but --target.
    """
    from symconfig.api.files import put
    from symconfig.api.replan import fallback_files
    from symconfig.render.target import LAUNCH
    from symconfig.report.checkpoint import blocks, to_dict
    from symconfig.runs.replan.replanned import fallback

    problems = arguments.problems
    lost = problems.read(_range, arguments.lose_nodes)
    of_job = (option.dest for name, option in job_options().items() if name != "target")
    refuse(arguments, (*of_job, "set", "pin", *_OF_A_RUN), "is not for --lose-nodes", hint="replan first, then this")
    files = problems.collect(lambda: wanted(arguments))
    out = folder(arguments)
    plan = problems.collect(lambda: plan_of(arguments.plan))
    plan, lost, files = problems.need(plan), problems.need(lost), problems.need(files)
    with working() as progress:
        found = fallback(plan, lost, top=arguments.top or 1, progress=progress)
    written = put(lambda: fallback_files(found, files), out, arguments.force, replaced) if out else []
    show(arguments, lambda: to_dict(found), lambda: blocks(found))
    if out is not None:
        folders = ", ".join(f"nodes-{count}" for count, _ in found.runs)
        picks = "launch.sh takes the plan that fits, of " if out / LAUNCH in written else ""
        note(f"wrote {len(written)} files into {out}: {picks}{folders}")
    return 0 if any(each.plan for each in found.smaller) else 1


def _range(text: str) -> range:
    """Return the range of `1..4` (both ends included), or of `2` alone. Raises InputError."""
    match = re.fullmatch(r"(\d{1,6})(?:\.\.(\d{1,6}))?", text, re.ASCII)
    low, high = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= low <= high:
        raise InputError("wrong value", field="--lose-nodes", got=text, need="nodes as 2, or a range as 1..4")
    return range(low, high + 1)


def run_diff(arguments: argparse.Namespace) -> int:
    """Print the differences of two plans; return 1 if they differ, with --exit-code, else 0. Raises InputError."""
    from symconfig.api import replan as api_replan
    from symconfig.report import replan as report

    diff = api_replan.diff(arguments.before, arguments.after)
    show(arguments, lambda: report.diff_data(diff), lambda: report.diff_blocks(diff))
    return 1 if arguments.exit_code and not diff.same else 0


def run_checkpoint(arguments: argparse.Namespace) -> int:
    """Print what a checkpoint holds and, with --plan, whether that plan can load it; return 1 if it cannot, else 0.
    --old names the plan that wrote the checkpoint. Raises InputError, also for an incomplete checkpoint and for --old
    without --plan.
    """
    from symconfig.report.checkpoint import contents, verdict
    from symconfig.runs.checkpoint.loadable import of_folder
    from symconfig.runs.checkpoint.read import read
    from symconfig.runs.checkpoint.table import Verdict

    problems = arguments.problems
    folder = problems.collect(partial(read, Path(arguments.folder)))
    new, old = (problems.read(plan_of, name) for name in (arguments.plan, arguments.old))
    if arguments.old is not None and arguments.plan is None:
        what = "is the run that saved the checkpoint, for a plan that is to load it"
        problems.add(Problem(what, field="--old", need="--plan NEW.json"))
    folder = problems.need(folder)
    answer = of_folder(folder, new, old) if new is not None else None
    loadable = answer.to_dict() if answer is not None else None
    show(
        arguments,
        lambda: {"schema": "symconfig.checkpoint/1", "checkpoint": folder.to_dict(), "loadable": loadable},
        lambda: [*contents(folder), *(verdict(answer) if answer is not None else ())],
    )
    return int(answer is not None and answer.verdict is Verdict.NO)


COMMANDS = (
    Command(
        name="replan",
        does="plan again, with changed inputs: what changes and why, and whether the checkpoint still loads",
        examples=("symconfig replan out --gpus 32", "symconfig replan out --lose-nodes 1..2 --out smaller"),
        rows=lambda: (
            option("plan", "PLAN.json", PLAN),
            flag("--accept-edits", "solve a plan whose inputs were edited in the file as they are"),
            option(
                "--lose-nodes",
                "N",
                "plan for a cluster that loses nodes, 2 or 1..4 of them, with a launch.sh that takes the plan that "
                "fits",
            ),
            "the old plan",
            option("--release", "NAMES", "recorded pins that are free now"),
            "the run",
            option("--checkpoint", "DIR", "what it has saved: its kind, and its step"),
            option(
                "--at-step",
                "K",
                "iterations done (default: those of the checkpoint, else of the plan)",
                type=within(int, 0, float("inf"), "a step from 0"),
            ),
            option(
                "--schedule",
                "S",
                "keep (default): the same tokens and learning rate of each; as-is: the same iterations",
            ),
            *job(),
            *answer_rows(),
        ),
        run=run_replan,
    ),
    Command(
        name="diff",
        does="show how two plans differ",
        examples=("symconfig diff out again",),
        rows=lambda: (
            option("before", "A.json", PLAN),
            option("after", "B.json", "another plan, or its folder"),
            flag("--exit-code", "exit 1 if they differ"),
        ),
        run=run_diff,
    ),
    Command(
        name="checkpoint",
        does="say what kind of checkpoint a folder holds, and whether a plan's run can resume from it",
        examples=("symconfig checkpoint checkpoints", "symconfig checkpoint checkpoints --plan out"),
        rows=lambda: (
            option("folder", "DIR", "of Megatron-LM, DeepSpeed, Hugging Face or PEFT; nothing in it is unpickled"),
            option("--plan", "NEW.json", "the plan of the run that is to load it, or its folder"),
            option("--old", "OLD.json", "the plan of the run that saved it (default: as NEW, with what DIR states)"),
        ),
        run=run_checkpoint,
    ),
)
