"""SWEEP.yaml: which fields of a job take which values, and the combinations that follow, in a written order.

schema: symconfig.sweep/1
job:                                # what all plans have alike: any field of JOB.yaml
  seq_length: 4096
sweep:                              # fields of JOB.yaml with a list each; the last one varies fastest
  model: [llama2-7b, llama2-13b]
  cluster: [a100-80gb, h100]
  gpus: [8, 16, 32]
  global_batch_size: [256, 512]
  limits.memory_margin: [0.04, 0.1]
  pins.tp: [null, 8]                # null: the field is left out
exclude:                            # a combination that a rule matches in all its fields is not planned
  - {model: llama2-7b, gpus: [16, 32]}

What is wrong is said with the line of the file, all at once. A value of one field is right or wrong whatever the
others are, so each is tried once, with the first value of each other field.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from math import prod
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field

from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.document import MAX_PROBLEMS, Document, KeyPath
from symconfig.descriptor.job import PIN_NAMES, Job, Limits, Lora
from symconfig.descriptor.load import load_cluster, load_model
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.strict import Strict, validate
from symconfig.errors import MISSING_FIELD, UNKNOWN_FIELD, InputError, Problem, nearest, reworded
from symconfig.plans.plan import digest
from symconfig.solve.pins import parse

LIMIT = 10_000
ID_LETTERS = 16  # of SHA-256 in hexadecimal: among a million, two are alike with a probability of 3e-8
_NOT_SWEPT = ("schema", "training")  # a plan passes the training on and never looks at it
Fields = dict[str, Any]
T = TypeVar("T", ModelDescriptor, ClusterDescriptor)


class SweepFile(Strict):
    """The contents of the file; its values are held against a job's fields by `points`."""

    schema_: Literal["symconfig.sweep/1"] = Field(default="symconfig.sweep/1", alias="schema")
    job: Fields = Field(default_factory=dict)
    sweep: dict[str, Annotated[list[Any], Field(min_length=1)]] = Field(min_length=1)
    exclude: tuple[Annotated[Fields, Field(min_length=1)], ...] = ()


@dataclass(frozen=True, slots=True)
class Point:
    """One job of a sweep. id: digest of its inputs; job: fields of a JOB.yaml."""

    id: str
    job: Mapping[str, Any]
    model: ModelDescriptor
    cluster: ClusterDescriptor


@dataclass(frozen=True, slots=True)
class Points:
    """The jobs of a sweep. combinations: number of all; excluded: number excluded by rules. idle: numbers (from 1)
    of rules that match none.
    """

    points: tuple[Point, ...]
    combinations: int
    excluded: int
    idle: tuple[int, ...]


def digest_of(described: ModelDescriptor | ClusterDescriptor) -> str:
    return digest(described.model_dump(mode="json", by_alias=True))


def point_id(job: Mapping[str, Any], model: str, cluster: str) -> str:
    """Return the id of a point: ID_LETTERS hexadecimal digits of a digest of the job (from `with_defaults`) and of the
    digests of model and cluster (`digest_of`).
    """
    return digest({"job": dict(job), "model": model, "cluster": cluster})[:ID_LETTERS]


def swept() -> tuple[str, ...]:
    """Return the names allowed in `sweep` and `exclude`: fields of a job, and `limits.`, `lora.` and `pins.` names."""
    whole = [name for name, field in Job.model_fields.items() if (field.alias or name) not in _NOT_SWEPT]
    limits, lora = (f"limits.{name}" for name in Limits.model_fields), (f"lora.{name}" for name in Lora.model_fields)
    return (*whole, *limits, *lora, *(f"pins.{name}" for name in PIN_NAMES))


def get(job: Mapping[str, Any], name: str) -> Any:
    """Return the value of a field or `section.field`; None if it is missing or the section is no mapping."""
    section, _, inner = name.partition(".")
    value = job.get(section)
    if not inner:
        return value
    return value.get(inner) if isinstance(value, Mapping) else None


