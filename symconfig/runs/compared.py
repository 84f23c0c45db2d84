"""Comparisons of a plan that take searches of their own, made where somebody asks why it is the first: the nearest
published recipe, and the plan if every option were allowed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from math import inf, log2

from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.load import load_cluster, load_model, zoo_clusters
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.recipe import Recipe, RecipeFile, load_recipes, recipe_models, spelled
from symconfig.errors import InputError
from symconfig.frameworks.tables import options
from symconfig.graph.count import parameters
from symconfig.plans.plan import Plan
from symconfig.plans.recipe import NearRecipe, Pinned
from symconfig.runs.replan import keep
from symconfig.solve import candidate, experimental
from symconfig.solve.pins import narrowed, parse
from symconfig.solve.run import facts_of, run
from symconfig.solve.search import fastest_with

MOST_TIMES_LARGER = 3.0  # a model of which a recipe still says something
# Distance of a recipe from a plan: one for each factor of two in GPUs and in tokens of a sequence; these for the rest.
PER_DOUBLED_MODEL, PER_DOUBLED_BATCH = 4.0, 0.5
OTHER_CLUSTER, OTHER_PRECISION, NOT_TUNED, OTHER_TASK = 1.0, 0.5, 0.5, 1.0
OTHER_SHARDING = 2.0  # parameters or gradients sharded in one of them only: an answer to another question
SPLIT = ("tp", "pp", "cp", "ep", "etp")
WORTH_SAYING = 0.005  # share of the score that a plan with other options must save to be shown


def with_comparisons(plan: Plan) -> Plan:
    """Return the plan with what is faster if every option is allowed and, for Megatron-LM, with the nearest published
    recipe. A plan whose step has phases of its own is returned as it is."""
    if plan.steps:
        return plan
    recipe = near_recipe(plan) if plan.job.backend == "megatron" else None
    plan = with_every_option(plan)
    return replace(plan, beside=replace(plan.beside, recipe=recipe))


def near_recipe(plan: Plan) -> NearRecipe | None:
    """Return the nearest recipe with the price of its layout in the plan's job; None where there is none of this kind
    of model and GPU."""
    every = ((_distance(plan, file, one), one.id, file, one) for file, one in _alike(plan.model, plan.cluster))
    nearest = min(every, key=lambda each: each[:2], default=None)
    return None if nearest is None else compared(plan, nearest[2], nearest[3])


def compared(plan: Plan, file: RecipeFile, recipe: Recipe) -> NearRecipe:
    """Return a recipe with what its layout, and its split with all else free, take in the plan's job: one search each,
    with the recipe's pins."""
    job, pins, differences = recipe.job, recipe.as_pins(), list[str]()
    if job.precision != plan.best.options.precision:
        pins.pop("fp8_param_gather", None)
    for name, theirs in pins.items():
        try:
            ours = keep.pins(plan.best, (name,))[name]
        except InputError:  # recompute of some layers, say, which no pin has
            ours = "other"
        if narrowed({name: ours}, f"{name}={theirs}") is None:
            differences.append(f"{name} {_word(name, theirs)} for {_word(name, ours)}")
    split = {name: pins[name] for name in (*SPLIT, "zero") if name in pins}
    return NearRecipe(
        id=recipe.id,
        title=file.sources[recipe.source].title,
        job=f"{file.model} on {job.gpus:,} x {job.cluster}, batch {job.global_batch_size:,}, "
        f"{job.seq_length:,} tokens, {job.precision}",
        differences=tuple(differences),
        layout=_pinned(plan, pins) if differences else None,
        split=_pinned(plan, split) if any(one.partition(" ")[0] in split for one in differences) else None,
        left_out=recipe.unpriced,
    )


def _word(name: str, value: str) -> str:
    """Return a pin's value as sentences have it: on or off for a switch."""
    switch = parse({name: value}).switch(name) if value != "other" else None
    return value if switch is None else spelled(switch)


def _pinned(plan: Plan, pins: Mapping[str, str]) -> Pinned:
    """Return what the fastest plan of the job with these pins loses; the job's own pins of layers to stages do not
    count."""
    outside = {name: pin for name, pin in plan.job.pins.items() if name not in ("vpp", "layout")}
    job = plan.job.model_copy(update={"pins": {**outside, **pins}, "gpus": plan.best.parallel.world_size})
    words = " ".join(f"{name} {size}" for name in SPLIT if (size := pins.get(name, "1")) != "1") or "one GPU"
    fastest = fastest_with(plan.model, plan.cluster, job)
    if isinstance(fastest, str):
        return Pinned(words, None, fastest)
    fixed, mine = facts_of(plan.model, plan.cluster, plan.job), parse(plan.job.pins)
    pinned = candidate.described(fastest, plan.cluster, job)
    own, needed = ({one.name for one in experimental.used(plan.job, fixed, mine, each)} for each in (plan.best, pinned))
    loss = pinned.predicted.step_s / plan.best.predicted.step_s - 1
    return Pinned(words, loss, opens=tuple(sorted(needed - own)))


