"""`symconfig check`."""

from __future__ import annotations

import argparse
from functools import partial

from symconfig.cli.shared import one_at_a_time, show
from symconfig.errors import InputError

NAME = "check"
DOES = "whether the files of a plan were edited or are stale, for CI: exit 1 when they are"
EXAMPLES = (
    "symconfig check out",
    "symconfig check out --solve",
)


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("place", metavar="DIR", nargs="+", help="what `plan --out` or `render` wrote, or a PLAN.json")
    add("--templates", metavar="DIR", help="your own templates, where they were written with some")
    add("--solve", action="store_true", help="also solve again, and say if another plan is best now")


def run(arguments: argparse.Namespace) -> int:
    """Exit 1 when anything is edited or stale."""
    from symconfig.api.check import check
    from symconfig.api.problems import Problems
    from symconfig.report.check import blocks, to_dict

    problems, passed = Problems(), True
    one_at_a_time(problems, arguments, arguments.place, "json")
    for place in () if problems.all else arguments.place:
        checked = problems.collect(partial(check, place, arguments.templates, arguments.solve))
        if checked is None:
            continue
        passed &= checked.passed
        shown = [*([place] if len(arguments.place) > 1 else []), *blocks(checked)]
        show(arguments, partial(to_dict, checked), partial(list, shown))
    if problems.all:
        raise InputError(problems.all)
    return 0 if passed else 1
