"""`symconfig checkpoint`: what a folder holds, and whether a plan's run can go on from it."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from symconfig.cli.options import adds, option
from symconfig.cli.shared import plan_of, show
from symconfig.errors import InputError, Problem

DOES = "what kind of checkpoint a folder holds, and whether a plan's run can go on from it"
EXAMPLES = (
    "symconfig checkpoint checkpoints",
    "symconfig checkpoint checkpoints --plan out",
)


add_options = adds(
    lambda: (
        option("folder", "DIR", "of Megatron-LM, DeepSpeed, Hugging Face or PEFT; nothing in it is unpickled"),
        option("--plan", "NEW.json", "the plan of the run that shall load it, or its folder"),
        option("--old", "OLD.json", "the plan of the run that saved it (default: as NEW, with what DIR states)"),
    )
)


def run(arguments: argparse.Namespace) -> int:
    """Print what a checkpoint is and, with --plan, whether it loads there (--old: the plan that wrote it); return 1 if
    a plan was given and nothing loads, else 0. Raises InputError, also for an incomplete checkpoint and for --old
    without --plan.
    """
    from symconfig.report.checkpoint import contents, verdict
    from symconfig.runs.checkpoint import Verdict, of_folder, read

    problems = arguments.problems
    folder = problems.collect(partial(read, Path(arguments.folder)))
    new, old = (problems.read(plan_of, name) for name in (arguments.plan, arguments.old))
    if arguments.old is not None and arguments.plan is None:
        what = "is the run that saved the checkpoint, for a plan that is to load it"
        problems.add(Problem(what, field="--old", need="--plan NEW.json"))
    if problems.all or folder is None:
        raise InputError(problems.all)
    answer = of_folder(folder, new, old) if new is not None else None
    loadable = answer.to_dict() if answer is not None else None
    show(
        arguments,
        lambda: {"schema": "symconfig.checkpoint/1", "checkpoint": folder.to_dict(), "loadable": loadable},
        lambda: [*contents(folder), *(verdict(answer) if answer is not None else ())],
    )
    return int(answer is not None and answer.verdict is Verdict.NO)
