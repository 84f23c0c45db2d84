"""Hold every recipe against the plan of its job, into docs/evidence/recipes.md.

Some only: --limit 40 takes as many jobs, spread over all. Jobs run in parallel processes.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from math import log2
from statistics import median

from benchmarks.robust import Shaken, robustness
from symconfig.descriptor.job import Job
from symconfig.descriptor.load import load_cluster, load_model
from symconfig.descriptor.recipe import Recipe, RecipeFile, RecipeJob, every_recipe, load_recipes
from symconfig.errors import SymconfigError
from symconfig.frameworks.known import BACKENDS, facts_of
from symconfig.graph.model import parameters
from symconfig.plans.configuration_set import ConfigurationSet
from symconfig.plans.plan import Candidate, Plan
from symconfig.report.listed import layout_words
from symconfig.solve import candidate
from symconfig.solve.choice import ranked
from symconfig.solve.extras import used_experimental
from symconfig.solve.pins import agree
from symconfig.solve.run import run
from symconfig.solve.search import resolved, search
from tests.pins import VALUES
from tools.pages import EVIDENCE, fill, table

PAGE = EVIDENCE / "recipes.md"
TOP = 5
SHAKEN = 4  # of so many jobs one is planned again where something is otherwise, which takes most of the time
LITTLE = 0.02  # a pick that loses less stays
BACKEND = "megatron"
MOST_TIMES_LARGER = 3.0  # a model of which a recipe still says something
SPLIT = ("tp", "pp", "cp", "ep", "etp")
Asked = tuple[str, RecipeJob]


@dataclass(frozen=True, slots=True)
class Pinned:
    """The fastest plan with some pins.

    loss: its step over the pick's, less one; None: there is none, as `why` says. opens: experimental options that the
    pins ask for and the pick does not use.
    """

    loss: float | None
    why: str = ""
    opens: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Priced:
    """A recipe in the job of a pick. layout: all that its pins state; split: its degrees and sharding, all else free;
    None: the pick has the same."""

    layout: Pinned | None
    split: Pinned | None


@dataclass(frozen=True, slots=True)
class Pick:
    """The plan of a job. failed: why there is none; the rest is then empty. unseen: what it uses, by the source of
    recipes of which none does."""

    job: Asked
    failed: str = ""
    words: str = ""
    unstable: tuple[str, ...] = ()
    families: int = 0
    memory: bool = False
    shaken: tuple[Shaken, ...] = ()

    @property
    def worst(self) -> float:
        """The most that it loses where something is otherwise; meaningless where that was not tried."""
        return max((one.loss for one in self.shaken), default=0.0)


@dataclass(frozen=True, slots=True)
class Row:
    """One recipe beside the pick of its job. seen: its layout and its split in the pick's job; None: there is none."""

    id: str
    layout: str
    pick: Pick
    seen: Priced | None = None
    unseen: tuple[str, ...] = ()
    family: str = ""

    @property
    def priced(self) -> dict[str, Pinned]:
        """Return by column what has been priced of it: where the pick has the same, it loses nothing."""
        if self.seen is None:
            return {}
        same = Pinned(0.0)
        return {"pick/recipe": self.seen.layout or same, "pick/split": self.seen.split or same}

    @property
    def launchable(self) -> bool:
        """Stable options only, a published family or one priced against it, and memory that fits."""
        return not self.pick.failed and not self.pick.unstable and self.family != "no" and self.pick.memory


def compared(plan: Plan, recipe: Recipe) -> Priced:
    """Return what the layout of a recipe, and its split with all else free, lose in the plan's job: one search each,
    with the recipe's pins."""
    pins, differ = recipe.as_pins(), set[str]()
    if recipe.job.precision != plan.best.configuration.precision:
        pins.pop("fp8_param_gather", None)
    for name, theirs in pins.items():
        ours = VALUES[name](plan.best)  # None for recompute of some layers, say, which no pin has
        if ours is None or not agree(name, ours, theirs):
            differ.add(name)
    split = {name: pins[name] for name in (*SPLIT, "zero") if name in pins}
    return Priced(_pinned(plan, pins) if differ else None, _pinned(plan, split) if differ & split.keys() else None)


