"""`symconfig timeline`: the schedule of a plan, drawn in the terminal and as a picture."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from symconfig.cli.shared import check_output, note, print_json, say, write_bytes
from symconfig.errors import InputError, Problem

if TYPE_CHECKING:
    from symconfig.api.planning import Problems
    from symconfig.plans.plan import Candidate, Plan
    from symconfig.report.timeline.chart import Chart

NAME = "timeline"
DOES = "draw the schedule of a plan, stage by stage, with its memory"
EXAMPLES = (
    "symconfig timeline out --svg step.svg",
    "symconfig timeline out --compare",
)

PLAIN_WIDTH = 120  # where no terminal says how wide it is
LEAST_WIDTH, MOST_WIDTH = 60, 2000


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `symconfig timeline`."""
    add = parser.add_argument
    add("plan", metavar="PLAN.json", help="a plan, or the folder that holds it")
    add("--candidate", metavar="N", help="which one of the plan's ranking (default 1, the best)")
    add("--schedule", metavar="NAME", help="as another schedule would run it, also one that no framework has")
    add("--compare", action="store_true", help="also a table of all schedules: step, idle share, memory, where it runs")
    add("--svg", metavar="FILE.svg", help="draw it as a picture")
    add("--png", metavar="FILE.png", help="the same as PNG; needs matplotlib")
    add("--force", action="store_true", help="replace pictures that exist")
    add("--width", metavar="N", help="letters in a line (default: the terminal's, or 120)")


def run(arguments: argparse.Namespace) -> int:
    """Exit 0; bad input, also a schedule that cannot run the plan's shape, is exit 2."""
    from symconfig.api.planning import Problems
    from symconfig.plans.file import load_plan
    from symconfig.report.timeline import compared, numbers, seen, terminal
    from symconfig.solve.restore import retraced

    found = Problems()
    pictures = _pictures(arguments, found)
    width = found.collect(lambda: _width(arguments.width))
    other = found.collect(partial(seen.schedule, arguments.schedule)) if arguments.schedule is not None else None
    plan = found.collect(lambda: load_plan(Path(arguments.plan)))
    candidate = found.collect(partial(_candidate, plan, arguments.candidate)) if plan is not None else None
    if found.all or plan is None or candidate is None:
        raise InputError(found.all)
    with retraced(arguments.plan):
        chart = seen.seen(plan, candidate, other)
        schedules = seen.compared(plan, candidate) if arguments.compare else None
    for path, content in pictures:
        write_bytes(path, content(chart), arguments.force)
        note(f"wrote {path}")
    if arguments.json:
        print_json(numbers.to_dict(chart, schedules))
    else:
        ascii_only = not (sys.stdout.encoding or "").lower().startswith("utf")
        say(
            [
                chart.title,
                *chart.notes,
                terminal.drawing(chart, width or PLAIN_WIDTH, ascii_only),
                *(compared.blocks(schedules, compared.most_bytes(plan, candidate)) if schedules is not None else ()),
            ]
        )
    return 0


def _pictures(arguments: argparse.Namespace, found: Problems) -> list[tuple[Path, Callable[[Chart], bytes]]]:
    """The files to write, and what makes each; all that is known to be wrong of them is said before the work."""
    from symconfig.report.timeline.picture import picture
    from symconfig.report.timeline.png import check, png
    from symconfig.report.timeline.svg import svg

    pictures: list[tuple[Path, Callable[[Chart], bytes]]] = []
    if arguments.svg is not None:
        found.collect(lambda: check_output("--svg", Path(arguments.svg), arguments.force, ("SVG", ".svg")))
        pictures.append((Path(arguments.svg), lambda chart: svg(picture(chart)).encode()))
    if arguments.png is not None:
        found.collect(lambda: check_output("--png", Path(arguments.png), arguments.force, ("PNG", ".png")))
        found.collect(check)
        pictures.append((Path(arguments.png), lambda chart: png(picture(chart))))
    return pictures


def _width(text: str | None) -> int:
    from symconfig.report.grid import page_width

    if text is None:
        return page_width(sys.stdout) or PLAIN_WIDTH
    return _whole("--width", text, LEAST_WIDTH, MOST_WIDTH)


def _candidate(plan: Plan, text: str | None) -> Candidate:
    every = (plan.best, *plan.alternatives)
    return every[_whole("--candidate", text or "1", 1, len(every)) - 1]


def _whole(field: str, text: str, least: int, most: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10 and least <= int(text) <= most):
        raise InputError(Problem("out of range", field=field, got=text, need=f"a whole number from {least} to {most}"))
    return int(text)
