"""plan.json: read strictly, and every part held against the digest that was written with it.

A part of the inputs that does not match means that the answer is another job's; a part of the answer that does not
match, that its predictions are no longer the model's. Either is refused unless the reader is to solve again.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from pydantic import ConfigDict, TypeAdapter, ValidationError

from symconfig import install
from symconfig.descriptor.document import Document, KeyPath, shorten
from symconfig.descriptor.json_strict import parse_json_strict
from symconfig.descriptor.strict import problems as descriptor_problems
from symconfig.descriptor.training import WholeTraining
from symconfig.errors import MISSING_FIELD, UNKNOWN_FIELD, InputError, Problem
from symconfig.plans.configuration import PLACES, SECTIONS, flat
from symconfig.plans.history import History
from symconfig.plans.plan import INPUTS, SCHEMA, SOMETIMES, Candidate, OtherPlans, Plan, Search, digest, signed
from symconfig.plans.rl import PlannedRl, PlannedStep
from symconfig.resources import content, missing

MAX_BYTES = 64 * 1024 * 1024
_NUMBER = re.compile(r"symconfig\.plan/(\d{1,6})")
# What is wrong with a part, by the type of pydantic's error; other errors keep pydantic's message.
_WORDS = {"missing": MISSING_FIELD, "unexpected_keyword_argument": UNKNOWN_FIELD}
_PLANNED = ("best", "alternatives", "beside", "search", "binding", "history", "rl", "tuned")


@dataclass(frozen=True, slots=True)
class _Inputs:
    """The inputs of a plan; each is read by its own model."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)
    model: dict[str, Any]
    cluster: dict[str, Any]
    job: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Parts:
    """The parts of a plan.json as it stands. warnings: of `plan --json` alone."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)
    schema: str
    symconfig: str
    best: Candidate
    alternatives: tuple[Candidate, ...]
    beside: OtherPlans
    search: Search
    binding: str
    inputs: _Inputs
    digests: dict[str, str]
    history: History = field(default_factory=History)
    rl: tuple[PlannedRl, ...] = ()
    tuned: tuple[PlannedStep, ...] = ()
    warnings: Any = None


class HasPlan(Protocol):
    """A result with its plan."""

    @property
    def plan(self) -> Plan: ...


def loaded(plan: Plan | HasPlan | str | Path, accept_edits: bool = False) -> Plan:
    """Return the plan itself, the plan of a result, or the plan that a file or folder holds. accept_edits: as of
    `load_plan`, which also says what is raised.
    """
    if isinstance(plan, str | Path):
        return load_plan(Path(plan), accept_edits)
    return plan if isinstance(plan, Plan) else plan.plan


def load_plan(path: Path, accept_edits: bool = False) -> Plan:
    """Return the plan in `path`, or in `path/plan.json` if that is a folder. accept_edits: do not check digests, for
    callers that solve again from the inputs. Raises InputError if there is no such file, it is YAML, larger than
    MAX_BYTES or no plan of this version, or was edited.
    """
    file, hint = _file(path), "symconfig plan ... --out DIR"
    if not os.path.lexists(file):
        if path.is_dir():
            raise InputError("there is no plan.json in this folder", file=str(path), hint=hint)
        raise InputError([missing(path, "there is no such file or folder", hint)])
    if file.suffix in (".yaml", ".yml"):
        hint = f"symconfig plan {path} --out DIR, where it is a job"
        raise InputError("this is a YAML file, a plan is a folder or its plan.json", file=str(path), hint=hint)
    text = _text(file)
    if text.lstrip()[:1] not in ("", "{"):
        raise InputError("this is no plan, a plan is a folder or its plan.json", file=str(file), hint=hint)
    return parse_plan(text, str(file), accept_edits)


def edited(path: Path) -> tuple[str, ...]:
    """Return the names of the parts of a plan's file that do not match their digests; the file was loaded before."""
    return tuple(_mismatched(json.loads(_text(_file(path)))))


def _text(file: Path) -> str:
    try:
        return content(file, MAX_BYTES).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"cannot be read: {error}", file=str(file)) from None


def _file(path: Path) -> Path:
    return path / "plan.json" if path.is_dir() else path


def parse_plan(text: str, file: str = "plan.json", accept_edits: bool = False) -> Plan:
    """Return the plan in a JSON text. file: its name in error messages. accept_edits: as of `load_plan`. Raises
    InputError if it is no plan of this schema, or parts are missing, wrong or edited; all problems with their places.
    """
    document = Document(_data(text, file), file)
    _check_schema(document)
    try:
        plan, problems = _read(document)
        edits = [] if accept_edits else list(_edited(document))
    except RecursionError:
        raise InputError("is nested deeper than any plan", file=file) from None
    if plan is not None and not edits:
        return plan
    raise InputError(list(_with_places([*problems, *edits], text, file)))


