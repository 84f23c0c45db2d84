"""`symconfig explain`: the formulas of a plan with its numbers in them, or its schedule, stage by stage."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from symconfig.cli.options import PLAN
from symconfig.cli.shared import JSON, note, output, plan_of, refuse, show, whole, write_text
from symconfig.errors import InputError, Problem

if TYPE_CHECKING:
    from symconfig.plans.plan import Plan

NAME = "explain"
DOES = "the formulas of a plan, what binds, the runner-up, how every tensor is split; its schedule"
EXAMPLES = (
    "symconfig explain out",
    "symconfig explain out --timeline",
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to its parser."""
    parser.add_argument("plan", metavar="PLAN.json", help=PLAN)
    parser.add_argument(
        "--all",
        action="store_true",
        help="also each tensor of each block, each formula, each symbol",
    )
    add = parser.add_argument_group("the schedule").add_argument
    add("--timeline", action="store_true", help="the schedule, stage by stage")
    add("--candidate", metavar="N", type=whole, default=1, help="which one of the plan's ranking (default 1, the best)")
    add("--trace", metavar="FILE.json", help="write its events there, for ui.perfetto.dev or chrome://tracing")
    add("--force", action="store_true", help="replace a file that exists")


def run(arguments: argparse.Namespace) -> int:
    """Print the plan's formulas, or with --timeline its schedule; return 0. Raises InputError."""
    if not arguments.timeline:
        refuse(arguments, ("trace", "force"), "is of the schedule", need="--timeline")
    plan = arguments.problems.collect(lambda: plan_of(arguments.plan))
    if arguments.timeline:
        return _timeline(arguments, plan)
    if arguments.problems.all or plan is None:
        raise InputError(arguments.problems.all)
    return _formulas(arguments, plan)


def _formulas(arguments: argparse.Namespace, plan: Plan) -> int:
    """Print the explanation with symbolic costs; return 0."""
    from symconfig.report import symbols
    from symconfig.report.explanation import blocks, to_dict
    from symconfig.solve.explain import explain
    from symconfig.solve.plan_symbols import symbolic
    from symconfig.solve.restore import retraced

    with retraced(arguments.plan):
        explained, costs = explain(plan), symbolic(plan, plan.best)
    every = arguments.all
    show(
        arguments,
        lambda: {**to_dict(plan, explained), "symbolic": symbols.to_dict(costs)},
        lambda: [*blocks(plan, explained, every=every), *symbols.blocks(costs, every=every)],
    )
    return 0


def _timeline(arguments: argparse.Namespace, plan: Plan | None) -> int:
    """Print a candidate's simulated schedule, and write its trace with --trace; return 0. Raises InputError."""
    from symconfig.report.timeline import seen
    from symconfig.report.timeline.chart import chart_data, stage_rows
    from symconfig.report.timeline.trace import trace
    from symconfig.solve.restore import retraced

    problems = arguments.problems
    path = output(arguments, "trace", JSON)
    every = () if plan is None else (plan.best, *plan.alternatives)
    if plan is not None and arguments.candidate is not None and arguments.candidate > len(every):
        need = f"a whole number from 1 to {len(every)}"
        problems.add(Problem("out of range", field="--candidate", got=str(arguments.candidate), need=need))
    if problems.all or plan is None:
        raise InputError(problems.all)
    candidate = every[arguments.candidate - 1]
    with retraced(arguments.plan):
        chart = seen.seen(plan, candidate)
    if path is not None:
        write_text(path, trace(chart), arguments.force)
        note(f"wrote {path}")
    show(arguments, lambda: chart_data(chart), lambda: [chart.title, *chart.notes, stage_rows(chart)])
    return 0
