"""`symconfig check`."""

from __future__ import annotations

import argparse

from symconfig.cli.main import print_json
from symconfig.cli.shared import say


def check(arguments: argparse.Namespace) -> int:
    """Exit 1 when anything is edited or stale."""
    from symconfig.api.check import check as held
    from symconfig.report.check import blocks, to_dict

    checked = held(arguments.place, arguments.templates, arguments.solve)
    if arguments.json:
        print_json(to_dict(checked))
    else:
        say(blocks(checked))
    return 0 if checked.passed else 1
