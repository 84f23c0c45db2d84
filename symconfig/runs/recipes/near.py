"""The published recipe that is nearest to a plan, and what each of its differences costs there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log2
from typing import Any

from symconfig.descriptor.recipe import ENDS_AS_LAYERS, Recipe, RecipeFile, spelled
from symconfig.errors import SymconfigError
from symconfig.plans.columns import Columns
from symconfig.plans.plan import Candidate, Options, Plan, Recompute
from symconfig.plans.recipe import Difference, NearRecipe
from symconfig.runs.recipes.alike import alike, doublings
from symconfig.runs.replan.carried import apart, carried, dealt_out, judged, whole
from symconfig.solve.configuration import Configuration
from symconfig.solve.opened import unstable
from symconfig.solve.prospect import Prospect
from symconfig.solve.run import facts_of, run
from symconfig.solve.search import resolved

# How far a recipe is from a plan: one for each factor of two in GPUs, tokens of a sequence; these for the rest.
PER_DOUBLED_MODEL, PER_DOUBLED_BATCH = 4.0, 0.5
OTHER_CLUSTER, OTHER_PRECISION, NOT_TUNED, OTHER_TASK = 1.0, 0.5, 0.5, 1.0
OTHER_SHARDING = 2.0  # parameters, or gradients, whole in one and in parts in the other: an answer to another question
NOT_PRICED = "has no price in the model"
SPLIT = ("tp", "pp", "cp", "ep", "etp")  # what makes a split another one, as of `solve.choice.Family`
ONE_GPU = "one GPU"


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
    same = recipe.job.precision == plan.best.options.precision
    silent = file.sources[recipe.source].silent
    stated = [one for one in CHOICES if one.stated(recipe, silent=silent) and (same or not one.of_precision)]
    prices = _Prices.of(plan, recipe)
    differences = tuple(
        prices.difference((choice,), choice.field, choice.ours(plan.best), choice.theirs(recipe))
        for choice in stated
        if choice.differs(plan.best, recipe)
    )
    layout = prices.difference(stated, "layout")
    opening = {one.field for one in differences if {*one.opens} & {*layout.opens}}
    plain = prices.difference([choice for choice in stated if choice.field not in opening], "layout")
    left_out = f", without its {recipe.unpriced}, which {NOT_PRICED}" if recipe.unpriced else ""
    job = recipe.job
    words = (
        f"{file.model} on {job.gpus:,} x {job.cluster}, batch {job.global_batch_size:,}, {job.seq_length:,} tokens, "
        f"{job.precision}"
    )
    return NearRecipe(
        recipe.id,
        file.sources[recipe.source].title,
        words,
        differences,
        layout.loss,
        layout.why and f"{layout.why}{left_out}",
        layout.opens,
        plain if layout.opens and not plain.opens else None,
        _split(plan, recipe, prices.uses),
        recipe.unpriced,
    )


@dataclass(frozen=True, slots=True)
class _Prices:
    """Prices choices of a recipe in a plan. free: the plan, allowed everything; own_s: its step there; uses: what of it
    is not stable."""

    plan: Plan
    free: Plan
    recipe: Recipe
    own_s: float
    uses: frozenset[str]

    @classmethod
    def of(cls, plan: Plan, recipe: Recipe) -> _Prices:
        free = replace(plan, job=plan.job.model_copy(update={"allow": ("all",)}))
        own = judged(free, carried(plan.best, free))
        return cls(plan, free, recipe, own.step_s or plan.best.predicted.step_s, _unstable(plan, own.point))

    def _carried(self, candidate: Candidate) -> Configuration:
        """Return a candidate under the plan's inputs, with nothing beside an exchange where the recipe has it so."""
        c, stated, overlap = carried(candidate, self.free), self.recipe.options, candidate.options.overlap
        reduces = overlap.grad_reduce or stated.grad_reduce is not False
        gathers = overlap.param_gather or stated.param_gather is not False
        return c if reduces and gathers else replace(c, framework=apart(c.framework, reduces, c.zero > 0))

    def difference(self, taken: Sequence[Choice], field: str, ours: str = "", theirs: str = "") -> Difference:
        """Return what the plan loses with these values of the recipe, or why that cannot be said."""
        other = self.plan.best
        for choice in taken:
            other = choice.take(other, self.recipe)
        before, after = self._carried(self.plan.best), self._carried(other)
        if before == after:
            differ = any(choice.differs(self.plan.best, self.recipe) for choice in taken)
            return Difference(field, ours, theirs, *((None, NOT_PRICED) if differ else (0.0, "")))
        every = [judged(self.free, each) for each in dealt_out(self.free, after)]
        verdict = min(every, key=lambda one: (not one.fits, one.step_s))
        opens = tuple(sorted(_unstable(self.plan, verdict.point) - self.uses))
        if not verdict.fits:
            return Difference(field, ours, theirs, None, str(verdict), opens)
        return Difference(field, ours, theirs, verdict.step_s / self.own_s - 1, "", opens)


def _unstable(plan: Plan, point: Columns | None) -> frozenset[str]:
    """Name the options of a point that are not stable and that the plan's job does not allow."""
    if point is None:
        return frozenset()
    fixed = facts_of(plan.model, plan.cluster, plan.job)
    return frozenset(option.name for option, _ in unstable(plan.job, fixed, point))


