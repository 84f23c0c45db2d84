"""The start of a script that trains a plan: it is read, and held against what the process runs on."""

from __future__ import annotations

import logging
import shlex
import sys
import time
from pathlib import Path
from typing import Literal, get_args

from symconfig.errors import InputError, Problem
from symconfig.frameworks.entries import ENTRIES, Name
from symconfig.plans.file import HasPlan, loaded
from symconfig.plans.plan import Plan
from symconfig.render.summary import duration, short
from symconfig.runs.checkpoint import Loadable, exists, loadable, of_folder, read
from symconfig.runs.embed.mismatch import MismatchError, mismatches
from symconfig.runs.embed.solved_here import solved_here
from symconfig.runs.embed.surroundings import Surroundings, look, rank

OnMismatch = Literal["fail", "replan", "warn", "ignore"]
_log = logging.getLogger("symconfig")


def started(
    plan: Plan | HasPlan | str | Path,
    entry: Name,
    world_size: int | None = None,
    on_mismatch: OnMismatch = "fail",
    cuda: bool = True,
) -> Plan:
    """Return the plan that this process shall train. plan: itself, its file, or the folder that holds it. entry: the
    module that the script imports.

    on_mismatch: what is done where the number of ranks, the GPU or a release is not the plan's. fail: MismatchError
    with all of them. replan: solve again for the ranks and the Megatron-LM that are here, and fail for the rest, and
    where the checkpoint that the job loads is there and no run of that plan can go on from it. warn: log them on rank 0
    (logger "symconfig"). ignore: do not even look. world_size: known better by the caller than by the launcher. cuda:
    whether the GPU is looked at, which starts CUDA.

    Raises InputError for a plan that cannot be read, MismatchError, and InfeasibleError where nothing fits any more.
    """
    if on_mismatch not in get_args(OnMismatch):
        raise InputError(
            "wrong value", field="on_mismatch", got=repr(on_mismatch), need=" or ".join(get_args(OnMismatch))
        )
    ready = loaded(plan)
    if on_mismatch == "ignore":
        return ready
    surroundings = look(world_size, cuda)
    wrong = mismatches(ready, surroundings, ENTRIES[entry])
    if on_mismatch == "replan" and any(each.curable for each in wrong):
        ready = _cured(ready, surroundings)
        wrong = mismatches(ready, surroundings, ENTRIES[entry])
    if wrong and on_mismatch == "warn":
        for each in wrong if rank() == 0 else ():
            _log.warning("%s", each.problem)
    elif wrong:
        raise MismatchError([each.problem for each in wrong])
    return ready


def _cured(plan: Plan, surroundings: Surroundings) -> Plan:
    """Solve again, and let rank 0 report it: it is another plan than the one that was written down.

    Raises MismatchError where the run cannot go on from its checkpoint.
    """
    start = time.perf_counter()
    fresh = solved_here(plan, surroundings)
    loads = resumed(plan, fresh)
    if rank() == 0:
        before, after = plan.best, fresh.best
        _log.warning(
            "solved again in %s, for %d ranks and %s: %s (the plan was for %d ranks: %s)",
            duration(time.perf_counter() - start),
            after.parallel.world_size,
            f"{after.target.backend} {after.target.version}",
            f"{short(after)}, {duration(after.predicted.step_s)} a step",
            before.parallel.world_size,
            f"{short(before)}, {duration(before.predicted.step_s)} a step",
        )
        words = " ".join(loads.options("new"))
        _log.warning(
            "a checkpoint of that plan (%s) loads: %s%s; %s says why, and which plan loads it with less ado",
            loads.kind,
            loads.verdict,
            f", with {words}" if words else "",
            command(plan, fresh),
        )
    return fresh


def command(plan: Plan, fresh: Plan) -> str:
    """Return the command that makes the same plan of that one, for a person."""
    words = ["symconfig replan PLAN.json", f"--gpus {fresh.best.parallel.world_size}"]
    if fresh.job.megatron_version != plan.job.megatron_version:
        words.append(f"--megatron-version {fresh.job.megatron_version}")
    return " ".join(words)


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
    options = loads.options("new")
    complete = all(step.run == "new" and step.kind == "options" for step in loads.how) and set(options) <= set(sys.argv)
    if not (complete and loads.loads and (loads.verdict.unconverted or bool(options))):
        raise MismatchError(_problem(folder, loads, fresh))
    return loads


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
