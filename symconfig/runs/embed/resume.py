"""Whether a run can go on from its checkpoint with a plan that was solved again while it started."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from symconfig.errors import Problem
from symconfig.plans.plan import Plan
from symconfig.runs.checkpoint import Loadable, exists, loadable, of_folder, read
from symconfig.runs.embed.mismatch import MismatchError


def resumed(plan: Plan, fresh: Plan) -> Loadable:
    """Judge the checkpoint that the job of `plan` loads in a run of `fresh`.

    Without one yet, one that `plan` would save.

    Raises MismatchError where it does not load as it lies with the options that are on the command line, so that no run
    starts from nothing because its cluster is another one; InputError where it is damaged.
    """
    named = plan.training.load
    folder = Path(named) if named is not None else None
    if folder is None or not exists(folder):  # the first start of a run that saves there
        return loadable(plan, fresh)
    loads = of_folder(read(folder), fresh, plan)
    if not _with_what_is_given(loads):
        raise MismatchError(_problem(folder, loads, fresh))
    return loads


def _with_what_is_given(loads: Loadable) -> bool:
    """Tell whether nothing is to be done first, and the script was started with every option that loading needs."""
    options = loads.options("new")
    complete = all(step.run == "new" and step.kind == "options" for step in loads.how) and set(options) <= set(sys.argv)
    return complete and loads.loads and (loads.verdict.unconverted or bool(options))


def _problem(folder: Path, loads: Loadable, fresh: Plan) -> Problem:
    job, options = fresh.job, shlex.join(loads.options("new"))
    command = shlex.join(
        [
            "symconfig",
            "replan",
            "PLAN.json",
            "--gpus",
            str(job.gpus),
            "--megatron-version",
            job.megatron_version,
            "--checkpoint",
            str(folder),
        ]
    )
    steps = [step.kind != "options" or step.run != "new" for step in loads.how]
    first = f"{options} on the command line, or " if options and not any(steps) else ""
    return Problem(
        f"the plan that was solved again for what is here cannot go on from this checkpoint as it is: {loads.verdict}"
        + (f"; {loads.reasons[0].text}" if loads.reasons else ""),
        file=str(folder),
        field="training.load",
        hint=f"{first}{command}, which says what loads and how",
    )
