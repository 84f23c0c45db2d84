"""`symconfig diff`: two plans side by side."""

from __future__ import annotations

import argparse

from symconfig.cli.main import print_json
from symconfig.cli.shared import say


def diff(arguments: argparse.Namespace) -> int:
    """Exit 0, or 1 where they differ and --exit-code asks for it, as git does; 2: bad input."""
    from symconfig.api import replan as api_replan
    from symconfig.report import diff as report

    found = api_replan.diff(arguments.before, arguments.after)
    if arguments.json:
        print_json(report.to_dict(found))
    else:
        say(report.blocks(found))
    return 1 if arguments.exit_code and not found.same else 0
