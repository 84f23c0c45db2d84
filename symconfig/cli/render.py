"""`symconfig render`: the files of a plan for a target, or the words of its program for `$(…)` in bash."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from symconfig.cli.options import PLAN, adds, files, flag, option, wanted
from symconfig.cli.shared import folder, plan_of, print_json, refuse, replaced, whole, write_data, wrote
from symconfig.errors import InputError, Problem

if TYPE_CHECKING:
    from symconfig.plans.plan import Plan

DOES = "write the files of a plan for a target, or print the words of its program"
EXAMPLES = (
    "symconfig render out --target bridge --out bridge",
    "torchrun --nproc-per-node 8 pretrain_gpt.py $(symconfig render out --print)",
)


add_options = adds(
    lambda: (
        option("plan", "PLAN.json", PLAN),
        *files(),
        option("--out", "DIR", "where they are written"),
        flag("--force", "write into a folder that exists"),
        "the words of its program, for $(...) in a script of your own",
        flag("--print", "print them, and write no files"),
        flag("--null", "end every word with a NUL, for mapfile -d '' and xargs -0"),
        flag("--check", "exit 1 where WORLD_SIZE or the installed release is not the plan's"),
        option("--world-size", "N", "the same, with the GPUs of this start (default: WORLD_SIZE)", type=whole),
    )
)


def run(arguments: argparse.Namespace) -> int:
    """Write the plan's files and name them (--json: as JSON), or with --print print the program's words; return 0.
    Raises InputError, also for options of the other mode and for neither --out nor --print, and MismatchError (exit 1)
    if --check finds that this machine does not match the plan.
    """
    from symconfig.api import planning as api

    problems = arguments.problems
    if arguments.print:
        refuse(arguments, ("launcher", "templates", "out", "force"), "is for files, and --print writes none")
    else:
        refuse(arguments, ("null", "check", "world_size"), "is for words", need="--print")
        if arguments.out is None:
            problems.add(Problem("this argument is missing", field="--out", need="--out DIR, or --print"))
    out = folder(arguments)
    plan = problems.collect(lambda: plan_of(arguments.plan))
    files = None if arguments.print else problems.collect(lambda: wanted(arguments))
    if problems.all or plan is None:
        raise InputError(problems.all)
    if out is None or files is None:
        return _print(arguments, plan)
    written = api.write(plan, out, files, force=arguments.force, tell=replaced)
    if arguments.json:
        data = {"schema": "symconfig.render/1", "target": files.of_plan(plan), "folder": str(out)}
        print_json(data | {"files": [str(path.relative_to(out)) for path in written]})
    else:
        wrote(out, written, False, api.remarks(plan, files))
    return 0


def _print(arguments: argparse.Namespace, plan: Plan) -> int:
    """Print the words of the plan's program, one per line, NUL-terminated (--null) or as JSON; return 0. Program:
    --target, else the plan's target if it has words, else its framework. With --check or --world-size the plan is first
    compared with the machine or fitted to that number of processes. Raises InputError for words that `$(…)` would
    change, unless --null or --json is given; MismatchError.
    """
    from symconfig.frameworks.known import entry_of
    from symconfig.runs.embed.start import started
    from symconfig.runs.embed.words import unsafe, with_words, words

    target = arguments.target or (plan.job.target if plan.job.target in with_words() else plan.best.target.backend)
    if arguments.check or arguments.world_size is not None:
        plan = started(plan, entry_of(target, plan), arguments.world_size)
    options = words(plan, target)
    if arguments.json:
        data = {"schema": "symconfig.args/1", "target": target, "world_size": plan.best.configuration.world_size}
        print_json(data | {"words": options})
    elif arguments.null:
        write_data("".join(f"{word}\0" for word in options))
    elif wrong := list(unsafe(options)):
        raise InputError(wrong)
    else:
        write_data("".join(f"{word}\n" for word in options))
    return 0