def _pinned(plan: Plan, pins: Mapping[str, str]) -> Pinned:
    """Return what the fastest plan of the job with these pins loses; the job's own pins of layers to stages do not
    count."""
    outside = {name: pin for name, pin in plan.job.pins.items() if name not in ("vpp", "layout")}
    job = plan.job.model_copy(update={"pins": {**outside, **pins}, "gpus": plan.best.configuration.world_size})
    try:
        every = run(plan.model, plan.cluster, resolved(plan.model, plan.cluster, job), 1).best
    except SymconfigError as error:
        return Pinned(None, f"cannot run: {error.problems[0]}".rstrip("."))
    if not every:
        return Pinned(None, "has no plan that runs and fits")
    (fastest,) = ranked(every, 1)
    fixed = facts_of(plan.model, plan.cluster, plan.job)
    pinned = candidate.described(fastest, plan.cluster, job)
    own, needed = ({one.name for one in used_experimental(plan.job, fixed, each)} for each in (plan.best, pinned))
    loss = pinned.predicted.step_s / plan.best.predicted.step_s - 1
    return Pinned(loss, opens=tuple(sorted(needed - own)))


def rows(task: tuple[Asked, bool]) -> list[Row]:
    """Plan a job, and price the layout of each of its recipes in that plan. task: with whether it is shaken, too."""
    asked, shaken = task
    name, job = asked
    file = load_recipes(name)
    mine = [recipe for recipe in file.recipes if recipe.job == job]
    heads = [{"id": recipe.id, "layout": layout_words(recipe.layout.model_dump())} for recipe in mine]
    model, cluster = load_model(name), load_cluster(job.cluster)
    whole = Job(model=name, backend=BACKEND, **job.model_dump())
    try:
        plan = search(model, cluster, whole, top=TOP)
    except SymconfigError as error:
        return [Row(**head, pick=Pick(asked, str(error.problems[0]))) for head in heads]
    release, uses = BACKENDS[BACKEND].releases.of(plan.job), used(plan)
    pick = Pick(
        asked,
        words=_pick(plan.best),
        unstable=tuple(
            one.name for one in BACKENDS[BACKEND].options if one.name in uses and one.standing(release) is not None
        ),
        families=len({family(one) for one in plan.ranked}),
        memory=not plan.may_not_fit,
        shaken=robustness(plan) if shaken else (),
    )
    found = []
    for head, recipe in zip(heads, mine, strict=True):
        seen = compared(plan, recipe)
        found.append(
            Row(
                **head,
                pick=pick,
                seen=seen,
                unseen=tuple(sorted(uses - stated(recipe.source))),
                family=_family(plan, file, seen.layout.loss if seen.layout else 0.0),
            )
        )
    return found


def used(plan: Plan) -> frozenset[str]:
    """Name what a plan uses beside its degrees: options of the table, layouts of stages, recompute."""
    fixed, point = facts_of(plan.model, plan.cluster, plan.job), plan.best.configuration
    return _named(fixed, point) | _more(
        plan.best.configuration.pipeline_layout, point.recompute, point.recompute_modules
    )


def _named(fixed: object, point: object) -> frozenset[str]:
    return frozenset(option.name for option in BACKENDS[BACKEND].options if option.used(fixed, point))


def _more(layout: str | None, recompute: str, modules: Iterable[str]) -> frozenset[str]:
    found = {"layout string": layout is not None, "full recompute": recompute == "full"}
    return frozenset(name for name, on in found.items() if on) | {f"recompute {module}" for module in modules}


@cache
def stated(source: str) -> frozenset[str]:
    """Name what the recipes of a source and release use, in the words of `used`."""
    return frozenset().union(*(_stated(file, one) for file, one in every_recipe() if one.source == source))


