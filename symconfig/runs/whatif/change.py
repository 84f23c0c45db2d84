"""What a strategy is worth when the job changes: kept as it is, against one that is found anew.

SymTensor's adaptability (its evaluation's question: what does a strategy cost that was right before the change?): the
changed job is solved as `replan` solves it, and the old plan judged under it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.document import Document, plain
from symconfig.descriptor.job import Job
from symconfig.descriptor.load import load_cluster, load_model
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.strict import validate
from symconfig.errors import InputError, Problem, SymconfigError, nearest
from symconfig.plans.plan import Plan
from symconfig.runs.adapted import bare
from symconfig.runs.best import best_plan
from symconfig.runs.replan.changes import Judgement, carried, judged
from symconfig.runs.replan.diff import revised

_NOT_CHANGED = ("schema", "pins", "training", "edited")  # of a job, by its fields
Change = Mapping[str, str]
Progress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class Case:
    """A change: the plan before it, the plan of the changed job (None: `why`), and the verdict on the old one there."""

    change: Change
    old: Plan
    new: Plan | None
    kept: Judgement | None
    why: str = ""

    @property
    def name(self) -> str:
        """Return the change as `name=value, name=value`."""
        return ", ".join(f"{name}={value}" for name, value in self.change.items())

    @property
    def gain(self) -> float | None:
        """Return the throughput of the new plan over the kept one's; None if either does not run or fit, or the kept
        one fits only with too high a risk.
        """
        return 1 + self.kept.slower if self.kept is not None and self.kept.safe else None


def through_changes(plan: Plan, changes: Sequence[Change], progress: Progress | None = None) -> tuple[Case, ...]:
    """Return a case for each change. A search that fails gives a case without a plan. Raises InputError with all
    invalid changes.
    """
    jobs, problems = [], list[Problem]()
    for change in changes:
        try:
            jobs.append(changed(plan, change))
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems)
    cases = []
    for change, (model, cluster, job) in zip(changes, jobs, strict=True):
        try:
            new = best_plan(model, cluster, job, top=1, progress=progress)
            cases.append(Case(change, plan, new, judged(new, carried(plan.best, new))))
        except SymconfigError as error:
            cases.append(Case(change, plan, None, None, error.problems[0].what))
    return tuple(cases)


def changed(plan: Plan, change: Change) -> tuple[ModelDescriptor, ClusterDescriptor, Job]:
    """Return the model, cluster and job of a plan with changed fields of the job. Raises InputError with all problems:
    unknown fields, descriptors that do not load, an invalid job.
    """
    known = [name for name in Job.model_fields if name not in _NOT_CHANGED]
    problems = [
        Problem("is no field of the job that can change", field=f"change.{name}", hint=nearest(name, known))
        for name in change
        if name not in known
    ]
    model, cluster = bare(plan.model, plan.job), plan.cluster
    try:
        model = load_model(change["model"]) if "model" in change else model
        cluster = load_cluster(change["cluster"]) if "cluster" in change else cluster
    except InputError as error:
        problems += error.problems
    fields = revised(plan, {name: _read(value) for name, value in change.items() if name in known})
    try:
        job = validate(Document(fields, file=""), Job)
    except InputError as error:
        raise InputError([*problems, *error.problems]) from None
    if problems:
        raise InputError(problems)
    return model, cluster, job


def _read(text: str) -> Any:
    """Return a text as an unquoted scalar of YAML; none, in any case, is None, too."""
    if text.lower() == "none":
        return None
    try:
        return plain(text)
    except ValueError:  # no number that a float holds
        return text


def parsed(words: Iterable[str]) -> tuple[Change, ...]:
    """Return the changes {name: value} of texts `name=value[,name=value…]`, stripped; a repeated name has its last
    value. Raises InputError with all malformed texts.
    """
    changes, problems = list[Change](), list[Problem]()
    for word in words:
        parts = [part.partition("=") for part in word.split(",")]
        if any(not name.strip() or not sign or not value.strip() for name, sign, value in parts):
            need = "NAME=VALUE, or several with commas between"
            problems.append(Problem("is no change", field="--change", got=word, need=need))
            continue
        changes.append({name.strip(): value.strip() for name, _, value in parts})
    if problems:
        raise InputError(problems)
    return tuple(changes)
