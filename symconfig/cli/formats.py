"""`symconfig formats`."""

from __future__ import annotations

import argparse
from pathlib import Path

from symconfig.cli.main import print_json
from symconfig.cli.shared import say


def formats(arguments: argparse.Namespace) -> int:
    """Every target and launcher; with a plan, which can carry it and what the others cannot say."""
    from symconfig.plans.file import load_plan
    from symconfig.report.formats import blocks, to_dict
    from symconfig.report.formats import formats as every

    plan = load_plan(Path(arguments.plan)) if arguments.plan is not None else None
    found = every(plan, Path(arguments.templates) if arguments.templates is not None else None)
    if arguments.json:
        print_json(to_dict(found))
    else:
        say(blocks(found))
    return 0