def _stated(file: RecipeFile, recipe: Recipe) -> frozenset[str]:
    layout, said, job = recipe.layout, recipe.options, recipe.job
    granularity, _, modules = (layout.recompute or "none").partition(":")
    point = ConfigurationSet(
        **layout.degrees,
        world_size=job.gpus,
        seq_length=job.seq_length,
        precision=job.precision,
        zero_stage=layout.zero or 1,
        grad_bytes=2 if said.gradients == "bf16" else 4,
        activation_offload=recipe.activation_offload,
        optimizer_offload=recipe.optimizer_offload,
        param_offload=False,
        overlap_moe_a2a=bool(said.moe_overlap),
        moe_dispatcher="flex" if said.dispatcher in ("deepep", "hybridep") else "alltoall",
        moe_flex_backend=said.dispatcher if said.dispatcher in ("deepep", "hybridep") else None,
        overlap_tp_comm=bool(said.tp_comm),
        cuda_graphs=recipe.graphs or "none",
        expert_capacity=said.expert_capacity or 0.0,
        paged_stash=bool(said.paged_stash),
        fp8_attention=bool(said.fp8_attention),
        fused_loss=bool(said.fused_loss),
        fp8_param_gather=bool(said.fp8_param_gather),
    )
    whole = Job(model=file.model, backend=BACKEND, **job.model_dump())
    fixed = facts_of(load_model(file.model), load_cluster(job.cluster), whole)
    again = modules.split(",") if granularity == "selective" and modules else ()
    stages = layout.stages if layout.stages and "|" in layout.stages else None
    return _named(fixed, point) | _more(stages, granularity, again)


def family(candidate: Candidate) -> tuple[int, int, int, int]:
    """Return how a plan splits the model."""
    degrees = candidate.configuration
    return degrees.tp, degrees.pp, degrees.cp, degrees.ep


def _family(plan: Plan, file: RecipeFile, loss: float | None) -> str:
    """Say whether the pick's family is published: yes, priced, or no."""
    mine, gpu = parameters(plan.model).total, plan.cluster.gpu.architecture
    for other, recipe in every_recipe():
        layout, model = recipe.layout, load_model(other.model)
        if family(plan.best) != (layout.tp, layout.pp, layout.cp, layout.ep):
            continue
        alike = other.model == file.model or (
            (model.experts is None) == (plan.model.experts is None)
            and abs(log2(parameters(model).total / mine)) <= log2(MOST_TIMES_LARGER)
        )
        if alike and load_cluster(recipe.job.cluster).gpu.architecture == gpu:
            return "yes"
    low, high = plan.best.predicted.interval.get("step_s", (0.0, 0.0))
    step_s = None if loss is None else plan.best.predicted.step_s * (1 + loss)
    return "priced" if step_s is not None and low <= step_s <= high else "no"


def ratio(priced: Pinned) -> float | None:
    """Return the pick's step over that of what was priced."""
    return None if priced.loss is None else 1 / (1 + priced.loss)


def _pick(candidate: Candidate) -> str:
    c = candidate.configuration
    said = {name: getattr(c, name) for name in ("tp", "pp", "vpp", "cp", "ep", "etp")}
    words = layout_words({**said, "micro": c.micro, "zero": c.zero_stage})
    return words if c.recompute == "none" else f"{words} {','.join(c.recompute_modules) or c.recompute}"


