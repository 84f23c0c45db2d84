"""plan.json: read strictly, and every part held against the digest that was written with it.

A part of the inputs that does not match means that the answer is another job's; a part of the answer that does not
match, that its predictions are no longer the model's. Either is refused unless the reader is to solve again.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Protocol, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from symconfig import install
from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.document import Document, KeyPath, shorten
from symconfig.descriptor.job import Job
from symconfig.descriptor.json_strict import parse_json_strict
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.training import WholeTraining
from symconfig.descriptor.validate import problems as descriptor_problems
from symconfig.errors import MISSING_FIELD, UNKNOWN_FIELD, InputError, Problem
from symconfig.plans import shape
from symconfig.plans.digests import ANSWER, HISTORY, INPUTS, RL, SOMETIMES, TUNED, VERSION, digest, signed
from symconfig.plans.history import History
from symconfig.plans.plan import SCHEMA, Candidate, OtherPlans, Plan, Search
from symconfig.plans.rl import PlannedRl, PlannedStep
from symconfig.resources import content

WARNINGS = "warnings"  # beside the plan in the answer of `plan --json`, and said again of any plan that is read
_PARTS = ("schema", VERSION, *ANSWER, "inputs", "digests")
MAX_BYTES = 64 * 1024 * 1024
_NUMBER = re.compile(r"symconfig\.plan/(\d{1,6})")
# The type of each part of a plan, in the order in which problems are said.
_KINDS: Mapping[str, Any] = {
    "best": Candidate,
    "alternatives": tuple[Candidate, ...],
    "beside": OtherPlans,
    "search": Search,
    "binding": str,
    VERSION: str,
    HISTORY: History,
    RL: tuple[PlannedRl, ...],
    TUNED: tuple[PlannedStep, ...],
}
M = TypeVar("M", bound=BaseModel)


class HasPlan(Protocol):
    """A result with its plan."""

    @property
    def plan(self) -> Plan: ...


def loaded(plan: Plan | HasPlan | str | Path, accept_edits: bool = False) -> Plan:
    """Return the plan itself, the plan of a result, or the plan that a file or folder holds.

    accept_edits: as of `load_plan`, which also says what is raised.
    """
    if isinstance(plan, str | Path):
        return load_plan(Path(plan), accept_edits)
    return plan if isinstance(plan, Plan) else plan.plan


def load_plan(path: Path, accept_edits: bool = False) -> Plan:
    """Return the plan in `path`, or in `path/plan.json` if that is a folder.

    accept_edits: do not check digests and stages, for callers that solve again from the inputs.

    Raises:
        InputError: there is no such file, it is no plan of this version, a part was edited, or its degrees, batch or
            stages contradict the job or the model.
    """
    reading = read_plan(path, accept_edits)
    if not accept_edits and (wrong := list(shape.problems(reading, str(_file(path))))):
        raise InputError(wrong)
    return reading


def read_plan(path: Path, accept_edits: bool = False) -> Plan:
    """Return the plan in a file or folder as `load_plan` does, without checking degrees, batch and stages."""
    file = _file(path)
    if not os.path.lexists(file):
        what = "there is no plan.json in this folder" if path.is_dir() else "there is no such file"
        raise InputError(what, file=str(path), hint="symconfig plan ... --out DIR")
    if file.suffix in (".yaml", ".yml"):
        hint = f"symconfig plan {path} --out DIR, where it is a job"
        raise InputError("this is a YAML file, a plan is a folder or its plan.json", file=str(path), hint=hint)
    return parse_plan(_text(file), str(file), accept_edits)


def edited(path: Path) -> tuple[str, ...]:
    """Return the names of the parts of a plan's file that do not match their digests.

    Empty if the file has no digests, or lacks some (an older symconfig wrote it). The file must have been loaded
    before.
    """
    # The names of the parts of a plan's text that differ from their digests; the text was parsed before. Of a plan that
    # an older symconfig wrote none are known.
    data = json.loads(_text(_file(path)))
    written = data.get("digests")
    return tuple(_mismatched(data, written)) if isinstance(written, dict) and not _undigested(data, written) else ()


def _text(file: Path) -> str:
    try:
        return content(file, MAX_BYTES).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"cannot be read: {error}", file=str(file)) from None


def _file(path: Path) -> Path:
    return path / "plan.json" if path.is_dir() else path


def parse_plan(text: str, file: str = "plan.json", accept_edits: bool = False) -> Plan:
    """Return the plan in a JSON text. file: its name in error messages.

    accept_edits: do not compare digests, for callers that solve again from the inputs.

    Raises:
        InputError: it is no plan of this schema, or parts are missing, wrong or edited; all problems with their places.
    """
    document = Document(_data(text, file), file)
    _check_schema(document)
    reader = _Reader(document)
    try:
        plan = reader.plan()
        edited = [] if accept_edits else list(_edited(document))
    except RecursionError:
        raise InputError("is nested deeper than any plan", file=file) from None
    if plan is not None and not edited:
        return plan
    raise InputError(list(_with_places([*reader.problems, *edited], text, file)))


def _data(text: str, file: str) -> Any:
    """Return the parsed JSON.

    Raises:
        InputError: it is malformed, repeats a key, or has NaN or Infinity.
    """
    try:
        return json.loads(text, parse_constant=_not_finite, object_pairs_hook=_unique_keys)
    except (ValueError, RecursionError) as error:  # also an integer of thousands of digits
        parse_json_strict(text, file)  # says where, and whether the text was cut off
        raise InputError(f"is not JSON: {shorten(str(error))}", file=file) from None


def _not_finite(word: str) -> float:
    raise ValueError(f"{word} is not a number")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        raise ValueError("a key stands twice in one section")
    return mapping


def _check_schema(document: Document) -> None:
    """Raise InputError unless the document has this version's plan schema.

    The error says if it is a plan of an older or a newer symconfig.
    """
    got = document.data.get("schema") if isinstance(document.data, dict) else type(document.data).__name__
    if got == SCHEMA:
        return
    what, hint = "is not a plan of symconfig", "symconfig plan ... --out DIR writes one"
    if match := _NUMBER.fullmatch(str(got)):
        newer = int(match[1]) > int(SCHEMA.rpartition("/")[2])
        what = f"is a plan of {'a newer' if newer else 'an older'} symconfig than this one ({install.VERSION})"
        hint = "the symconfig that wrote it, or plan again with this one"
    raise InputError(what, file=document.file, field="schema", got=shorten(got), need=repr(SCHEMA), hint=hint)


class _Reader:
    """A reader of the parts of a plan, one by one, which gathers the problems of all of them."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._data: dict[str, Any] = document.data
        self.problems: list[Problem] = []

    def plan(self) -> Plan | None:
        """Return the plan; None if any part is missing, unknown or wrong, which `problems` then lists."""
        data = self._data
        for name in data:
            if name not in (*_PARTS, *SOMETIMES, WARNINGS):
                self._add((str(name),), UNKNOWN_FIELD)
        given = data.get("inputs")
        for name in given if isinstance(given, dict) else ():
            if name not in INPUTS:
                self._add(("inputs", str(name)), UNKNOWN_FIELD)
        for name in _PARTS:
            if name not in data:
                self._add((name,), MISSING_FIELD)
        model, cluster = self._input("model", ModelDescriptor), self._input("cluster", ClusterDescriptor)
        job = self._input("job", Job)
        for name in job.training.left_open if job is not None else ():
            self._add(("inputs", "job", "training", name), MISSING_FIELD)
        if job is not None and not self.problems:
            job = job.model_copy(update={"training": WholeTraining.of(job.training)})
        parts = {name: self._part(name, kind) for name, kind in _KINDS.items() if name in data}
        version = parts.pop(VERSION, None)
        if self.problems and version is not None and version != install.VERSION:
            what, hint = "another symconfig wrote this plan", "plan again with this one"
            self._add((VERSION,), what, got=version, need=install.VERSION, hint=hint)
        if self.problems or model is None or cluster is None or job is None or version is None:
            return None
        return Plan(model=model, cluster=cluster, job=job, symconfig_version=version, **parts)

    def _add(
        self, path: KeyPath, what: str, got: str | None = None, need: str | None = None, hint: str | None = None
    ) -> None:
        self.problems.append(self._document.problem(what, path, got=got, need=need, hint=hint))

    def _input(self, name: str, kind: type[M]) -> M | None:
        """Return one of the inputs as its model; None if it is missing or invalid, with the problems appended."""
        inputs = self._data.get("inputs", {})
        if not isinstance(inputs, dict):
            if name == "model":
                self._add(("inputs",), "wrong value", got=shorten(inputs), need=f"a section with {', '.join(INPUTS)}")
            return None
        if name not in inputs:
            if "inputs" in self._data:
                self._add(("inputs", name), MISSING_FIELD)
            return None
        try:
            return kind.model_validate_json(json.dumps(inputs[name]))
        except ValidationError as error:
            own = Document(inputs[name], self._document.file)
            for problem in descriptor_problems(error, own, kind):
                field = ".".join(part for part in ("inputs", name, problem.field) if part)
                self.problems.append(replace(problem, field=field))
        return None

    def _part(self, name: str, kind: Any) -> Any:
        """Return a part as its type; None if it is invalid, with the problems appended."""
        value = self._data[name]
        if is_dataclass(kind) and not isinstance(value, dict):
            self._add((name,), "wrong value", got=shorten(value), need="a section of `name: value`")
            return None
        try:
            return _adapter(kind).validate_json(json.dumps({"seconds": 0.0, **value} if kind is Search else value))
        except ValidationError as error:
            for item in error.errors(include_url=False):
                self._add((name, *item["loc"]), item["msg"], got=shorten(item["input"]))
        return None


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    """Return pydantic's adapter of a type; cached, since making it takes longer than reading a plan with it."""
    return TypeAdapter(kind)


