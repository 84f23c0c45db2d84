"""`symconfig formats`."""

from __future__ import annotations

import argparse
from pathlib import Path

from symconfig.cli.shared import file_of, show

NAME = "formats"
DOES = "what a plan can be written as, what can start it, and which of it can carry a certain plan"
EXAMPLES = (
    "symconfig formats",
    "symconfig formats out",
)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("plan", nargs="?", metavar="PLAN.json", help="say which formats can carry this plan")
    parser.add_argument("--templates", metavar="DIR", help="with the templates of your own")


def run(arguments: argparse.Namespace) -> int:
    """List every target and launcher; with a plan, those that can carry it and what the others cannot express."""
    from symconfig.plans.file import load_plan
    from symconfig.report.formats import blocks, to_dict
    from symconfig.report.formats import formats as every

    plan = load_plan(Path(arguments.plan)) if arguments.plan is not None else None
    carried = every(plan, file_of(arguments.templates))
    show(arguments, lambda: to_dict(carried), lambda: blocks(carried))
    return 0
