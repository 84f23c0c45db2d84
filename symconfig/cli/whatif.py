"""`symconfig whatif`: the ranges over which a plan stays the best one."""

from __future__ import annotations

import argparse
from pathlib import Path

from symconfig.cli.options import PLAN, add_page
from symconfig.cli.shared import PAGE, output, show, working, write_report
from symconfig.errors import InputError

NAME = "whatif"
DOES = "over which batches, sequences and rates a plan stays the best"
EXAMPLES = ("symconfig whatif out --vary network=0.5..2x",)


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("plan", metavar="PLAN.json", help=PLAN)
    add(
        "--vary",
        metavar="NAME=LOW..HIGH",
        action="append",
        default=[],
        help="again for each: global_batch_size=64..4096, seq_length=2048..16384, or a factor of the cluster's "
        "network, links (inside a node), compute, memory_bandwidth or memory: network=0.5..2x",
    )
    add_page(parser)


def run(arguments: argparse.Namespace) -> int:
    """Exit 0; bad input is exit 2."""
    from symconfig.api.planning import Problems
    from symconfig.plans.file import load_plan
    from symconfig.report.page.pictures import of_whatif
    from symconfig.report.whatif import blocks, to_dict
    from symconfig.runs.whatif.vary import varied
    from symconfig.runs.whatif.whatif import whatif

    problems = Problems()
    html = output(problems, "--html", arguments.html, True, PAGE)
    plan = problems.read(load_plan, Path(arguments.plan))
    varies = problems.read(lambda plan: varied(plan, arguments.vary), plan)
    if problems.all or plan is None or varies is None:
        raise InputError(problems.all)
    with working() as progress:
        answer = whatif(plan, varies, html is not None, lambda done: progress.say(f"{done} searches"))
    shown = blocks(answer)
    show(arguments, lambda: to_dict(answer), lambda: shown)
    write_report(html, "Where a plan stays the best", shown, [of_whatif(answer)])
    return 0
