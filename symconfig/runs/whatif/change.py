"""What a strategy is worth when something changes: kept as it is, against one that is found anew.

SymTensor's adaptability (its evaluation's question: what does a strategy cost that was right before the change?)
through the same searches as every plan: the old plan's choices become pins of the changed job.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.document import Document
from symconfig.descriptor.job import Job
from symconfig.descriptor.load import load_cluster, load_model
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.strict import validate
from symconfig.errors import InputError, Problem, SymconfigError, nearest
from symconfig.plans.plan import Plan
from symconfig.runs.adapted import bare
from symconfig.runs.best import best_plan
from symconfig.runs.replan.changes import pins

KEPT = ("tp", "pp", "vpp", "cp", "ep", "etp", "mbs", "zero", "sp", "recompute", "cp_comm")
_WHOLE = ("model", "cluster")
_NOT_CHANGED = ("schema", "model", "cluster", "pins", "training", "edited")  # of a job, by its fields
Change = Mapping[str, str]
Progress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """A plan, or None and why there is none."""

    plan: Plan | None
    why: str = ""

    @property
    def tokens_per_s(self) -> float | None:
        """Return the tokens per second of all GPUs; None without a plan."""
        if self.plan is None:
            return None
        predicted = self.plan.fastest.predicted
        return predicted.tokens_per_s_per_gpu * self.plan.fastest.configuration.world_size

    @property
    def relaxed(self) -> tuple[str, ...]:
        """Return the labels of limits that the search relaxed as nothing fits otherwise, without pinned ones; ()
        without a plan."""
        return () if self.plan is None else tuple(one.label for one in self.plan.search.opened if not one.pinned)


@dataclass(frozen=True, slots=True)
class Case:
    """A change: the plan before it, the plan after it with the old choices kept (`pins`), and a new plan. Of each
    plan `fastest` counts.
    """

    change: Change
    before: Outcome
    pins: Mapping[str, str]
    kept: Outcome
    replanned: Outcome

    @property
    def name(self) -> str:
        """Return the change as `name=value, name=value`."""
        return ", ".join(f"{name}={value}" for name, value in self.change.items())

    @property
    def gain(self) -> float | None:
        """Return the throughput of the new plan over the kept one's; None if either has no plan, or the kept one needs
        relaxed limits that the new one does not.
        """
        kept, anew = self.kept.tokens_per_s, self.replanned.tokens_per_s
        if set(self.kept.relaxed) - set(self.replanned.relaxed):
            return None
        return anew / kept if kept and anew else None


@dataclass(frozen=True, slots=True)
class Setting:
    """A model, a cluster and a job, before a change or after it."""

    model: ModelDescriptor
    cluster: ClusterDescriptor
    job: Job


def through_changes(plan: Plan, changes: Sequence[Change], progress: Progress | None = None) -> tuple[Case, ...]:
    """Return a case per change: the plan itself, the old choices kept as pins of the changed job, and a new search. A
    search that fails is an Outcome without a plan. Raises InputError with all invalid changes.
    """
    setting = Setting(bare(plan.model, plan.job), plan.cluster, plan.job)
    after, problems = list[Setting](), list[Problem]()
    for change in changes:
        try:
            after.append(changed(setting, change))
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems)
    cases = []
    for change, new in zip(changes, after, strict=True):
        pins = dict(_kept(plan, new))
        kept = replace(new, job=new.job.model_copy(update={"pins": {**new.job.pins, **pins}}))
        cases.append(Case(change, Outcome(plan), pins, _outcome(kept, progress), _outcome(new, progress)))
    return tuple(cases)


def _kept(before: Plan, after: Setting) -> Iterator[tuple[str, str]]:
    """Yield (pin, value) of the old plan's choices KEPT; those that no pin expresses are left out, and ep and etp if
    the new model has no experts.
    """
    for name in KEPT:
        try:
            value = pins(before.fastest, (name,))[name]
        except InputError:
            continue  # layers of which some run again: no pin says it
        if name in ("ep", "etp") and after.model.experts is None:
            continue
        yield name, value


def _outcome(setting: Setting, progress: Progress | None) -> Outcome:
    try:
        return Outcome(best_plan(setting.model, setting.cluster, setting.job, top=1, progress=progress))
    except SymconfigError as error:
        return Outcome(None, error.problems[0].what)


def changed(setting: Setting, change: Change) -> Setting:
    """Return the setting with a change applied: fields of the job, `model` and `cluster` (zoo names or paths). Raises
    InputError with all problems: unknown fields, descriptors that do not load, an invalid job.
    """
    known = (*_WHOLE, *(name for name in Job.model_fields if name not in _NOT_CHANGED))
    problems = [
        Problem("is no field of the job that can change", field=f"change.{name}", hint=nearest(name, known))
        for name in change
        if name not in known
    ]
    model, cluster = setting.model, setting.cluster
    data = json.loads(setting.job.model_dump_json(by_alias=True, exclude_unset=True))
    data |= {name: _read(value) for name, value in change.items() if name in known and name not in _WHOLE}
    try:
        model = load_model(change["model"]) if "model" in change else model
        cluster = load_cluster(change["cluster"]) if "cluster" in change else cluster
    except InputError as error:
        problems += error.problems
    try:
        job = validate(Document(data | {"model": model.name, "cluster": cluster.name}, file=""), Job)
    except InputError as error:
        raise InputError([*problems, *error.problems]) from None
    if problems:
        raise InputError(problems)
    return Setting(model, cluster, job)


def _read(text: str) -> Any:
    """Return a text as bool ("true", "false"), None ("none"), int or float if it is one, in any case; else the text."""
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
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