def put(job: Fields, name: str, value: Any) -> None:
    """Set a field, or `section.field` in a copy of the section, in `job` itself; None removes it, and a section that
    becomes empty.
    """
    section, _, inner = name.partition(".")
    if inner:
        whole = dict(job.get(section) or {})
        put(whole, inner, value)
        put(job, section, whole or None)
    elif value is None:
        job.pop(name, None)
    else:
        job[name] = value


def with_defaults(job: Mapping[str, Any]) -> Fields:
    """Return a job's fields validated and with defaults. Raises ValidationError for an invalid job."""
    return Job.model_validate_json(json.dumps(dict(job))).model_dump(mode="json", by_alias=True)


def points(document: Document, folder: Path | None, limit: int = LIMIT) -> Points:
    """Return all distinct combinations that are not excluded, the last field varying fastest; duplicates count once.
    folder: base of relative paths. Raises InputError with all problems (at most MAX_PROBLEMS), for more than `limit`
    combinations, and if all are excluded.
    """
    with reworded(_of_one_job):
        file = validate(document, SweepFile)
    total = prod(map(len, file.sweep.values()))
    if total > limit:
        sizes = " x ".join(f"{len(values):,} {name}" for name, values in file.sweep.items())
        what, hint = "the sweep has too many combinations", f"shorter lists, or --limit {total}"
        raise InputError(what, field="sweep", got=f"{sizes} = {total:,}", need=f"at most {limit:,}", hint=hint)
    reading = _Reading(document, file)
    reading.check()
    models, clusters = reading.loaded("model", load_model, folder), reading.loaded("cluster", load_cluster, folder)
    if reading.problems:
        raise InputError(list(dict.fromkeys(reading.problems))[:MAX_PROBLEMS])
    rules = [
        {name: value if isinstance(value, list) else [value] for name, value in rule.items()} for rule in file.exclude
    ]
    kept, idle, excluded = dict[str, Point](), set(range(len(rules))), 0
    of_models, of_clusters = ({name: digest_of(one) for name, one in loaded.items()} for loaded in (models, clusters))
    for values in product(*file.sweep.values()):
        job = reading.job(dict(zip(file.sweep, values, strict=True)))
        known = with_defaults(job)
        matching = {
            number
            for number, rule in enumerate(rules)
            if all(_among(get(job, name), each) or _among(get(known, name), each) for name, each in rule.items())
        }
        if matching:
            idle -= matching
            excluded += 1
            continue
        model, cluster = models[job["model"]], clusters[job["cluster"]]
        id = point_id(known, of_models[job["model"]], of_clusters[job["cluster"]])
        point = Point(id, job, model, cluster)
        kept.setdefault(point.id, point)
    if not kept:
        raise InputError("the rules leave nothing to plan", field="exclude", got=f"all of {total:,} excluded")
    return Points(tuple(kept.values()), total, excluded, tuple(sorted(number + 1 for number in idle)))


def _among(value: Any, values: Sequence[Any]) -> bool:
    """Return whether a value equals one of others, or is written as one is (2 and "2")."""
    return value in values or str(value) in map(str, values)


def _of_one_job(problem: Problem) -> Problem:
    """Return the problem in other words if `sweep` is missing, or a job's field stands at the top of the file instead
    of below `job` or `sweep`; others unchanged.
    """
    if problem.what == MISSING_FIELD and problem.field == "sweep":
        what = "no field of the job has several values"
        return replace(problem, what=what, field=None, hint="`sweep: {gpus: [8, 16]}`, or `symconfig plan` for one job")
    if problem.what == UNKNOWN_FIELD and problem.field in swept():
        need = "under `job:`, or with a list of values under `sweep:`"
        return replace(problem, what="is no field of the sweep itself", need=need, hint=None)
    return problem


