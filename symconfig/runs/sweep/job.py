"""A sweep as it is asked for: its axes, its rules and the descriptors that they name, all held against a job's fields.

What is wrong is said with the line of SWEEP.yaml, all at once. A value of one axis is right or wrong whatever the
others are, so each is tried once and not each combination.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.document import MAX_PROBLEMS, Document, KeyPath, dotted, shorten
from symconfig.descriptor.job import Job
from symconfig.descriptor.load import load_cluster, load_model
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.validate import validate
from symconfig.errors import MISSING_FIELD, UNKNOWN_FIELD, InputError, Problem, nearest, reworded
from symconfig.runs.sweep.file import WHOLE, Series, SweepFile, swept
from symconfig.solve.pins import parse

T = TypeVar("T")
Fields = dict[str, Any]
_RANGE = re.compile(r"(\d{1,15})?\.\.(\d{1,15})?")


@dataclass(frozen=True, slots=True)
class Axis:
    """One field of the job and its values, as plain data; a dotted name is a field of a section. entries: of each
    value, which entry of the file's list gave it."""

    name: str
    values: tuple[Any, ...]
    entries: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Rule:
    """Combinations that are left out: all fields match. values: as of `with_defaults`; ranges: least and most, both
    inclusive."""

    values: Mapping[str, tuple[Any, ...]]
    ranges: Mapping[str, tuple[float, float]]

    def matches(self, job: Mapping[str, Any]) -> bool:
        """Tell whether the rule matches; job: as of `with_defaults`."""
        return all(get(job, name) in values for name, values in self.values.items()) and all(
            isinstance(value := get(job, name), int) and low <= value <= high
            for name, (low, high) in self.ranges.items()
        )


@dataclass(frozen=True, slots=True)
class SweepJob:
    """models, clusters: by the name under which a combination asks for them."""

    axes: tuple[Axis, ...]
    base: Fields
    exclude: tuple[Rule, ...] = ()
    prices: Mapping[str, float] = field(default_factory=dict)
    models: Mapping[str, ModelDescriptor] = field(default_factory=dict)
    clusters: Mapping[str, ClusterDescriptor] = field(default_factory=dict)


def get(job: Mapping[str, Any], name: str) -> Any:
    """Return the value of a field, or of a section's field; None: it is left out."""
    section, _, inner = name.partition(".")
    value = job.get(section)
    if not inner:
        return value
    return value.get(inner) if isinstance(value, Mapping) else None


def put(job: Fields, name: str, value: Any) -> None:
    """Set a field, or a section's field in a copy of the section; None leaves it out."""
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
    """Return the fields of a job as it is planned, defaults and all: `tp: 1` and `tp: "1"` of the pins are one there.

    Raises ValidationError for what is no job.
    """
    return Job.model_validate_json(json.dumps(dict(job))).model_dump(mode="json", by_alias=True)


def sweep_job(document: Document, base: Path | None) -> SweepJob:
    """Read the sweep in the document; paths in it start at `base`. Raises InputError with all that is wrong."""
    with reworded(lambda problem: _of_a_job(problem, document)):
        file = validate(document, SweepFile)
    return _Reading(document, base, file).sweep_job()


def _of_a_job(problem: Problem, document: Document) -> Problem:
    """Say of a file of one job what a sweep has beside it."""
    data = document.data if isinstance(document.data, dict) else {}
    if problem.what == MISSING_FIELD and data.get("job") and data.keys() <= SweepFile.model_fields.keys():
        what = "no field of the job has several values"
        return replace(problem, what=what, field=None, hint="`gpus: [8, 16]`, or `symconfig plan` for one job")
    if problem.what == UNKNOWN_FIELD and problem.field in swept():
        need = "under `job:`, or with a list of values under `sweep:`"
        return replace(problem, what="is no field of the sweep itself", need=need, hint=None)
    return problem


