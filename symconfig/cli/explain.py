"""Commands that look closer: `explain` a plan, `whatif` something varies, `validate` predictions."""

from __future__ import annotations

import argparse

from symconfig.cli.options import ASSUME, PLAN, Command, flag, option, repeated
from symconfig.cli.shared import JSON, file_of, output, plan_of, refuse, show, whole, working, write_text
from symconfig.errors import Problem


def run_explain(arguments: argparse.Namespace) -> int:
    """Print the explanation of the best plan (with --all or --json in full, with formulas), or with --timeline the
    simulated schedule of the plan --candidate; return 0. Writes the schedule's trace with --trace. Raises InputError,
    also for a candidate that does not exist and for options of the schedule without --timeline.
    """
    from symconfig.report import explanation as report
    from symconfig.report.timeline import chart_data, simulated, stage_rows, trace
    from symconfig.solve.explain import explain
    from symconfig.solve.predict import retraced
    from symconfig.solve.symbolic import symbolic

    problems = arguments.problems
    if not arguments.timeline:
        refuse(arguments, ("candidate", "trace", "force"), "is of the schedule", need="--timeline")
    plan, path = problems.collect(lambda: plan_of(arguments.plan)), output(arguments, "trace", JSON)
    candidate = problems.read(lambda plan: plan.candidate(arguments.candidate or 1), plan)
    plan, candidate = problems.need(plan), problems.need(candidate)
    with retraced(arguments.plan):
        if arguments.timeline:
            chart = simulated(plan, candidate)
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


def run_whatif(arguments: argparse.Namespace) -> int:
    """Print how the plan fares when values vary (--vary; returns 0) or the job changes (--change; returns 1 if a
    changed job has no plan, else 0). Raises InputError, also unless exactly one of the two is given.
    """
    from symconfig.report import whatif as report
    from symconfig.runs.whatif import parsed, through_changes, varied, whatif

    problems = arguments.problems
    plan = problems.collect(lambda: plan_of(arguments.plan))
    if bool(arguments.vary) == bool(arguments.change):
        what = "cannot be given together" if arguments.vary else "one of them is needed"
        problems.add(Problem(what, field="--vary and --change", hint="symconfig whatif --help"))
    changes = problems.collect(lambda: parsed(arguments.change)) if arguments.change else None
    varies = problems.read(lambda plan: varied(plan, arguments.vary), plan) if arguments.vary else None
    plan = problems.need(plan)
    with working() as progress:
        if varies is not None:
            answer = whatif(plan, varies, lambda done: progress.say(f"{done} searches"))
        cases = through_changes(plan, changes, progress) if changes is not None else ()
    if varies is not None:
        show(arguments, lambda: report.ranges_data(answer), lambda: report.ranges(answer))
        return 0
    show(arguments, lambda: report.changes_data(cases), lambda: report.changes(cases))
    return 0 if all(case.new is not None for case in cases) else 1


def run_validate(arguments: argparse.Namespace) -> int:
    """Print predictions against measured runs, with --assume's assumptions first; return 1 if no row could be
    predicted, else 0. Raises InputError for files that cannot be read.
    """
    from symconfig.measured.assumptions import assuming
    from symconfig.measured.runs import read
    from symconfig.measured.score import source
    from symconfig.report import validation

    scores = []
    with assuming(file_of(arguments.assume)), working() as progress:
        for name, content in read(arguments.files):
            progress.say(f"predicting {len(content.rows)} runs of {name}")
            scores.append(source(name, content))
    show(arguments, lambda: validation.validation_data(scores), lambda: validation.validation_blocks(scores))
    return 0 if any(item.rows for item in scores) else 1


COMMANDS = (
    Command(
        name="explain",
        does="say why a plan ranks first, where its time and memory go, how every tensor is split; show its schedule",
        examples=("symconfig explain out", "symconfig explain out --timeline"),
        rows=lambda: (
            option("plan", "PLAN.json", PLAN),
            flag("--all", "also show each operator and tensor, each formula and symbol"),
            "the schedule",
            flag("--timeline", "the schedule, stage by stage"),
            option("--candidate", "N", "rank of the candidate in the plan (default 1, the best)", type=whole),
            option("--trace", "FILE.json", "write its events there, for ui.perfetto.dev or chrome://tracing"),
            flag("--force", "replace a file that exists"),
        ),
        run=run_explain,
    ),
    Command(
        name="whatif",
        does="find where a plan stays the best (batches, sequences, rates), and what it loses when the job changes",
        examples=(
            "symconfig whatif out --vary network=0.5..2x",
            "symconfig whatif out --change seq_length=16384 --change model=mixtral-8x7b",
        ),
        rows=lambda: (
            option("plan", "PLAN.json", PLAN),
            repeated(
                "--vary",
                "NAME=LOW..HIGH",
                "the best plan over a range, again for each: global_batch_size=64..4096, seq_length=2048..16384, or a "
                "factor of the cluster's network, links, compute, memory_bandwidth or memory: network=0.5..2x",
            ),
            repeated(
                "--change",
                "NAME=VALUE",
                "what the plan loses that is kept: a field of the job, model=NAME or cluster=NAME; commas "
                "join what changes at once; may be repeated",
            ),
        ),
        run=run_whatif,
    ),
    Command(
        name="validate",
        does="compare predictions with measured runs",
        examples=("symconfig validate runs.yaml",),
        rows=lambda: (
            option("files", "FILE", "measured runs (symconfig.measurements/1), or folders of such files", nargs="+"),
            ASSUME,
        ),
        run=run_validate,
    ),
)
