"""Published layouts, listed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from symconfig.descriptor.recipe import Recipe, RecipeSource, every_recipe, find_recipe
from symconfig.errors import InputError, Problem, among


@dataclass(frozen=True, slots=True)
class Published:
    """A recipe with the zoo model that it trains and the place where it is published."""

    model: str
    source: RecipeSource
    recipe: Recipe

    def to_dict(self) -> dict[str, Any]:
        """Return the recipe as JSON, with its pins and what no pin can express ("unsaid")."""
        stated = self.recipe.model_dump(mode="json", exclude_none=True)
        return {
            **stated,
            "model": self.model,
            "source": self.source.model_dump(mode="json", exclude_none=True),
            "pins": self.recipe.as_pins(),
            "unsaid": list(self.recipe.unsaid()),
        }


def recipe(name: str) -> Published:
    """Return the recipe of a name. Raises InputError with the nearest name."""
    file, stated = find_recipe(name)
    return Published(file.model, file.sources[stated.source], stated)


def recipes(
    model: str | None = None,
    cluster: str | None = None,
    gpus: int | None = None,
    task: str | None = None,
    kind: str | None = None,
    source: str | None = None,
) -> tuple[Published, ...]:
    """Return the recipes that match all given filters; None matches any.

    source: text in the source's title, repository or release, in any case. Raises InputError for a model, cluster, task
    or kind that no recipe has.
    """
    every = [Published(file.model, file.sources[each.source], each) for file, each in every_recipe()]
    wanted = {"model": model, "cluster": cluster, "task": task, "kind": kind}
    problems = []
    for name, value in wanted.items():
        known = sorted({str(_value(each, name)) for each in every})
        if value is not None and value not in known:
            problems.append(Problem(f"no recipe has this {name}", field=name, got=value, **among(value, known)))
    if problems:
        raise InputError(problems)
    return tuple(
        each
        for each in every
        if all(value in (None, _value(each, name)) for name, value in wanted.items())
        and gpus in (None, each.recipe.job.gpus)
        and (source is None or source.lower() in _words(each.source))
    )


def _value(each: Published, name: str) -> object:
    """Return a recipe's value of a filter's name."""
    return {
        "model": each.model,
        "cluster": each.recipe.job.cluster,
        "task": each.recipe.job.task,
        "kind": each.recipe.kind,
    }[name]


def _words(source: RecipeSource) -> str:
    return f"{source.title} {source.repository or ''} {source.release}".lower()
