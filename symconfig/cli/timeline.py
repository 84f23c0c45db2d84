"""`symconfig timeline`: the schedule of a plan, drawn in the terminal; schedules by themselves."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from symconfig.cli.options import PLAN
from symconfig.cli.shared import ranged, refuse, show
from symconfig.errors import InputError, Problem

if TYPE_CHECKING:
    from symconfig.api.planning import Problems
    from symconfig.plans.plan import Candidate, Plan
    from symconfig.report.grid import Block

NAME = "timeline"
DOES = "draw the schedule of a plan, stage by stage, with its memory; compare schedules, also without a plan"
EXAMPLES = (
    "symconfig timeline out --compare --slow 1=1.5",
    "symconfig timeline --stages 8 --microbatches 32",
)

PLAIN_WIDTH = 120  # where no terminal says how wide it is
LEAST_WIDTH, MOST_WIDTH = 60, 2000
MOST_STAGES, MOST_MICROBATCHES, MOST_REPLICAS = 64, 512, 256  # simulated in seconds
MOST_SLOW = 100.0


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("plan", nargs="?", metavar="PLAN.json", help=PLAN)
    add("--candidate", metavar="N", help="which one of the plan's ranking (default 1, the best)")
    add("--schedule", metavar="NAME", help="as another schedule would run it, also one that no framework has")
    add("--compare", action="store_true", help="also a table of schedules: step, idle share, memory, where each runs")
    add("--all", action="store_true", help="with --compare: also schedules that the plan's framework does not run")
    add(
        "--slow",
        action="append",
        default=[],
        metavar="WHERE=TIMES",
        help="a straggler: a stage's number, or `replica`, and how many times longer it takes; may be given again",
    )
    add("--stages", metavar="N", help="in place of a plan: every schedule on so many equal stages")
    add("--microbatches", metavar="N", help="with --stages: microbatches of a step")
    add("--replicas", metavar="N", help="in place of a plan, with --slow replica=TIMES: data-parallel replicas")
    add("--width", metavar="N", help="letters in a line (default: the terminal's, or 120)")


def run(arguments: argparse.Namespace) -> int:
    """Exit 0; bad input, also a schedule that cannot run the plan's shape, is exit 2."""
    from symconfig.api.planning import Problems
    from symconfig.plans.file import load_plan
    from symconfig.report.timeline import compared, ideal, seen, terminal
    from symconfig.solve.restore import retraced

    problems = Problems()
    slow = _slow(arguments.slow, problems)
    if arguments.plan is None:
        return _without_plan(arguments, slow, problems)
    refuse(problems, arguments, ("stages", "microbatches", "replicas"), "this is of no plan")
    width = problems.collect(lambda: _width(arguments.width))
    other = problems.read(seen.schedule, arguments.schedule)
    plan = problems.read(load_plan, Path(arguments.plan))
    candidate = problems.read(lambda plan: _candidate(plan, arguments.candidate), plan)
    if candidate is not None and slow.replica is not None and candidate.parallel.dp == 1:
        problems.add(Problem("this plan has one replica, which none waits for", field="--slow", got="replica"))
    if problems.all or plan is None or candidate is None:
        raise InputError(problems.all)
    backend = candidate.target.backend
    with retraced(arguments.plan):
        chart = seen.seen(plan, candidate, other, slow.stages)
        schedules = seen.compared(plan, candidate, slow.stages) if arguments.compare else None
    ascii_only = not (sys.stdout.encoding or "").lower().startswith("utf")
    show(
        arguments,
        lambda: compared.chart_data(chart, schedules) | _replicas(candidate.parallel.dp, slow.replica),
        lambda: [
            chart.title,
            *chart.notes,
            terminal.drawing(chart, width or PLAIN_WIDTH, ascii_only),
            *(compared.blocks(schedules, backend, every=arguments.all) if schedules is not None else ()),
            *([ideal.replica_table(candidate.parallel.dp, slow.replica)] if slow.replica is not None else ()),
        ],
    )
    return 0


