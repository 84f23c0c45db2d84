"""The published recipe that is nearest to a plan, and what each of its differences costs there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import log2
from typing import Any

from symconfig.descriptor.recipe import ENDS_AS_LAYERS, Recipe, RecipeFile, spelled
from symconfig.plans.pipeline_layout import letters
from symconfig.plans.plan import Candidate, Difference, NearRecipe, Options, Plan, Recompute
from symconfig.runs.replan.carried import carried, judged
from symconfig.solve.choice.published import alike, doublings

# How far a recipe is from a plan: one for each factor of two in GPUs, tokens of a sequence; these for the rest.
PER_DOUBLED_MODEL, PER_DOUBLED_BATCH = 4.0, 0.5
OTHER_CLUSTER, OTHER_PRECISION, NOT_TUNED, OTHER_TASK = 1.0, 0.5, 0.5, 1.0
NOT_PRICED = "has no price in the model"


def near_recipe(plan: Plan) -> NearRecipe | None:
    """Return the nearest recipe with the price of each difference.

    None where there is none of this kind of model and GPU.
    """
    nearest = min(
        ((_distance(plan, file, recipe), recipe.id, file, recipe) for file, recipe in alike(plan.model, plan.cluster)),
        key=lambda one: one[:2],
        default=None,
    )
    return None if nearest is None else compared(plan, nearest[2], nearest[3])


def compared(plan: Plan, file: RecipeFile, recipe: Recipe) -> NearRecipe:
    """Return the differences between a recipe and a plan, each with what its value alone costs the plan."""
    free = replace(plan, job=plan.job.model_copy(update={"allow": ("all",)}))
    own_s = judged(free, carried(plan.best, free)).step_s or plan.best.predicted.step_s
    same = recipe.job.precision == plan.best.options.precision
    taken = [
        choice
        for choice in CHOICES
        if choice.stated(recipe) and choice.differs(plan.best, recipe) and (same or not choice.of_precision)
    ]
    differences = tuple(
        Difference(choice.field, choice.ours(plan.best), choice.theirs(recipe), *_loss(free, own_s, recipe, (choice,)))
        for choice in taken
    )
    job = recipe.job
    words = (
        f"{file.model} on {job.gpus:,} x {job.cluster}, batch {job.global_batch_size:,}, {job.seq_length:,} tokens, "
        f"{job.precision}"
    )
    return NearRecipe(
        recipe.id, file.sources[recipe.source].title, words, differences, *_loss(free, own_s, recipe, tuple(taken))
    )


def _loss(plan: Plan, own_s: float, recipe: Recipe, taken: tuple[Choice, ...]) -> tuple[float | None, str]:
    """Return what the plan loses with these values of the recipe, or why that cannot be said."""
    other = plan.best
    for choice in taken:
        other = choice.take(other, recipe)
    before, after = carried(plan.best, plan), carried(other, plan)
    if before == after:
        return (0.0, "") if not taken else (None, NOT_PRICED)
    verdict = judged(plan, after)
    if verdict.refused or not verdict.fits:
        return None, str(verdict)
    return verdict.step_s / own_s - 1, ""


@dataclass(frozen=True, slots=True)
class Choice:
    """A choice that a recipe and a plan may differ in. value: of a candidate; wanted: of a recipe, None where it does
    not say; put: the candidate with the recipe's value. of_precision: it goes with the recipe's precision."""

    field: str
    value: Callable[[Candidate], Any]
    wanted: Callable[[Recipe], Any]
    put: Callable[[Candidate, Any], Candidate]
    of_precision: bool = False

    def stated(self, recipe: Recipe) -> bool:
        return self.wanted(recipe) is not None

    def differs(self, candidate: Candidate, recipe: Recipe) -> bool:
        return bool(self.value(candidate) != self.wanted(recipe))

    def take(self, candidate: Candidate, recipe: Recipe) -> Candidate:
        return self.put(candidate, self.wanted(recipe))

    def ours(self, candidate: Candidate) -> str:
        return spelled(self.value(candidate))

    def theirs(self, recipe: Recipe) -> str:
        return spelled(self.wanted(recipe))


def _degree(name: str) -> Choice:
    def put(candidate: Candidate, value: int) -> Candidate:
        degrees = replace(candidate.parallel, **{name: value})
        if degrees.pp == 1:
            degrees = replace(degrees, vpp=1)
        changed = replace(candidate, parallel=degrees)
        return _even(changed) if name in ("pp", "vpp") else changed

    return Choice(
        name, lambda candidate: getattr(candidate.parallel, name), lambda recipe: getattr(recipe.layout, name), put
    )


def _option(field: str, name: str, wanted: Callable[[Recipe], Any]) -> Choice:
    def put(candidate: Candidate, value: Any) -> Candidate:
        return replace(candidate, options=replace(candidate.options, **{name: value}))

    return Choice(field, lambda candidate: getattr(candidate.options, name), wanted, put)


def _overlap(field: str, name: str, wanted: Callable[[Recipe], Any]) -> Choice:
    def put(candidate: Candidate, value: Any) -> Candidate:
        overlap = replace(candidate.options.overlap, **{name: value})
        return replace(candidate, options=replace(candidate.options, overlap=overlap))

    return Choice(field, lambda candidate: getattr(candidate.options.overlap, name), wanted, put)


def _even(candidate: Candidate) -> Candidate:
    """Deal the candidate's layers out anew: equally, or with the ends as layers where only that goes."""
    chunks = candidate.parallel.pp * candidate.parallel.vpp
    total = sum(letters(chunk).count("t") for stage in candidate.stages for chunk in stage.chunks)
    ends = total % chunks > 0 and (total + 2) % chunks == 0
    options = replace(
        candidate.options,
        pipeline_layout=None,
        account_for_embedding=ends,
        account_for_loss=ends,
        first_stage_layers=None,
        last_stage_layers=None,
    )
    return replace(candidate, options=options)