def summary(found: Sequence[Row], every: int) -> str:
    """The counts that stand at the top: of recipes, and of the picks of their jobs."""
    picks = list({one.pick.job: one.pick for one in found}.values())
    planned, able = [one for one in picks if not one.failed], [one for one in found if not one.pick.failed]

    def share(name: str, count: int, of: int) -> str:
        return f"| {name} | {count} of {of} ({count / max(of, 1):.0%}) |"

    tried = [one for one in planned if one.shaken]
    ratios = {
        name: [value for one in able if (value := ratio(one.priced[name])) is not None]
        for name in ("pick/recipe", "pick/split")
    }
    opens = Counter(name for one in able for name in one.priced["pick/recipe"].opens)
    unstable = Counter(name for one in planned for name in one.unstable)
    unseen = Counter(name for one in able for name in one.unseen)
    families = sum(one.families for one in planned) / max(len(planned), 1)
    lines = [
        f"{len(found)} of {every} recipes with {len(picks)} jobs; {len(picks) - len(planned)} jobs have no plan.",
        "",
        "| of the recipes' jobs | |",
        "|---|---|",
        share(
            "stable options, a published or priced family, and memory fits", sum(r.launchable for r in able), len(able)
        ),
        share("the pick's family is published", sum(r.family == "yes" for r in able), len(able)),
        share("another one, with the recipe within its interval", sum(r.family == "priced" for r in able), len(able)),
        share("the recipe's layout has a price", len(ratios["pick/recipe"]), len(able)),
        share("so has its split, with all else free", len(ratios["pick/split"]), len(able)),
        share("the pick has its split", sum(one.seen is not None and not one.seen.split for one in able), len(able)),
        *(f"| median of {name} | {median(values or [0]):.3f} |" for name, values in ratios.items()),
        *(share(f"priced with {name}, which the pick may not have", n, len(able)) for name, n in opens.most_common()),
        "",
        "| of the picks | |",
        "|---|---|",
        share("stable options only", sum(not one.unstable for one in planned), len(planned)),
        share("memory's interval fits", sum(one.memory for one in planned), len(planned)),
        share(f"shaken, it loses less than {LITTLE:.0%}", sum(p.worst < LITTLE for p in tried), len(tried)),
        f"| families among the first five, on average | {families:.1f} |",
        *(share(f"with {name}", count, len(planned)) for name, count in unstable.most_common()),
        "",
        "Used by picks and by no recipe of the same source and release: "
        + (", ".join(f"{name} ({count})" for name, count in unseen.most_common()) or "nothing")
        + ".",
    ]
    return "\n".join(lines)


def each(found: Iterable[Row]) -> str:
    """One line a recipe."""
    heads = (
        *("recipe", "job", "layout", "pick", "pick/recipe", "pick/split"),
        *("in no recipe", "family", "families", "memory", "shaken"),
    )
    lines = list[tuple[str, ...]]()
    for one in found:
        pick, (model, job) = one.pick, one.pick.job
        task = "" if job.task == "pretrain" else f", {job.task}"
        words = (
            f"{model}, {job.gpus:,} x {job.cluster}, {job.global_batch_size:,} x {job.seq_length:,}, {job.precision}"
        )
        head = (one.id, words + task, one.layout)
        if pick.failed:
            cells = (*head, f"none: {pick.failed}", *[""] * 7)
        else:
            ratios = [one_of.why if one_of.loss is None else f"{ratio(one_of):.3f}" for one_of in one.priced.values()]
            unseen = ", ".join((*one.unseen, *(f"not stable: {name}" for name in pick.unstable)))
            fits = "fits" if pick.memory else "may not fit"
            cells = (
                *head,
                pick.words,
                *ratios,
                unseen,
                one.family,
                str(pick.families),
                fits,
                f"{pick.worst:.1%}" if pick.shaken else "",
            )
        lines.append(cells)
    return table(heads, lines, (4, 5, 8, 10))


def chosen(limit: int | None, only: str | None) -> list[Asked]:
    """Jobs of recipes, evenly spread over all."""
    named = [(file.model, recipe.job) for file, recipe in every_recipe() if only is None or only in recipe.id]
    every = list(dict.fromkeys(named))
    if limit is None or limit >= len(every):
        return every
    return [every[place * len(every) // limit] for place in range(limit)]


def parts(found: Sequence[Row]) -> dict[str, str]:
    """Return the counts of all, and a line for each recipe."""
    every = sum(1 for _ in every_recipe())
    return {"counts": summary(found, every), "recipes": each(found)}


def main() -> None:
    """Write the page, or print what was asked for alone."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--limit", type=int, metavar="N", help="so many jobs, spread over all")
    parser.add_argument("--only", metavar="TEXT", help="with this in their name; the page is printed instead")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="processes (default 2)")
    asked = parser.parse_args()
    with ProcessPoolExecutor(asked.jobs) as pool:
        tasks = [(one, place % SHAKEN == 0) for place, one in enumerate(chosen(asked.limit, asked.only))]
        found = [row for some in pool.map(rows, tasks) for row in some]
    if asked.only is None:
        fill(PAGE, parts(found))
    else:
        print("\n".join(parts(found).values()))
