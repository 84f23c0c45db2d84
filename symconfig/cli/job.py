"""From the options of `symconfig plan` to a job document; a JOB.yaml lies below the options."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from symconfig.cli.options import changes, job_options
from symconfig.descriptor.cluster import joined
from symconfig.descriptor.document import Document
from symconfig.errors import InputError, Problem, Problems, reworded


@dataclass(frozen=True, slots=True)
class Request:
    """A job given on the command line. model_base, cluster_base: folders of relative paths; None: the working folder.
    changes: of the cluster, in its name already if that is text. without_pin: what no pin can express of a recipe.
    """

    document: Document
    model_base: Path | None
    cluster_base: Path | None
    changes: Mapping[str, str]
    without_pin: tuple[str, ...]


def request(arguments: argparse.Namespace) -> Request:
    """Return the job's document: --pin over the options over the job file over the recipe (--like); pins are merged by
    name, cluster changes (--set) go into the cluster's name if it is text. Relative paths of model and cluster are the
    job file's unless given as options. Problems of --pin and --set are added to `arguments.problems`. Raises
    InputError for an unreadable file, one without a mapping, or an unknown recipe.
    """
    recipe, without_pin = _recipe(getattr(arguments, "like", None))
    path = getattr(arguments, "job", None)
    document = _file(path) if path else Document({}, file="")
    if not isinstance(document.data, dict):
        raise InputError(document.problem("the file must hold `name: value` lines"))
    data = {**recipe, **document.data}
    if recipe and isinstance(data.get("pins", {}), dict):
        data["pins"] = {**recipe["pins"], **data.get("pins", {})}
    given = set()
    for option in job_options().values():
        text = getattr(arguments, option.dest, None)
        if text is not None:
            given.add(option.flag)
            _put(data, option.field.split("."), text)
    problems: Problems = arguments.problems
    pins = _pins(arguments.pin, problems)
    if pins and isinstance(data.get("pins", {}), dict):
        data["pins"] = {**data.get("pins", {}), **pins}
    changed = problems.collect(lambda: changes(arguments)) or {}
    if isinstance(data.get("cluster"), str):
        data["cluster"] = problems.read(lambda name: joined(name, changed), data["cluster"]) or data["cluster"]
    base = Path(path).parent if path else None
    return Request(
        document=replace(document, data=data),
        model_base=None if "--model" in given else base,
        cluster_base=None if "--cluster" in given else base,
        changes=changed,
        without_pin=without_pin,
    )


def _recipe(name: str | None) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return (fields of a job like a recipe: model, job and pins; parts of it without a pin); ({}, ()) for None.
    Raises InputError for an unknown name.
    """
    from symconfig.descriptor.recipe import find_recipe

    if name is None:
        return {}, ()
    with reworded(lambda problem: replace(problem, field="--like")):
        file, recipe = find_recipe(name)
    fields = {"model": file.model, **recipe.job.model_dump(mode="json"), "pins": recipe.as_pins()}
    return fields, recipe.without_pin()


def _file(path: str) -> Document:
    """Return the job file's document: JSON if it ends in .json, else YAML. Raises InputError, with --model as hint if
    no such file exists and the path is a zoo model's name.
    """
    from symconfig.descriptor.document import load_yaml_strict
    from symconfig.descriptor.json_strict import load_json_strict
    from symconfig.descriptor.load import zoo_models

    if not Path(path).exists() and path in zoo_models():
        what, hint = "is a model of the zoo, and no file of a job", f"--model {path}"
        raise InputError(what, file=path, hint=hint)
    return load_json_strict(Path(path)) if path.endswith(".json") else load_yaml_strict(Path(path))


def _put(data: dict[str, Any], path: Sequence[str], value: Any) -> None:
    """Set a nested field in `data`, copying each section on the way; does nothing if a section is no mapping."""
    for part in path[:-1]:
        inner = data.get(part, {})
        if not isinstance(inner, dict):
            return  # the file's own mistake, reported by its check
        data[part] = inner = dict(inner)
        data = inner
    data[path[-1]] = value


def _pins(words: Sequence[str], problems: Problems) -> dict[str, str]:
    """Return {name: value} of NAME=VALUE words, names in lower case. Malformed words and a name with two different
    values (the first stays) are added to `problems`.
    """
    pins: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        name = name.lower()
        if not equals or not name or not value:
            problems.add(Problem("not of the form NAME=VALUE", field="--pin", got=repr(word), hint="--pin tp=8"))
        elif pins.setdefault(name, value) != value:
            what, got = f"{name} is pinned twice", f"{pins[name]} and {value}"
            problems.add(Problem(what, field="--pin", got=got, need="one value, or a range as 2..8"))
    return pins