def _with_micro(candidate: Candidate, micro: int) -> Candidate:
    return replace(candidate, batch=replace(candidate.batch, micro=micro))


def _with_recompute(candidate: Candidate, stated: str) -> Candidate:
    granularity, *rest = stated.split(":")
    modules = tuple(rest[0].split(",")) if granularity == "selective" and rest else ()
    recompute = Recompute("none") if granularity == "none" else Recompute("selective", modules)
    if granularity == "full":
        method, *layers = rest or ["uniform"]
        recompute = Recompute("full", (), "block" if method == "block" else "uniform", int(layers[0]) if layers else 1)
    return replace(candidate, options=replace(candidate.options, recompute=recompute))


def _recompute_words(options: Options) -> str:
    recompute = options.recompute
    if recompute.granularity == "selective":
        return f"selective:{','.join(sorted(recompute.modules))}" if recompute.modules else "none"
    return f"full:block:{recompute.num_layers}" if recompute.method == "block" else recompute.granularity


def _recompute_of(recipe: Recipe) -> str | None:
    stated = recipe.layout.recompute
    if stated is None or not stated.startswith("selective:"):
        return stated
    return f"selective:{','.join(sorted(stated.partition(':')[2].split(',')))}"


def _with_stages(candidate: Candidate, stages: str) -> Candidate:
    candidate = _even(candidate)
    ends = stages == ENDS_AS_LAYERS
    options = replace(
        candidate.options,
        pipeline_layout=None if ends else stages,
        account_for_embedding=ends,
        account_for_loss=ends,
    )
    return replace(candidate, options=options)


def _stages_words(candidate: Candidate) -> str:
    options = candidate.options
    ends = options.account_for_embedding and options.account_for_loss and not options.pipeline_layout
    return ENDS_AS_LAYERS if ends else options.stage_layout or "equal"


def _dispatcher(recipe: Recipe) -> str | None:
    return recipe.options.dispatcher if recipe.layout.ep > 1 else None


def _with_dispatcher(candidate: Candidate, name: Any) -> Candidate:
    own = name in ("deepep", "hybridep")
    options = replace(candidate.options, moe_dispatcher="flex" if own else name, moe_flex_backend=name if own else None)
    return replace(candidate, options=options)


def _eight_bits(recipe: Recipe) -> bool | None:
    return bool(recipe.options.fp8_param_gather) if recipe.job.precision in ("fp8", "mxfp8") else None


def _gradient_bytes(recipe: Recipe) -> int | None:
    return {"bf16": 2, "fp32": 4}.get(recipe.options.gradients or "")


# What a recipe does not state is as the plan has it, but for what is off unless somebody asks for it, and sequence
# parallelism, which goes with tensor parallelism.
CHOICES: tuple[Choice, ...] = (
    *map(_degree, ("tp", "pp", "vpp", "cp", "ep", "etp")),
    Choice("micro-batch", lambda c: c.batch.micro, lambda recipe: recipe.layout.micro, _with_micro),
    Choice("recompute", lambda c: _recompute_words(c.options), _recompute_of, _with_recompute),
    Choice("stages", _stages_words, lambda recipe: recipe.layout.stages, _with_stages),
    _option(
        "sequence parallelism",
        "sequence_parallel",
        lambda recipe: recipe.layout.sp is not False if recipe.layout.tp > 1 else None,
    ),
    _option("ZeRO stage", "zero_stage", lambda recipe: recipe.layout.zero),
    Choice(
        "dispatcher",
        lambda c: c.options.moe_flex_backend or c.options.moe_dispatcher or "none",
        _dispatcher,
        _with_dispatcher,
    ),
    _overlap("user buffers", "tp_comm", lambda recipe: bool(recipe.options.tp_comm) if recipe.layout.tp > 1 else None),
    _overlap(
        "experts' all-to-all overlapped",
        "moe_a2a",
        lambda recipe: bool(recipe.options.moe_overlap) if recipe.layout.ep > 1 else None,
    ),
    _option("CUDA graphs", "cuda_graphs", lambda recipe: recipe.graphs),
    _option("bytes of a gradient", "grad_bytes", _gradient_bytes),
    replace(_option("weights in 8 bits", "fp8_param_gather", _eight_bits), of_precision=True),
)


def _distance(plan: Plan, file: RecipeFile, recipe: Recipe) -> float:
    """Return how far the job of a recipe is from that of a plan."""
    job, best = recipe.job, plan.best
    distance = 0.0 if file.model == plan.model.name else PER_DOUBLED_MODEL * doublings(plan.model, file.model)
    distance += abs(log2(job.gpus / best.parallel.world_size)) + abs(log2(job.seq_length / best.batch.seq_length))
    distance += PER_DOUBLED_BATCH * abs(log2(job.global_batch_size / best.batch.global_))
    distance += OTHER_CLUSTER * (job.cluster != plan.cluster.name) + OTHER_PRECISION * (
        job.precision != best.options.precision
    )
    return distance + NOT_TUNED * (recipe.kind != "performance") + OTHER_TASK * (job.task != plan.job.task)
