"""`symconfig args`: the words of a plan for `$(…)` in bash."""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import partial
from pathlib import Path

from symconfig.cli.options import PLAN
from symconfig.cli.shared import as_option, print_json, whole, write_data
from symconfig.errors import InputError, Problem, reworded

NAME = "args"
DOES = "print the words of a plan's program, for $(...) in a script of your own"
EXAMPLES = ("torchrun --nproc-per-node 8 pretrain_gpt.py $(symconfig args out)",)


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("plan", metavar="PLAN.json", help=PLAN)
    add("--target", metavar="T", help="whose program (default: the framework that the plan was made for)")
    add("--null", action="store_true", help="end every word with a NUL, for mapfile -d '' and xargs -0")
    held = parser.add_argument_group("held against this machine first; exit 1 where it is another one")
    held.add_argument("--check", action="store_true", help="WORLD_SIZE and the installed release against the plan")
    held.add_argument("--world-size", metavar="N", help="how many GPUs this start has (default: WORLD_SIZE)")
    held.add_argument("--replan", action="store_true", help="solve again for what is here, instead of failing")


def run(arguments: argparse.Namespace) -> int:
    """Exit 1 where the machine is not what the plan is for."""
    from symconfig.frameworks.entries import entry_of
    from symconfig.plans.file import load_plan
    from symconfig.runs.embed.start import started
    from symconfig.runs.embed.words import targets, unsafe, words

    size = whole("--world-size", arguments.world_size)
    plan = load_plan(Path(arguments.plan))
    target = arguments.target or (plan.job.target if plan.job.target in targets() else plan.best.target.backend)
    if arguments.check or arguments.replan or size is not None:
        with reworded(partial(_as_options, arguments=arguments)):
            plan = started(plan, entry_of(target, plan), size, "replan" if arguments.replan else "fail")
    options = words(plan, target)
    if arguments.json:
        print_json(
            {
                "schema": "symconfig.args/1",
                "target": target,
                "world_size": plan.best.parallel.world_size,
                "words": options,
            }
        )
    elif arguments.null:
        write_data("".join(f"{word}\0" for word in options))
    elif wrong := list(unsafe(options)):
        raise InputError(wrong)
    else:
        write_data("".join(f"{word}\n" for word in options))
    return 0


def _as_options(problem: Problem, arguments: argparse.Namespace) -> Problem:
    """Rewrite a problem in the words of the command line."""
    hint = problem.hint and problem.hint.replace('on_mismatch="replan"', "--replan")
    return replace(as_option(problem, arguments), hint=hint)
