"""`symconfig explain`: why a plan is the first, its formulas with numbers in them, or its schedule, stage by stage."""

from __future__ import annotations

import argparse

from symconfig.cli.options import PLAN, adds, flag, option
from symconfig.cli.shared import JSON, output, plan_of, refuse, show, whole, write_text
from symconfig.errors import InputError, Problem

DOES = "why a plan is the first, where its time and memory go, how every tensor is split; its schedule"
EXAMPLES = (
    "symconfig explain out",
    "symconfig explain out --timeline",
)


add_options = adds(
    lambda: (
        option("plan", "PLAN.json", PLAN),
        flag("--all", "also each operator and tensor, each formula and symbol"),
        "the schedule",
        flag("--timeline", "the schedule, stage by stage"),
        option("--candidate", "N", "which one of the plan's ranking (default 1, the best)", type=whole),
        option("--trace", "FILE.json", "write its events there, for ui.perfetto.dev or chrome://tracing"),
        flag("--force", "replace a file that exists"),
    )
)


def run(arguments: argparse.Namespace) -> int:
    """Print the explanation of the best plan (with --all or --json in full, with formulas), or with --timeline the
    simulated schedule of the plan --candidate; return 0. Writes the schedule's trace with --trace. Raises InputError,
    also for a candidate that does not exist and for options of the schedule without --timeline.
    """
    from symconfig.report import explanation as report
    from symconfig.report.timeline import chart_data, simulated, stage_rows, trace
    from symconfig.solve.explain import explain
    from symconfig.solve.plan_symbols import symbolic
    from symconfig.solve.predict import retraced

    problems = arguments.problems
    if not arguments.timeline:
        refuse(arguments, ("candidate", "trace", "force"), "is of the schedule", need="--timeline")
    plan, path = problems.collect(lambda: plan_of(arguments.plan)), output(arguments, "trace", JSON)
    every = () if plan is None else (plan.best, *plan.alternatives)
    if plan is not None and arguments.candidate is not None and arguments.candidate > len(every):
        need = f"a whole number from 1 to {len(every)}"
        problems.add(Problem("out of range", field="--candidate", got=str(arguments.candidate), need=need))
    if problems.all or plan is None:
        raise InputError(problems.all)
    with retraced(arguments.plan):
        if arguments.timeline:
            chart = simulated(plan, every[(arguments.candidate or 1) - 1])
            if path is not None:
                write_text(path, trace(chart), arguments.force)
            show(arguments, lambda: chart_data(chart), lambda: [chart.title, *chart.notes, stage_rows(chart)])
        elif arguments.json or arguments.all:
            explained, costs = explain(plan), symbolic(plan, plan.best)
            show(
                arguments,
                lambda: report.to_dict(plan, explained, costs),
                lambda: [*report.blocks(plan), *report.details(explained, costs)],
            )
        else:
            show(arguments, dict, lambda: report.blocks(plan))
    return 0