def _distance(plan: Plan, file: RecipeFile, recipe: Recipe) -> float:
    """Return how far the job of a recipe is from that of a plan."""
    job, best = recipe.job, plan.best
    distance = 0.0 if file.model == plan.model.name else PER_DOUBLED_MODEL * _doublings(plan.model, file.model)
    distance += abs(log2(job.gpus / best.parallel.world_size)) + abs(log2(job.seq_length / best.batch.seq_length))
    distance += PER_DOUBLED_BATCH * abs(log2(job.global_batch_size / best.batch.global_))
    distance += OTHER_CLUSTER * (job.cluster != plan.cluster.name)
    distance += OTHER_PRECISION * (job.precision != best.options.precision)
    distance += OTHER_SHARDING * (((recipe.layout.zero or 0) > 1) != (best.options.zero_stage > 1))
    return distance + NOT_TUNED * (recipe.kind != "performance") + OTHER_TASK * (job.task != plan.job.task)


def _alike(model: ModelDescriptor, cluster: ClusterDescriptor) -> Iterator[tuple[RecipeFile, Recipe]]:
    """Yield the recipes of a model on GPUs of an architecture; where there are none, those of models of its kind."""
    known = recipe_models()
    own = list(_recipes(model.name, cluster)) if model.name in known else []
    yield from own
    for name in known if not own else ():
        if name != model.name and _doublings(model, name) <= log2(MOST_TIMES_LARGER):
            yield from _recipes(name, cluster)


def _recipes(name: str, cluster: ClusterDescriptor) -> Iterator[tuple[RecipeFile, Recipe]]:
    """Yield the recipes of a model on a cluster, or on another one with GPUs of its architecture."""
    file = load_recipes(name)
    for recipe in file.recipes:
        if recipe.job.cluster == cluster.name or _architecture(recipe.job.cluster) == _gpu(cluster):
            yield file, recipe


def _gpu(cluster: ClusterDescriptor) -> tuple[str, str]:
    return cluster.gpu.vendor, cluster.gpu.architecture


@cache
def _architecture(cluster: str) -> tuple[str, str] | None:
    return _gpu(load_cluster(cluster)) if cluster in zoo_clusters() else None


def _doublings(model: ModelDescriptor, other: str) -> float:
    """Return how many times one model is twice as large as the other; infinity for other kinds of models."""
    experts, total = _size(other)
    return abs(log2(parameters(model).total / total)) if (model.experts is not None) == experts else inf


@cache
def _size(name: str) -> tuple[bool, int]:
    """Return whether a zoo model has experts, and its parameters."""
    model = load_model(name)
    return model.experts is not None, parameters(model).total


def with_every_option(plan: Plan) -> Plan:
    """Return the plan with the one that would be better if every option of its framework were allowed, but for other
    layouts of its stages; as it is where nothing is, or where the job's objective is not time."""
    model, cluster = plan.model, plan.cluster
    update = {"gpus": plan.best.parallel.world_size, "pins": {**plan.job.pins, **plan.search.narrowed}}
    job = plan.job.model_copy(update=update)
    fixed, pins = facts_of(model, cluster, job), parse(job.pins)
    closed = {constraint.name for constraint in experimental.excluded(job, fixed, pins)} - set(job.without)
    if not closed or job.objective != "time":
        return plan
    # Other layouts of stages would take most of the time, and give what the gaps say at most.
    free = experimental.allowing(job, *(one.name for one in options(job.backend) if one.about != "pipeline_layout"))
    standings = [one.standing for one in (plan.best, *plan.alternatives)]
    scores = [one.score_s for one in standings if one is not None]
    below_s = (1 - WORTH_SAYING) * min(scores, default=plan.best.predicted.step_s)
    ranked = run(model, cluster, job=free, top=1, progress=None, start=0.0, below_s=below_s).weighed.ranked()
    if not ranked:
        return plan
    best = candidate.described(ranked[0], cluster, job)
    uses = tuple(one.name for one in experimental.used(job, fixed, pins, best))
    return replace(plan, beside=replace(plan.beside, free=best, free_uses=uses))