def _data(text: str, file: str) -> Any:
    """Return the parsed JSON. Raises InputError if it is malformed, too deep, repeats a key, or has NaN or Infinity."""
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
    """Raise InputError unless the document has this version's plan schema. The error says if it is a plan of an older
    or a newer symconfig.
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


def _read(document: Document) -> tuple[Plan | None, list[Problem]]:
    """Return (plan, []), or (None, problems) if any part is missing, unknown or wrong. Training fields that the job
    leaves open count as missing. With problems in a plan that another version of symconfig wrote, one more problem says
    so. Digests are not compared.
    """
    data, made, problems = document.data, dict[str, Any](), list[Problem]()
    inputs = data["inputs"] if isinstance(data.get("inputs"), dict) else {}
    for name, kind in INPUTS.items():
        try:
            made[name] = kind.model_validate_json(json.dumps(inputs[name])) if name in inputs else None
        except ValidationError as error:
            for problem in descriptor_problems(error, Document(inputs[name], document.file), kind):
                field = ".".join(part for part in ("inputs", name, problem.field) if part)
                problems.append(replace(problem, field=field))
    plain, missing = _flattened(data)
    problems += [document.problem(MISSING_FIELD, path) for path in missing]
    try:
        parts = _adapter().validate_json(json.dumps(plain))
    except ValidationError as error:
        for item in error.errors(include_url=False):
            what = _WORDS.get(item["type"])
            got = None if what else shorten(item["input"])
            problems.append(document.problem(what or item["msg"], _place(item["loc"]), got=got))
    if (job := made.get("job")) is not None:
        problems += [
            document.problem(MISSING_FIELD, ("inputs", "job", "training", name)) for name in job.training.left_open
        ]
    version = data.get("symconfig")
    if problems and isinstance(version, str) and version != install.VERSION:
        what, hint = "another symconfig wrote this plan", "plan again with this one"
        problems.append(document.problem(what, ("symconfig",), got=version, need=install.VERSION, hint=hint))
    if problems or job is None:
        return None, problems
    made["job"] = job.model_copy(update={"training": WholeTraining.of(job.training)})
    return Plan(**made, symconfig_version=version, **{name: getattr(parts, name) for name in _PLANNED}), []


def _flattened(data: Mapping[str, Any]) -> tuple[dict[str, Any], list[KeyPath]]:
    """Return (plain data of a plan with each candidate's sections as one flat `configuration`, paths that are missing).
    Candidates are the best, the alternatives and those `beside`; the critics of `rl` are flat configurations, too. What
    is no mapping or list stays as it is, for the validation to refuse.
    """
    missing = list[KeyPath]()

    def sections(one: Mapping[str, Any], *path: str | int) -> dict[str, Any]:
        values, lacking = flat(one)
        missing.extend((*path, *place) for place in lacking)
        return values

    def candidate(one: Any, *path: str | int) -> Any:
        """Return a candidate with its sections as `configuration`; unchanged if it is no mapping."""
        if not isinstance(one, Mapping):
            return one
        values = sections(one, *path)
        if "configuration" in one:  # which no candidate has: an unknown field, at its own place
            values["configuration"] = one["configuration"]
        return {**{name: value for name, value in one.items() if name not in SECTIONS}, "configuration": values}

    plain = {**data, "best": candidate(data.get("best"), "best")}
    if isinstance(data.get("alternatives"), list):
        plain["alternatives"] = [candidate(one, "alternatives", at) for at, one in enumerate(data["alternatives"])]
    if isinstance(beside := data.get("beside"), Mapping):
        others = {name: candidate(beside.get(name), "beside", name) for name in ("fastest", "published")}
        plain["beside"] = {**beside, **{name: one for name, one in others.items() if name in beside}}

    if isinstance(data.get("rl"), list):
        plain["rl"] = [
            {**step, "critic": sections(step["critic"], "rl", at, "critic")}
            if isinstance(step, Mapping) and isinstance(step.get("critic"), Mapping)
            else step
            for at, step in enumerate(data["rl"])
        ]
    return plain, missing


def _place(path: KeyPath) -> KeyPath:
    """Return the path in plan.json of a value whose path in the data of `_flattened` is given. Fields of a
    `configuration` are moved to their sections (PLACES), those of a `critic` to sections below it; other paths stay.
    """
    for section, above in (("configuration", 0), ("critic", 1)):  # a critic keeps its own name above its sections
        if section in path[:-1]:
            at = path.index(section)
            name = str(path[at + 1])
            return (*path[: at + above], *PLACES.get(name, tuple(name.split("."))), *path[at + 2 :])
    return path


@cache
def _adapter() -> TypeAdapter[_Parts]:
    """Return pydantic's adapter of a plan's parts; cached, since making it takes longer than reading a plan with it."""
    return TypeAdapter(_Parts)


def _mismatched(data: Mapping[str, Any]) -> dict[str, KeyPath]:
    """Return the parts that were edited, name to key path: they have no digest or another one. Also history, rl and
    tuned if they have a digest and are missing; all parts if there is no section of digests.
    """
    written = data["digests"] if isinstance(data.get("digests"), dict) else {}
    edited = {name: path for name, (path, value) in signed(data).items() if written.get(name) != digest(value)}
    return edited | {name: (name,) for name in SOMETIMES if name in written and name not in data}


def _edited(document: Document) -> Iterator[Problem]:
    """Yield a problem for each part that differs from its digest; none if there is no section of digests at all."""
    says = {"history": "its run need not be where it says", **dict.fromkeys(INPUTS, "the answer is not this one's")}
    for name, path in _mismatched(document.data).items() if isinstance(document.data.get("digests"), dict) else ():
        why = says.get(name, "its figures need not be the plan's")
        yield document.problem(f"was edited: it does not match its digest, and {why}", path, hint=_HINT)


_HINT = "symconfig replan PLAN.json --accept-edits, which solves again from the inputs as they stand, or plan again"


def _with_places(problems: list[Problem], text: str, file: str) -> Iterator[Problem]:
    """Yield the problems with line and column of their fields in the text; None for a field without a place. They are
    yielded as given if `parse_json_strict` refuses the text, as with more values than places are kept for.
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
