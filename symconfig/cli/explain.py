"""`symconfig explain`: the formulas of a plan with its numbers in them."""

from __future__ import annotations

import argparse
from pathlib import Path

from symconfig.cli.options import PLAN
from symconfig.cli.shared import show

NAME = "explain"
DOES = "the formulas of a plan, what binds, the runner-up, how every tensor is split"
EXAMPLES = ("symconfig explain out",)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("plan", metavar="PLAN.json", help=PLAN)
    parser.add_argument(
        "--all",
        action="store_true",
        help="also schedules that the plan's framework does not run, each tensor of each block, each formula, each "
        "symbol",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the formulas with their numbers. Exit 0."""
    from symconfig.plans.file import load_plan
    from symconfig.report import symbols
    from symconfig.report.explanation import blocks, to_dict
    from symconfig.report.timeline.seen import compared
    from symconfig.runs.compared import with_comparisons
    from symconfig.solve.explain import explain as formulas
    from symconfig.solve.plan_symbols import symbolic
    from symconfig.solve.restore import retraced

    loaded = with_comparisons(load_plan(Path(arguments.plan)))
    with retraced(arguments.plan):
        explained, schedules = formulas(loaded), compared(loaded, loaded.best)
        costs = symbolic(loaded, loaded.best)
    every = arguments.all
    show(
        arguments,
        lambda: {**to_dict(loaded, explained, schedules), "symbolic": symbols.to_dict(costs)},
        lambda: [*blocks(loaded, explained, schedules, every=every), *symbols.blocks(costs, every=every)],
    )
    return 0
