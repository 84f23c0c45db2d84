"""`symconfig check`."""

from __future__ import annotations

import argparse

from symconfig.cli.shared import print_json, say

NAME = "check"
DOES = "whether the files of a plan were edited or are stale, for CI: exit 1 when they are"
EXAMPLES = (
    "symconfig check out",
    "symconfig check out --solve",
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `symconfig check`."""
    add = parser.add_argument
    add("place", metavar="DIR", help="what `plan --out` or `render` wrote, or a PLAN.json alone")
    add("--templates", metavar="DIR", help="your own templates, where they were written with some")
    add("--solve", action="store_true", help="also solve again, and say if another plan is best now")


def run(arguments: argparse.Namespace) -> int:
    """Exit 1 when anything is edited or stale."""
    from symconfig.api.check import check
    from symconfig.report.check import blocks, to_dict

    checked = check(arguments.place, arguments.templates, arguments.solve)
    if arguments.json:
        print_json(to_dict(checked))
    else:
        say(blocks(checked))
    return 0 if checked.passed else 1
