"""Published recipes that say something of a job: those of its model, or of models of its kind, on its kind of GPU."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from math import inf, log2

from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.load import load_cluster, load_model, zoo_clusters
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.recipe import Recipe, RecipeFile, load_recipes, recipe_models
from symconfig.graph.count import parameters

MOST_TIMES_LARGER = 3.0  # a model of which a recipe still says something


def alike(model: ModelDescriptor, cluster: ClusterDescriptor) -> Iterator[tuple[RecipeFile, Recipe]]:
    """Yield the recipes of a model on an architecture; where there are none, those of models of its kind."""
    known = recipe_models()
    own = list(_on(cluster, model.name)) if model.name in known else []
    if own:
        yield from own
        return
    for name in known:
        if name != model.name and doublings(model, name) <= log2(MOST_TIMES_LARGER):
            yield from _on(cluster, name)


def doublings(model: ModelDescriptor, other: str) -> float:
    """Return how many times one model is twice as large as the other; infinity for other kinds of models."""
    experts, total = _size(other)
    if (model.experts is not None) != experts:
        return inf
    return abs(log2(parameters(model).total / total))


def _on(cluster: ClusterDescriptor, name: str) -> Iterator[tuple[RecipeFile, Recipe]]:
    file = load_recipes(name)
    for recipe in file.recipes:
        if recipe.job.cluster == cluster.name or _architecture(recipe.job.cluster) == _gpu(cluster):
            yield file, recipe


def _gpu(cluster: ClusterDescriptor) -> tuple[str, str]:
    return cluster.gpu.vendor, cluster.gpu.architecture


@cache
def _architecture(cluster: str) -> tuple[str, str] | None:
    return _gpu(load_cluster(cluster)) if cluster in zoo_clusters() else None


@cache
def _size(name: str) -> tuple[bool, int]:
    model = load_model(name)
    return model.experts is not None, parameters(model).total
