"""Models, clusters and published recipes that come with symconfig, listed."""

from __future__ import annotations

from typing import Any

from symconfig.descriptor.load import load_cluster, load_model, zoo_clusters, zoo_models
from symconfig.descriptor.recipe import Recipe, RecipeFile, every_recipe, find_recipe
from symconfig.errors import Problem, Problems, among
from symconfig.report.listed import cluster_line, model_line


def clusters() -> list[dict[str, Any]]:
    """Return a summary line of each cluster in the zoo."""
    return [cluster_line(load_cluster(name)) for name in zoo_clusters()]


def models() -> list[dict[str, Any]]:
    """Return a summary line of each model in the zoo."""
    return [model_line(load_model(name)) for name in zoo_models()]


def recipe(name: str) -> dict[str, Any]:
    """Return the recipe of a name as plain data. Raises InputError with the nearest name."""
    return _stated(*find_recipe(name))


def recipes(
    model: str | None = None,
    cluster: str | None = None,
    gpus: int | None = None,
    task: str | None = None,
    kind: str | None = None,
    source: str | None = None,
) -> list[dict[str, Any]]:
    """Return the recipes that match all given filters as plain data; None matches any. source: text in the source's
    title, repository or release, in any case. Raises InputError with the known values for a model, cluster, task or
    kind that no recipe has; gpus or source that match none give [].
    """
    every = [_stated(*each) for each in every_recipe()]
    facts = [{**one["job"], "model": one["model"], "kind": one["kind"]} for one in every]
    wanted = {"model": model, "cluster": cluster, "task": task, "kind": kind}
    problems = Problems()
    for name, value in wanted.items():
        known = sorted({str(one[name]) for one in facts})
        if value is not None and value not in known:
            problems.add(Problem(f"no recipe has this {name}", field=name, got=value, **among(value, known)))
    problems.check()
    asked = {name: value for name, value in {**wanted, "gpus": gpus}.items() if value is not None}
    text = ("title", "repository", "release")
    return [
        one
        for one, each in zip(every, facts, strict=True)
        if all(each[name] == value for name, value in asked.items())
        and (source or "").lower() in " ".join(str(one["source"].get(name, "")) for name in text).lower()
    ]


def _stated(file: RecipeFile, one: Recipe) -> dict[str, Any]:
    """Return a recipe as plain data (without None), with its model's name, source, pins, and what no pin can express
    ("unsaid").
    """
    return {
        **one.model_dump(mode="json", exclude_none=True),
        "model": file.model,
        "source": file.sources[one.source].model_dump(mode="json", exclude_none=True),
        "pins": one.as_pins(),
        "unsaid": list(one.without_pin()),
    }