@dataclass(slots=True)
class _Reading:
    """Validates a sweep's document against a job's fields; collects `problems`."""

    document: Document
    file: SweepFile
    problems: list[Problem] = field(default_factory=list)

    def check(self) -> None:
        """Collect problems of the names in `sweep` and `exclude`; if there are none, validate each swept value in a job
        once. Wrong are unknown names, and in `sweep` those also set in `job` or whose section is swept whole.
        """
        known = swept()
        places: list[KeyPath] = [("sweep", name) for name in self.file.sweep]
        places += [("exclude", number, name) for number, rule in enumerate(self.file.exclude) for name in rule]
        for path in places:
            name = str(path[-1])
            wrong = partial(self.document.problem, path=path, of_key=True)
            if name not in known:
                hint = nearest(name, known)
                need = None if hint else "a field of JOB.yaml, or limits.NAME, lora.NAME or pins.NAME"
                self.problems.append(wrong("cannot be swept", need=need, hint=hint))
            elif path[0] == "sweep" and get(self.file.job, name) is not None:
                self.problems.append(wrong("stands in `job`, too", hint="one of them"))
            elif path[0] == "sweep" and (section := name.rpartition(".")[0]) in self.file.sweep:
                self.problems.append(wrong(f"`{section}` is swept whole, too", hint="one of them"))
        if not self.problems:
            for name, values in self.file.sweep.items():
                for entry, value in enumerate(values):
                    self._try(self.job({name: value}), name, entry)

    def job(self, values: Mapping[str, Any]) -> Fields:
        """Return a job with these values; other swept fields have their first value."""
        made: Fields = json.loads(json.dumps(self.file.job))
        for name, first in self.file.sweep.items():
            put(made, name, values.get(name, first[0]))
        return made

    def _try(self, job: Fields, name: str, entry: int) -> None:
        """Validate a job that has the value under test, with its pins, and collect its problems at the places in the
        document that gave their fields; a missing field has none. name, entry: the swept field, and the value's index
        in its list; another swept field's problem is placed at its first value.
        """
        try:
            parse(validate(Document(job, file=""), Job).pins)
        except InputError as error:
            for problem in error.problems:
                about = problem.field or ""
                swept = next((one for one in self.file.sweep if f"{about}.".startswith((f"{one}.", f"{one}["))), None)
                if swept is not None:
                    self._place(problem, ("sweep", swept, entry if swept == name else 0))
                elif problem.what == MISSING_FIELD:
                    need = "in `job` or, as a list, in `sweep`"
                    self.problems.append(replace(problem, file=self.document.file or None, need=need))
                else:
                    self._place(problem, ("job", *about.split(".")))

    def _place(self, problem: Problem, path: KeyPath, more: str = "") -> None:
        """Collect a problem with the line and column of a path in the document."""
        there = self.document.problem(problem.what, path)
        where = f"{there.field}: {more}" if more else there.field
        self.problems.append(replace(problem, file=there.file, line=there.line, column=there.column, field=where))

    def loaded(self, name: str, load: Callable[[str, Path | None], T], folder: Path | None) -> dict[str, T]:
        """Return {name: descriptor} of the models or clusters that the document names; problems of those that do not
        load are collected. Values that are no text are skipped. load: called with (name, folder).
        """
        places: list[tuple[Any, KeyPath]] = [(self.file.job[name], ("job", name))] if name in self.file.job else []
        places += [(value, ("sweep", name, entry)) for entry, value in enumerate(self.file.sweep.get(name, ()))]
        made = dict[str, T]()
        for value, path in places:
            try:
                if isinstance(value, str) and value:
                    made[value] = load(value, folder)
            except InputError as error:
                for problem in error.problems:
                    if problem.file and problem.file != self.document.file:
                        self.problems.append(problem)  # of the descriptor's own file
                    else:  # a field that the name of the cluster changes
                        self._place(problem, path, (problem.field or "").partition(".")[2])
        return made