@dataclass(frozen=True, slots=True)
class Slow:
    """The stragglers that --slow names."""

    stages: dict[int, float]
    replica: float | None = None


def _slow(words: Sequence[str], problems: Problems) -> Slow:
    """Read the options; what is wrong with them is gathered."""
    stages: dict[int, float] = {}
    replica = None
    for text in words:
        where, _, times = text.partition("=")
        try:
            factor = float(times)
        except ValueError:
            factor = 0.0
        if not 1.0 <= factor <= MOST_SLOW or not (where == "replica" or re.fullmatch("[0-9]{1,6}", where)):
            need = f"a stage's number or `replica`, =, and 1 to {MOST_SLOW:g}, as 2=1.5"
            problems.add(Problem("this is no straggler", field="--slow", got=text, need=need))
        elif where == "replica":
            replica = factor
        else:
            stages[int(where)] = factor
    return Slow(stages, replica)


def _without_plan(arguments: argparse.Namespace, slow: Slow, problems: Problems) -> int:
    """Show every schedule on equal stages, replicas of which one is slow, or both."""
    from symconfig.report.timeline import ideal, seen
    from symconfig.report.timeline.compared import refusals
    from symconfig.schedule.even import every

    of_a_plan = ("candidate", "schedule", "compare", "all", "width")
    refuse(problems, arguments, of_a_plan, "this needs a plan")
    bounds = {"stages": (2, MOST_STAGES), "microbatches": (1, MOST_MICROBATCHES), "replicas": (2, MOST_REPLICAS)}
    stages, microbatches, replicas = (
        problems.read(partial(ranged, f"--{name}", least=least, most=most), getattr(arguments, name))
        for name, (least, most) in bounds.items()
    )
    if arguments.stages is arguments.replicas is None:
        need = "PLAN.json, or --stages and --microbatches, or --replicas"
        problems.add(Problem("there is nothing to draw", need=need))
    if (arguments.stages is None) != (arguments.microbatches is None):
        problems.add(Problem("one without the other", field="--stages", need="--stages and --microbatches"))
    if (arguments.replicas is None) != (slow.replica is None):
        problems.add(Problem("one without the other", field="--replicas", need="--replicas and --slow replica=TIMES"))
    if slow.stages and arguments.stages is None:
        problems.add(Problem("a stage that is slow needs stages", field="--slow", need="PLAN.json or --stages"))
    factors = problems.read(partial(seen.slower, slow.stages), stages)
    if problems.all:
        raise InputError(problems.all)
    blocks: list[Block] = []
    data: dict[str, Any] = {"schema": "symconfig.schedules/1"}
    if stages is not None and microbatches is not None and factors is not None:
        able, refused = every(stages, microbatches, factors)
        blocks += [ideal.table(able, stages, microbatches), "\n".join(refusals(refused))]
        data["schedules"] = ideal.to_dict(able, refused)
    if replicas is not None and slow.replica is not None:
        blocks.append(ideal.replica_table(replicas, slow.replica))
        data |= _replicas(replicas, slow.replica)
    show(arguments, lambda: data, lambda: [block for block in blocks if block])
    return 0


def _replicas(count: int, slow: float | None) -> dict[str, Any]:
    from symconfig.report.timeline import ideal

    return {} if slow is None else {"replicas": ideal.replicas_to_dict(count, slow)}


def _width(text: str | None) -> int:
    from symconfig.report.grid import page_width

    if text is None:
        return page_width(sys.stdout) or PLAIN_WIDTH
    return ranged("--width", text, LEAST_WIDTH, MOST_WIDTH)


def _candidate(plan: Plan, text: str | None) -> Candidate:
    every = (plan.best, *plan.alternatives)
    return every[ranged("--candidate", text or "1", 1, len(every)) - 1]
