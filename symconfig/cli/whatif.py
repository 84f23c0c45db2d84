"""`symconfig whatif`: over which changes a plan stays the best one, and what it loses."""

from __future__ import annotations

import argparse

from symconfig.cli.options import PLAN, adds, option, repeated
from symconfig.cli.shared import plan_of, show, working
from symconfig.errors import InputError, Problem

DOES = "over which batches, sequences and rates a plan stays the best; what it loses when the job changes"
EXAMPLES = (
    "symconfig whatif out --vary network=0.5..2x",
    "symconfig whatif out --change seq_length=16384 --change model=mixtral-8x7b",
)


add_options = adds(
    lambda: (
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
    )
)


def run(arguments: argparse.Namespace) -> int:
    """Print how the plan fares when values vary (--vary; returns 0) or the job changes (--change; returns 1 if a
    changed job has no plan, else 0). Raises InputError, also unless exactly one of the two is given.
    """
    from symconfig.report import whatif as report
    from symconfig.runs.whatif.change import parsed, through_changes
    from symconfig.runs.whatif.whatif import varied, whatif

    problems = arguments.problems
    plan = problems.collect(lambda: plan_of(arguments.plan))
    if bool(arguments.vary) == bool(arguments.change):
        what = "cannot be given together" if arguments.vary else "one of them is needed"
        problems.add(Problem(what, field="--vary and --change", hint="symconfig whatif --help"))
    changes = problems.collect(lambda: parsed(arguments.change)) if arguments.change else None
    varies = problems.read(lambda plan: varied(plan, arguments.vary), plan) if arguments.vary else None
    if problems.all or plan is None:
        raise InputError(problems.all)
    with working() as progress:
        if varies is not None:
            answer = whatif(plan, varies, lambda done: progress.say(f"{done} searches"))
        cases = through_changes(plan, changes, progress) if changes is not None else ()
    if varies is not None:
        show(arguments, lambda: report.ranges_data(answer), lambda: report.ranges(answer))
        return 0
    show(arguments, lambda: report.changes_data(cases), lambda: report.changes(cases))
    return 0 if all(case.replanned.plan is not None for case in cases) else 1
