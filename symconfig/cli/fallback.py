"""`symconfig fallback`: the plans for a cluster that loses nodes, made before it does."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from symconfig.cli.options import PLAN, add_changes, add_files, changes, wanted
from symconfig.cli.shared import as_changes, as_option, file_of, note, replaced, show, working
from symconfig.errors import InputError, reworded

if TYPE_CHECKING:
    from symconfig.plans.plan import Plan
    from symconfig.report.progress import Progress

NAME = "fallback"
DOES = "plan beforehand for a cluster that loses nodes, with a launch script that takes the plan that fits"
EXAMPLES = ("symconfig fallback out --lose-nodes 1..2 --out smaller",)


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("plan", metavar="PLAN.json", help=PLAN)
    add_changes(parser)
    add("--lose-nodes", metavar="N", default="1..4", help="how many nodes fewer: 2, or 1..4 (default)")
    add("--out", metavar="DIR", help="write nodes-N/ for every plan there, and the launch.sh above them")
    add("--force", action="store_true", help="write into a folder that exists")
    add_files(parser)


def run(arguments: argparse.Namespace) -> int:
    """Exit 0; 1 where nothing fits on any smaller number of nodes."""
    from symconfig.api import planning as api
    from symconfig.api.fallback import fallback_files
    from symconfig.plans.file import load_plan
    from symconfig.render.together import LAUNCH
    from symconfig.report.fallback import blocks, to_dict
    from symconfig.runs.replan.fallback import fallback as solve
    from symconfig.solve.answer import TOP

    problems = api.Problems()
    out = file_of(arguments.out)
    problems.read(lambda out: api.check_free(out, arguments.force), out)
    lost = problems.collect(partial(_range, arguments.lose_nodes))
    files = problems.collect(partial(wanted, arguments))
    plan = problems.collect(partial(load_plan, Path(arguments.plan)))
    changed = problems.collect(lambda: changes(arguments)) or {}
    if problems.all or lost is None or files is None or plan is None:
        raise InputError(problems.all)
    with reworded(lambda problem: as_option(as_changes(problem, changed), arguments)), working() as progress:
        plan = _on_changed(plan, changed, progress)
        result = solve(plan, lost, top=TOP, progress=progress)
    written = []
    if out is not None:
        written = api.put(lambda: fallback_files(result, files), out, arguments.force, replaced)
    show(arguments, lambda: to_dict(result), lambda: blocks(result))
    if out is not None:
        folders = ", ".join(f"nodes-{count}" for count, _ in result.runs)
        picks = "launch.sh takes the plan that fits, of " if out / LAUNCH in written else ""
        note(f"wrote {len(written)} files into {out}: {picks}{folders}")
    return 0 if any(each.plan for each in result.smaller) else 1


def _on_changed(plan: Plan, changed: Mapping[str, str], progress: Progress) -> Plan:
    """Plan again for the plan's cluster with the changes, where the smaller plans run, too."""
    from symconfig.api import replan as api_replan

    if not changed:
        return plan
    note(f"note: the plan itself is made again with {', '.join(f'{name}={value}' for name, value in changed.items())}")
    return api_replan.replan_again(plan, api_replan.Wanted(wishes={}, changes=changed), progress=progress).found.new


def _range(text: str) -> range:
    """Read the numbers that 1..4, or 2 alone, names."""
    match = re.fullmatch(r"(\d{1,6})(?:\.\.(\d{1,6}))?", text, re.ASCII)
    low, high = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= low <= high:
        raise InputError("wrong value", field="--lose-nodes", got=text, need="nodes as 2, or a range as 1..4")
    return range(low, high + 1)
