"""What there is to plan with: `list` shows it by kind, `import` makes a descriptor of a config.json."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from symconfig.cli.options import Command, flag, option
from symconfig.cli.shared import file_of, note, plan_of, print_json, refuse, show, whole, write_data, write_text
from symconfig.errors import InputError, Problem, reworded
from symconfig.format import picked

if TYPE_CHECKING:
    from symconfig.report.grid import Block


_HELP = "models, clusters, recipes, targets, launchers, rules (of audit), options (of plans) or schemas (of files)"

Shown = tuple[Any, Sequence["Block"] | str]  # as JSON, and as text; a str is a file, and is not wrapped


def run_list(arguments: argparse.Namespace) -> int:
    """Print the list of a kind, or one entry by name; return 0. An entry that is a text (a descriptor) is printed as
    such unless --json. Raises InputError, also for options of another kind and unknown names.
    """
    make, options = KINDS[arguments.of]
    others = [name for _, names in KINDS.values() for name in names if name not in options]
    refuse(arguments, others, f"is not for {arguments.of}")
    arguments.problems.check()
    data, shown = make(arguments, arguments.name)
    if isinstance(shown, str) and not arguments.json:
        write_data(shown)
    else:
        show(arguments, lambda: data, lambda: shown)
    return 0


def _models(_: argparse.Namespace, name: str | None) -> Shown:
    """Return (JSON, text): of all models with a table, or of one model the descriptor with its sizes in a first comment
    line. Raises InputError for an unknown name.
    """
    from symconfig.api import zoo
    from symconfig.descriptor.load import load_model
    from symconfig.descriptor.write import descriptor_yaml
    from symconfig.report.listed import model_list, model_sizes

    if name is not None:  # a descriptor, which --model takes
        with reworded(_named):
            one = load_model(name)
        data = one.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        return data, f"# {model_sizes(one)}\n{descriptor_yaml(one)}"
    lines = zoo.models()
    return {"schema": "symconfig.models/1", "models": lines}, model_list(lines)


def _clusters(_: argparse.Namespace, name: str | None) -> Shown:
    """Return (JSON, text): of all clusters with a table, or of one cluster (zoo name or path) the descriptor. Raises
    InputError for an unknown name.
    """
    from symconfig.api import zoo
    from symconfig.descriptor.load import load_cluster
    from symconfig.descriptor.write import cluster_yaml
    from symconfig.report.listed import cluster_list

    if name is not None:  # a descriptor, which --cluster takes
        with reworded(_named):
            one = load_cluster(name)
        return one.model_dump(mode="json", by_alias=True, exclude_unset=True), cluster_yaml(one)
    lines = zoo.clusters()
    return {"schema": "symconfig.clusters/1", "clusters": lines}, cluster_list(lines)


def _named(problem: Problem) -> Problem:
    """Return a problem with the argument NAME as its field, unless it is one in a file."""
    return problem if problem.file else replace(problem, field="NAME")


def _recipes(arguments: argparse.Namespace, name: str | None) -> Shown:
    """Return (JSON, table) of the recipes that match the filters, or of the one named; filters are ignored then. Raises
    InputError for an unknown name or filter value.
    """
    from symconfig.api.zoo import recipe, recipes
    from symconfig.report.listed import recipe_list, recipe_table

    if name is not None:
        one = recipe(name)
        return {"schema": "symconfig.recipe/1", **one}, recipe_table(one)
    rows = recipes(**picked(arguments, *KINDS["recipes"][1]))
    return {"schema": "symconfig.recipes/2", "recipes": rows}, recipe_list(rows)


def _targets(arguments: argparse.Namespace, name: str | None) -> Shown:
    """Return the targets; `name` is a plan's file, and marks those that can express it."""
    from symconfig.report.listed import targets

    return targets(None if name is None else plan_of(name), file_of(arguments.templates))


def _launchers(_: argparse.Namespace, name: str | None) -> Shown:
    """Return (JSON, table) of all launchers, or of the one named and its settings. Raises InputError if unknown."""
    from symconfig.render import every_launcher

    every = _chosen(every_launcher().values(), name)
    data = [
        {**picked(one, "name", "does"), "settings": [picked(each, "name", "does", "default") for each in one.settings]}
        for one in every
    ]
    rows = every if name is None else every[0].settings
    shown = _table(("launcher" if name is None else "setting", "does"), ((one.name, one.does) for one in rows))
    return {"schema": "symconfig.launchers/1", "launchers": data}, shown


def _rules(_: argparse.Namespace, name: str | None) -> Shown:
    """Return the audit's rules, or one rule."""
    from symconfig.existing.audit.audit import RULES

    names = ("name", "severity", "title", "why", "since", "until", "example")
    return _facts("rules", [picked(one, *names) for one in _chosen(RULES, name)], name, names[:3])


def _options(_: argparse.Namespace, name: str | None) -> Shown:
    """Return (JSON, table) of all frameworks' options, or of the one named: backends that have it, and maturity with
    reason, source and versions (None if it is not in doubt). Raises InputError for an unknown name.
    """
    from symconfig.frameworks.known import BACKENDS

    known = {one.name: one for backend in BACKENDS.values() for one in backend.options}
    data = [
        {
            **picked(one, "name", "label"),
            "backends": [name for name, backend in BACKENDS.items() if one in backend.options],
            "maturity": one.maturity and str(one.maturity),
            **{key: value or None for key, value in picked(one, "why", "source", "since", "until").items()},
        }
        for one in _chosen(known.values(), name)
    ]
    return _facts("options", data, name, ("name", "maturity", "label"))


