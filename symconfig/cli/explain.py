"""`symconfig explain`: the formulas of a plan with its numbers in them."""

from __future__ import annotations

import argparse
from pathlib import Path

from symconfig.cli.shared import print_json, say

NAME = "explain"
DOES = "the formulas of a plan, what binds, the runner-up, how every tensor is split"
EXAMPLES = ("symconfig explain out",)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `symconfig explain`."""
    parser.add_argument("plan", metavar="PLAN.json", help="a plan, or the folder that holds it")
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
    from symconfig.solve.explain import explain as formulas
    from symconfig.solve.plan_symbols import symbolic
    from symconfig.solve.restore import retraced

    loaded = load_plan(Path(arguments.plan))
    with retraced(arguments.plan):
        explained, schedules = formulas(loaded), compared(loaded, loaded.best)
        costs = symbolic(loaded, loaded.best)
    if arguments.json:
        print_json({**to_dict(loaded, explained, schedules), "symbolic": symbols.to_dict(costs)})
    else:
        say(
            [
                *blocks(loaded, explained, schedules, every=arguments.all),
                *symbols.blocks(costs, every=arguments.all),
            ]
        )
    return 0