def _undigested(data: Mapping[str, Any], written: Mapping[str, Any]) -> list[str]:
    """Return the names of the parts that should have a digest and have none.

    An older symconfig wrote fewer digests, of another text, so then no digest is comparable.
    """
    needed = (*INPUTS, VERSION, *ANSWER, *(name for name in SOMETIMES if name in data))
    return [name for name in needed if name not in written]


def _mismatched(data: Mapping[str, Any], written: Mapping[str, Any]) -> dict[str, KeyPath]:
    """Return the parts that differ from their digests, or that have a digest and are missing: name to key path."""
    edited = {
        name: path for name, (path, value) in signed(data).items() if name in written and written[name] != digest(value)
    }
    return edited | {name: (name,) for name in SOMETIMES if name in written and name not in data}


def _edited(document: Document) -> Iterator[Problem]:
    """Yield a problem for each part that differs from its digest, or a single one if digests are missing.

    Yield nothing if there is no section of digests at all, which is a missing part already.
    """
    written = document.data.get("digests")
    if not isinstance(written, dict):
        if "digests" in document.data:
            yield document.problem("wrong value", ("digests",), got=shorten(written), need="a section of digests")
        return
    if missing := _undigested(document.data, written):
        what = f"there is no digest of {', '.join(missing)}: an older symconfig wrote this plan, or it was edited"
        yield document.problem(what, ("digests",), hint=_HINT)
        return
    for name, path in _mismatched(document.data, written).items():
        says = {HISTORY: "its run need not be where it says", **dict.fromkeys(INPUTS, "the answer is not this one's")}
        why = says.get(name, "its figures need not be the plan's")
        yield document.problem(f"was edited: it does not match its digest, and {why}", path, hint=_HINT)


_HINT = "symconfig replan PLAN.json --accept-edits, which solves again from the inputs as they stand, or plan again"


def _with_places(problems: list[Problem], text: str, file: str) -> Iterator[Problem]:
    """Yield the problems with line and column of their fields.

    They have none if the text holds more values than places are kept for.
    """
    try:
        places = parse_json_strict(text, file)
    except InputError:  # more values than places are kept of
        yield from problems
        return
    for problem in problems:
        path = tuple(
            int(step) if step.isdigit() else step for step in re.split(r"[.\[\]]+", problem.field or "") if step
        )
        place = places.place(path)
        yield replace(problem, line=place.line if place else None, column=place.column if place else None)