def _schemas(_: argparse.Namespace, name: str | None) -> Shown:
    """Return (JSON, table) of the files that have a JSON schema, for editors, or the schema of the one named. Raises
    InputError for an unknown name.
    """
    from pydantic import BaseModel

    from symconfig.descriptor.cluster import ClusterDescriptor
    from symconfig.descriptor.job import Job
    from symconfig.descriptor.model import ModelDescriptor
    from symconfig.errors import nearest
    from symconfig.format import json_text

    known: dict[str, type[BaseModel]] = {"job": Job, "model": ModelDescriptor, "cluster": ClusterDescriptor}
    if name is None:
        names = {"job": "JOB.yaml", "model": "a model's descriptor", "cluster": "a cluster's descriptor"}
        return {"schema": "symconfig.schemas/1", "schemas": list(names)}, _table(("schema", "of"), names.items())
    if name not in known:
        raise InputError("there is no such name", field="NAME", got=name, hint=nearest(name, known))
    draft = "https://json-schema.org/draft/2020-12/schema"
    data = {"$schema": draft, **known[name].model_json_schema(by_alias=True)}
    return data, json_text(data)


def _facts(kind: str, data: list[dict[str, Any]], name: str | None, columns: tuple[str, ...]) -> Shown:
    """Return (JSON, table): without a name these columns of all entries; with one, all nonempty facts of the first
    entry, for which `data` has only that one. kind: the key of the entries in the JSON, and the name of its schema.
    """
    if name is None:
        shown = _table(columns, (tuple(str(one[key] or "") for key in columns) for one in data))
    else:
        facts = {key: ", ".join(each) if isinstance(each, list) else str(each) for key, each in data[0].items() if each}
        shown = _table(("", name), facts.items())
    return {"schema": f"symconfig.{kind}/1", kind: data}, shown


def _chosen(every: Iterable[Any], name: str | None) -> list[Any]:
    """Return all entries, or only the one of this name. Raises InputError with the nearest name."""
    from symconfig.errors import nearest

    known = {one.name: one for one in every}
    if name is not None and name not in known:
        raise InputError("there is no such name", field="NAME", got=name, hint=nearest(name, known))
    return list(known.values()) if name is None else [known[name]]


def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[Block]:
    from symconfig.report.grid import Grid

    return [Grid(heads, tuple(rows), left=tuple(range(len(heads))))]


# Every kind: what makes its answer, and the options that are for it alone.
KINDS: Mapping[str, tuple[Callable[[argparse.Namespace, str | None], Shown], tuple[str, ...]]] = {
    "models": (_models, ()),
    "clusters": (_clusters, ()),
    "recipes": (_recipes, ("model", "cluster", "gpus", "task", "kind", "source")),
    "targets": (_targets, ("templates",)),
    "launchers": (_launchers, ()),
    "rules": (_rules, ()),
    "options": (_options, ()),
    "schemas": (_schemas, ()),
}


def run_import(arguments: argparse.Namespace) -> int:
    """Print the descriptor of a config.json (or a folder with one) as YAML, or JSON with --json; with --out write YAML,
    and print only with --json. Return 0. Notes on what was not read go to standard error. Raises InputError, also for
    another file name.
    """
    from symconfig.descriptor.load import load_config
    from symconfig.descriptor.write import descriptor_yaml

    path = Path(arguments.config)
    if path.suffix != ".json" and not path.is_dir():
        raise InputError("this is no config.json", file=arguments.config, need="a file that ends in .json")
    model, account = load_config(path, arguments.like)
    for sentence in account.sentences() if account is not None else ():
        note(sentence)
    text = descriptor_yaml(model)
    if arguments.out is not None:
        out = Path(arguments.out)
        write_text(out, text, arguments.force)
    if arguments.json:
        print_json(model.model_dump(mode="json", by_alias=True, exclude_unset=True))
    elif arguments.out is None:
        write_data(text)
    return 0


COMMANDS = (
    Command(
        name="list",
        does="list models, clusters, recipes, targets and more, or show one of them",
        examples=("symconfig list models llama3.1-70b", "symconfig list recipes --model llama3.1-70b --cluster h100"),
        rows=lambda: (
            option("of", "KIND", _HELP, choices=tuple(KINDS)),
            option("name", "NAME", "show this one; of targets, which can carry this PLAN.json", nargs="?"),
            "of recipes",
            option("--model", "M", "of this zoo model"),
            option("--cluster", "C", "on this zoo cluster"),
            option("--gpus", "N", "on this number of GPUs", type=whole),
            option("--task", "T", "pretrain or sft"),
            option("--kind", "K", "performance (tuned for speed) or training (shipped for real runs)"),
            option("--source", "TEXT", "with this in the title, repository or release of the source"),
            "of targets",
            option("--templates", "DIR", "with the templates of your own"),
        ),
        run=run_list,
    ),
    Command(
        name="import",
        does="turn a Hugging Face config.json into a descriptor",
        examples=("symconfig import config.json --out mine.yaml", "symconfig import config.json --like llama"),
        rows=lambda: (
            option("config", "CONFIG.json", None),
            option("--out", "FILE", "write the descriptor there instead of to standard output"),
            option("--like", "FAMILY", "read it as a model of this family, instead of its own model_type"),
            flag("--force", "replace FILE if it exists"),
        ),
        run=run_import,
    ),
)
