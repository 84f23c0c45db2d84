"""`symconfig diff`: two plans side by side."""

from __future__ import annotations

import argparse

from symconfig.cli.options import PLAN, adds, flag, option
from symconfig.cli.shared import show

DOES = "in what two plans differ"
EXAMPLES = ("symconfig diff out again",)


add_options = adds(
    lambda: (
        option("before", "A.json", PLAN),
        option("after", "B.json", "another one"),
        flag("--exit-code", "exit 1 where they differ"),
    )
)


def run(arguments: argparse.Namespace) -> int:
    """Print the differences of two plans; return 1 if they differ, with --exit-code, else 0. Raises InputError."""
    from symconfig.api import replan as api_replan
    from symconfig.report import diff as report

    diff = api_replan.diff(arguments.before, arguments.after)
    show(arguments, lambda: report.to_dict(diff), lambda: report.blocks(diff))
    return 1 if arguments.exit_code and not diff.same else 0