@dataclass(slots=True)
class _Reading:
    """One document being held against a job's fields. problems: all so far."""

    document: Document
    folder: Path | None
    file: SweepFile
    problems: list[Problem] = field(default_factory=list)

    def sweep_job(self) -> SweepJob:
        self._names()
        axes = [self._axis(name, values) for name, values in self.file.sweep.items()]
        if not self.problems:
            for axis in axes:
                self._try(axis, axes)
        models = self._loaded("model", axes, load_model)
        clusters = self._loaded("cluster", axes, load_cluster)
        rules = tuple(self._rule(number, rule, axes) for number, rule in enumerate(self.file.exclude))
        named = {value for axis in axes if axis.name == "cluster" for value in axis.values if isinstance(value, str)}
        for name in self.file.prices:
            if name not in {*named, *clusters} and name not in {known.name for known in clusters.values()}:
                need = "one of " + ", ".join(clusters) if clusters else None
                self._wrong("is none of the clusters that are asked for", ("prices", name), of_key=True, need=need)
        if self.problems:
            raise InputError(list(dict.fromkeys(self.problems))[:MAX_PROBLEMS])
        return SweepJob(tuple(axes), dict(self.file.job), rules, self.file.prices, models, clusters)

    def _wrong(self, what: str, path: KeyPath, **parts: Any) -> None:
        self.problems.append(self.document.problem(what, path, **parts))

    def _collect(self, make: Callable[[], T], place: Callable[[Problem], Problem] | None = None) -> T | None:
        """Return the value of `make`; None where it is wrong, which is kept, at the place of the field."""
        try:
            return make()
        except InputError as error:
            self.problems += map(place, error.problems) if place else error.problems
            return None

    def _names(self) -> None:
        known = swept()
        places: list[KeyPath] = [("sweep", name) for name in self.file.sweep]
        places += [("exclude", number, name) for number, rule in enumerate(self.file.exclude) for name in rule]
        for path in places:
            if path[-1] not in known:
                hint = nearest(str(path[-1]), known)
                need = None if hint else "a field of JOB.yaml, or limits.NAME, lora.NAME or pins.NAME"
                self._wrong("cannot be swept", path, of_key=True, need=need, hint=hint)
            elif path[0] == "sweep" and get(self.file.job, str(path[-1])) is not None:
                self._wrong("stands in `job`, too", path, of_key=True, hint="one of them")
            elif path[0] == "sweep" and (section := str(path[-1]).rpartition(".")[0]) in self.file.sweep:
                self._wrong(f"`{section}` is swept whole, too", path, of_key=True, hint="one of them")

    def _axis(self, name: str, values: list[Any]) -> Axis:
        entries = list(self._values(name, values))
        return Axis(name, tuple(value for _, value in entries), tuple(entry for entry, _ in entries))

    def _values(self, name: str, values: list[Any]) -> Iterator[tuple[int, Any]]:
        """Yield values in their order with their entry, a series in the place of its mapping.

        A repeated value counts once.
        """
        seen = set()
        for number, value in enumerate(values):
            several = [value]
            if name in WHOLE and isinstance(value, dict):
                several = self._series(("sweep", name, number), value)
            for one in several:
                if (key := json.dumps(one, sort_keys=True)) not in seen:
                    seen.add(key)
                    yield number, one

    def _series(self, path: KeyPath, value: Fields) -> list[Any]:
        def place(problem: Problem) -> Problem:
            return replace(problem, field=".".join(filter(None, (dotted(path), problem.field))))

        inner = self._collect(lambda: validate(self._below(path, value), Series), place)
        return list(inner.values) if inner else []

    def _below(self, path: KeyPath, value: Any) -> Document:
        """Return a part of the document as one of its own, with the places that it has in the file."""
        whole, length = self.document, len(path)

        def inner(places: Mapping[KeyPath, Any]) -> dict[KeyPath, Any]:
            return {there[length:]: place for there, place in places.items() if there[:length] == path}

        return Document(value, whole.file, inner(whole.keys), inner(whole.values))

    def _try(self, axis: Axis, axes: list[Axis]) -> None:
        """Try each value of an axis in a job with the others' first ones."""
        for entry, value in zip(axis.entries, axis.values, strict=True):
            job = self._job(axes, axis.name, value)
            place = partial(self._placed, axis, entry)
            job_there = self._collect(partial(validate, self._below(("job",), job), Job), place)
            if job_there is not None:
                self._collect(partial(parse, job_there.pins), place)

    def _job(self, axes: Iterable[Axis], name: str, value: Any) -> Fields:
        """Return the first of all combinations, with another value of one field."""
        job: Fields = dict(self.file.job)
        for axis in axes:
            put(job, axis.name, axis.values[0])
        put(job, name, value)
        return job

    def _settled(self, axes: Iterable[Axis], name: str, value: Any) -> Any:
        """Return a field's value as jobs have it; as it is where no job has it."""
        try:
            return get(with_defaults(self._job(axes, name, value)), name)
        except (ValidationError, IndexError):
            return value

    def _placed(self, axis: Axis, entry: int, problem: Problem) -> Problem:
        """Place a job's problem where the sweep has its subject: the axis' entry, another axis, or the shared job."""
        about = problem.field or ""
        for name in self.file.sweep:
            if about == name or about.startswith((f"{name}.", f"{name}[")):
                return self._at(("sweep", name, entry if name == axis.name else 0), problem)
        if problem.line is None or problem.what == MISSING_FIELD:
            need = "in `job` or, as a list, in `sweep`" if problem.what == MISSING_FIELD else problem.need
            return replace(self._at(("job",), problem), field=about or None, need=need)
        return replace(problem, field=f"job.{about}")

    def _at(self, path: KeyPath, problem: Problem) -> Problem:
        """Place a problem without a file of its own at this path of the sweep's."""
        if problem.file and problem.file != self.document.file:
            return problem
        there = self.document.problem(problem.what, path)
        return replace(problem, file=there.file or None, line=there.line, column=there.column, field=there.field)

    def _loaded(self, name: str, axes: list[Axis], load: Callable[[str, Path | None], T]) -> dict[str, T]:
        """Load the descriptors that the sweep names, by name."""
        places: list[tuple[Any, KeyPath]] = [(self.file.job[name], ("job", name))] if name in self.file.job else []
        places += [
            (value, ("sweep", name, entry))
            for axis in axes
            if axis.name == name
            for entry, value in zip(axis.entries, axis.values, strict=True)
        ]
        descriptors = {}
        for value, path in places:
            if isinstance(value, str) and value:
                made = self._collect(partial(load, value, self.folder), partial(self._of_descriptor, path))
                if made is not None:
                    descriptors[value] = made
        return descriptors

    def _of_descriptor(self, path: KeyPath, problem: Problem) -> Problem:
        """Place a descriptor's problem where the sweep names the descriptor, with the changed field in its name."""
        placed = self._at(path, problem)
        _, dot, changed = (problem.field or "").partition(".")
        return replace(placed, field=f"{placed.field}: {changed}") if dot and placed is not problem else placed

    def _rule(self, number: int, rule: Fields, axes: Iterable[Axis]) -> Rule:
        values: dict[str, tuple[Any, ...]] = {}
        ranges: dict[str, tuple[float, float]] = {}
        for name, value in rule.items():
            match = _RANGE.fullmatch(value.strip()) if name in WHOLE and isinstance(value, str) else None
            if match and match.group() != "..":
                ranges[name] = (float(match[1] or 0), float(match[2] or "inf"))
            elif name in WHOLE and isinstance(value, str) and value != "auto":
                self._wrong(
                    "wrong value",
                    ("exclude", number, name),
                    got=shorten(value),
                    need="a whole number, a list of them, or a range as 64..128, ..64 or 64..",
                )
            else:
                several = value if isinstance(value, list) else [value]
                values[name] = tuple(self._settled(axes, name, one) for one in several)
        return Rule(values, ranges)
