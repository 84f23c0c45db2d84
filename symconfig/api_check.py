"""Whether what was written from a plan is still what it says: `symconfig.check("out/")`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from symconfig.api import Wanted, files
from symconfig.descriptor.load import load_cluster, load_model
from symconfig.errors import InputError, Problem, SymconfigError
from symconfig.plan import Candidate, Plan
from symconfig.render.answer import answer
from symconfig.render.manifest import NAME
from symconfig.render.summary import duration, short
from symconfig.replan.check import (
    Checked,
    Finding,
    Manifest,
    Texts,
    left_over,
    of_files,
    of_input,
    of_templates,
    read_manifest,
)

T = TypeVar("T")


def check(path: str | Path, templates: str | Path | None = None, solve: bool = False) -> Checked:
    """Hold a folder of rendered files, or a plan alone, against what symconfig would write now. Writes nothing.

    templates: those of the user's own with which it was written. solve: also solve again from the recorded inputs, and
    say whether another plan is best. Raises InputError for what is no plan, or was written without a manifest.
    """
    place = Path(path)
    folder = place if place.is_dir() else place.parent
    manifest = read_manifest(folder) if place.is_dir() or place.name == "plan.json" else None
    if manifest is None and place.is_dir():
        below = sorted(str(path.parent) for path in folder.glob(f"*/{NAME}"))  # as `fallback` writes them
        raise InputError(Problem(f"there is no {NAME} in this folder, and without it nobody knows what was written",
                                 file=str(folder), hint=f"one of {', '.join(below)}" if below else
                                 "symconfig render DIR/plan.json --out DIR --force"))
    plan, findings = _plan(place)
    notes: list[str] = []
    if manifest is not None:
        findings += _files(folder, manifest, plan if not findings else None, Path(templates) if templates else None)
    else:
        notes.append(f"there is no {NAME} beside the plan: no files were looked at")
    findings += _inputs(plan, notes)
    if solve:
        findings += _solved(plan)
    return Checked(place, manifest, tuple(findings), tuple(notes))


def _plan(place: Path) -> tuple[Plan, list[Finding]]:
    """The plan, and what was done to it; an edited one is a finding, one that cannot be read an error."""
    try:
        return Plan.load(place), []
    except InputError as error:
        plan = Plan.read(place, accept_edits=True)
        return plan, [Finding("edited", "plan.json", f"{problem.field}: {problem.what}", problem.line)
                      for problem in error.problems]


def _files(folder: Path, manifest: Manifest, plan: Plan | None, templates: Path | None) -> list[Finding]:
    """plan: None where it was edited, and nothing can be said of what it would give."""
    found = list(of_templates(manifest, templates))
    now = Texts()
    if plan is not None:
        try:
            now = Texts.of(files(plan, Wanted(manifest.target, manifest.launchers, templates)))
        except SymconfigError as error:
            found += [Finding("stale", problem.file or manifest.target, f"cannot be written any more: {problem}")
                      for problem in error.problems]
    edited = [each for each in of_files(folder, manifest, now) if plan is not None or each.path != "plan.json"]
    return [*found, *edited, *left_over(folder, manifest)]


def _inputs(plan: Plan, notes: list[str]) -> list[Finding]:
    """The model and the cluster by the names or paths that the job has for them."""
    model = _looked_up(lambda: load_model(plan.job.model), f"model {plan.job.model}", notes)
    cluster = _looked_up(lambda: load_cluster(plan.job.cluster), f"cluster {plan.job.cluster}", notes)
    return [*(of_input(plan, "model", model) if model is not None else ()),
            *(of_input(plan, "cluster", cluster) if cluster is not None else ())]


def _looked_up(load: Callable[[], T], what: str, notes: list[str]) -> T | None:
    try:
        return load()
    except InputError:
        notes.append(f"the {what} is not found from here: whether it has changed is not known")
        return None


def _solved(plan: Plan) -> list[Finding]:
    """Whether the search still answers with this plan, and predicts of it what it did."""
    try:
        best = answer(plan.model, plan.cluster, plan.job, top=1).best
    except SymconfigError as error:
        return [Finding("answer", "best", f"there is no answer any more: {problem}") for problem in error.problems]
    if _choice(best) != _choice(plan.best):
        return [Finding("answer", "best", f"another plan is best now: {short(best)}, {duration(best.predicted.step_s)} "
                        f"a step", None, short(plan.best), short(best))]
    if best.predicted != plan.best.predicted:
        return [Finding("answer", "best.predicted", "the same plan is predicted otherwise now", None,
                        duration(plan.best.predicted.step_s), duration(best.predicted.step_s))]
    return []


def _choice(candidate: Candidate) -> object:
    return candidate.target, candidate.parallel, candidate.batch, candidate.options
