"""`symconfig whatif`: over which changes a plan stays the best one, and what it loses."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from symconfig.cli.options import PLAN
from symconfig.cli.shared import plan_of, show, working
from symconfig.errors import InputError

if TYPE_CHECKING:
    from symconfig.api.problems import Problems
    from symconfig.plans.plan import Plan

NAME = "whatif"
DOES = "over which batches, sequences and rates a plan stays the best; what it loses when the job changes"
EXAMPLES = (
    "symconfig whatif out --vary network=0.5..2x",
    "symconfig whatif out --change seq_length=16384 --change model=mixtral-8x7b",
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to its parser."""
    parser.add_argument("plan", metavar="PLAN.json", help=PLAN)
    add = parser.add_mutually_exclusive_group(required=True).add_argument
    add(
        "--vary",
        metavar="NAME=LOW..HIGH",
        action="append",
        default=[],
        help="the best plan over a range, again for each: global_batch_size=64..4096, seq_length=2048..16384, or a "
        "factor of the cluster's network, links (inside a node), compute, memory_bandwidth or memory: network=0.5..2x",
    )
    add(
        "--change",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="what the plan loses that is kept: a field of the job, model=NAME or cluster=NAME; commas join changes "
        "at once; may be repeated",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print how the plan fares when values vary or the job changes; return 1 if a changed job has no plan, else 0.
    Raises InputError.
    """
    plan = arguments.problems.collect(lambda: plan_of(arguments.plan))
    return (_changed if arguments.change else _varied)(arguments, plan, arguments.problems)


def _varied(arguments: argparse.Namespace, plan: Plan | None, problems: Problems) -> int:
    """Print the best plan over each range; return 0."""
    from symconfig.report.whatif import blocks, to_dict
    from symconfig.runs.whatif.whatif import varied, whatif

    varies = problems.read(lambda plan: varied(plan, arguments.vary), plan)
    if problems.all or plan is None or varies is None:
        raise InputError(problems.all)
    with working() as progress:
        answer = whatif(plan, varies, lambda done: progress.say(f"{done} searches"))
    show(arguments, lambda: to_dict(answer), lambda: blocks(answer))
    return 0


def _changed(arguments: argparse.Namespace, plan: Plan | None, problems: Problems) -> int:
    """Print the kept and the new plan for each change; return 1 if a changed job has no plan, else 0."""
    from symconfig.report.changes import blocks, to_dict
    from symconfig.runs.whatif.change import parsed, through_changes

    changes = problems.collect(lambda: parsed(arguments.change))
    if problems.all or plan is None or changes is None:
        raise InputError(problems.all)
    with working() as progress:
        cases = through_changes(plan, changes, progress)
    show(arguments, lambda: to_dict(cases), lambda: blocks(cases))
    return 0 if all(case.replanned.plan is not None for case in cases) else 1