def _split(plan: Plan, recipe: Recipe, uses: frozenset[str]) -> Difference | None:
    """Return what the plan's job loses with the recipe's degrees, and all else as is best with them; None: the plan has
    them. uses: what of the plan is not stable."""
    own, wanted = (
        {name: getattr(degrees, name) for name in SPLIT} | ({"zero": zero} if zero and zero > 1 else {})
        for degrees, zero in (
            (plan.best.parallel, plan.best.options.zero_stage),
            (recipe.layout, recipe.layout.zero),
        )
    )
    if own == wanted:
        return None
    ours, theirs = (" ".join(f"{name} {size}" for name, size in of.items() if size > 1) for of in (own, wanted))
    fastest = _fastest(plan, wanted)
    if isinstance(fastest, str):
        return Difference("split", ours or ONE_GPU, theirs or ONE_GPU, None, fastest)
    loss, opens = fastest.step_s / plan.best.predicted.step_s - 1, _unstable(plan, whole(fastest)) - uses
    return Difference("split", ours or ONE_GPU, theirs or ONE_GPU, loss, "", tuple(sorted(opens)))


def _fastest(plan: Plan, degrees: Mapping[str, int]) -> Prospect | str:
    """Return the fastest plan of the same job with these degrees, or why there is none."""
    outside = {name: pin for name, pin in plan.job.pins.items() if name not in ("vpp", "layout")}
    pins = outside | {name: str(size) for name, size in degrees.items()}
    job = plan.job.model_copy(update={"pins": pins, "gpus": plan.best.parallel.world_size})
    try:
        resolved(plan.model, plan.cluster, job)
        outcome = run(plan.model, plan.cluster, job, top=1, progress=None, start=0.0)
    except SymconfigError as error:
        return f"cannot run: {error.problems[0]}".rstrip(".")
    ranked = outcome.weighed.ranked()
    return ranked[0] if ranked else "has no plan that runs and fits"


@dataclass(frozen=True, slots=True)
class Choice:
    """A choice that a recipe and a plan may differ in. value: of a candidate; wanted: of a recipe, None where it does
    not say; put: the candidate with the recipe's value. of_precision: it goes with the recipe's precision. option: of
    a recipe's, off where it does not state it, unless its source is silent."""

    field: str
    value: Callable[[Candidate], Any]
    wanted: Callable[[Recipe], Any]
    put: Callable[[Candidate, Any], Candidate]
    of_precision: bool = False
    option: str = ""

    def stated(self, recipe: Recipe, *, silent: bool = False) -> bool:
        """Tell whether a recipe says it. silent: its source does not say what is on."""
        unsaid = silent and bool(self.option) and getattr(recipe.options, self.option) is None
        return not unsaid and self.wanted(recipe) is not None

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
        return _unstaged(changed) if name in ("pp", "vpp") else changed

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


def _unstaged(candidate: Candidate) -> Candidate:
    """Return the candidate without a word of how its stages divide its layers."""
    options = replace(
        candidate.options,
        pipeline_layout=None,
        account_for_embedding=False,
        account_for_loss=False,
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
    candidate = _unstaged(candidate)
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


def _exposed(recipe: Recipe, name: str) -> bool | None:
    """Return False where a recipe has nothing beside an exchange between its replicas, which plans always have."""
    replicated = recipe.dp * recipe.layout.cp > 1
    return False if replicated and getattr(recipe.options, name) is False else None


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
    _option("optimizer in host memory", "optimizer_offload", lambda recipe: recipe.optimizer_offload),
    _option("activations in host memory", "activation_offload", lambda recipe: recipe.activation_offload),
    _option(
        "context parallelism's exchange",
        "cp_comm",
        lambda recipe: recipe.options.cp_comm if recipe.layout.cp > 1 else None,
    ),
    Choice(
        "dispatcher",
        lambda c: c.options.moe_flex_backend or c.options.moe_dispatcher or "none",
        _dispatcher,
        _with_dispatcher,
    ),
    replace(
        _overlap("user buffers", "tp_comm", lambda one: bool(one.options.tp_comm) if one.layout.tp > 1 else None),
        option="tp_comm",
    ),
    # No program has it on by itself: it asks for pipelines that not all degrees have.
    _overlap(
        "experts' all-to-all overlapped",
        "moe_a2a",
        lambda recipe: bool(recipe.options.moe_overlap) if recipe.layout.ep > 1 else None,
    ),
    _overlap("gradients reduced beside computation", "grad_reduce", lambda recipe: _exposed(recipe, "grad_reduce")),
    _overlap("weights gathered beside computation", "param_gather", lambda recipe: _exposed(recipe, "param_gather")),
    _option("CUDA graphs", "cuda_graphs", lambda recipe: recipe.graphs),
    _option("bytes of a gradient", "grad_bytes", _gradient_bytes),
    replace(
        _option("weights in 8 bits", "fp8_param_gather", _eight_bits), of_precision=True, option="fp8_param_gather"
    ),
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
    distance += OTHER_SHARDING * (((recipe.layout.zero or 0) > 1) != (best.options.zero_stage > 1))
    return distance + NOT_TUNED * (recipe.kind != "performance") + OTHER_TASK * (job.task != plan.job.task)
