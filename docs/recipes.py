"""Every recipe against the plan of its job, into docs/recipes.md: `python docs/recipes.py`.

Some only: --limit 40 takes as many, spread over all. Plans run in parallel processes.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from math import log2
from pathlib import Path

from symconfig.descriptor.job import Job
from symconfig.descriptor.load import load_cluster, load_model
from symconfig.descriptor.recipe import Recipe, RecipeFile, every_recipe, find_recipe
from symconfig.errors import SymconfigError
from symconfig.frameworks.megatron.maturity import LEAST_SHARE, MOST_CHUNKS, MOST_STAGES
from symconfig.graph.count import parameters
from symconfig.plans.plan import Candidate, Plan
from symconfig.report.recipes import layout_words
from symconfig.runs.best import best_plan
from symconfig.runs.recipes.near import MOST_TIMES_LARGER, compared

PAGE = Path(__file__).with_suffix(".md")
TOP = 5
NARROW = 0.02  # a pick that loses less than this over the draws stays
Family = tuple[int, int, int, int]

# What nobody would put into a first run, by what a plan is seen to use.
EXOTIC = (
    "activation offload",
    "optimizer offload",
    "parameter offload",
    "empty chunks",
    "etp > 1",
    f"pp > {MOST_STAGES}",
    f"vpp > {MOST_CHUNKS}",
    f"cp with less than {LEAST_SHARE:,} tokens a rank",
    "cp by a2a up to 8,192 tokens",
)
ABOUT = """\
# Recipes and picks

Written by `make recipes`. Each published layout of `model_zoo/recipes` is priced on its own job, and the job is planned
freely, for Megatron-LM, whatever framework the recipe is of. *pick/recipe*: predicted step of the pick over that of the
recipe's layout, taken into the pick's plan (what the recipe does not state is as the pick has it); below 1 the pick is
said to be faster. *in no recipe*: what the pick uses and no recipe of the same source and release does. *family*:
whether any recipe for a model of the same kind, up to three times larger or smaller, on GPUs of this architecture has
the pick's tp, pp, cp and ep; *priced*: none has, and the recipe's predicted step lies within the interval of the
pick's. *memory*: whether the interval of the pick's memory is within the GPU's.
"""


@dataclass(frozen=True, slots=True)
class Row:
    """One recipe. failed: why its job has no plan; the rest is then empty."""

    id: str
    job: str
    layout: str
    failed: str = ""
    pick: str = ""
    ratio: float | None = None
    why: str = ""
    uses: frozenset[str] = frozenset()
    unseen: tuple[str, ...] = ()
    opened: tuple[str, ...] = ()
    family: str = ""
    families: int = 0
    memory: bool = False
    expected_loss: float | None = None

    @property
    def launchable(self) -> bool:
        """Stable options only, a published family or one priced against it, and memory that fits."""
        return not self.failed and not self.opened and self.family != "no" and self.memory


def row(name: str) -> Row:
    """Plan the job of a recipe, and price its layout in that plan."""
    file, recipe = find_recipe(name)
    job = recipe.job
    words = f"{file.model}, {job.gpus:,} x {job.cluster}, {job.global_batch_size:,} x {job.seq_length:,}, {job.precision}"
    head = {"id": name, "job": words, "layout": layout_words(recipe.layout.model_dump())}
    model, cluster = load_model(file.model), load_cluster(job.cluster)
    try:
        plan = best_plan(model, cluster, Job(model=file.model, **job.model_dump()), top=TOP)
    except SymconfigError as error:
        return Row(**head, failed=str(error.problems[0]))
    seen = compared(plan, file, recipe)
    uses = used(plan.best)
    same = [one for _, one in every_recipe() if one.source == recipe.source]
    return Row(
        **head,
        pick=_pick(plan.best),
        ratio=None if seen.loss is None else 1 / (1 + seen.loss),
        why=seen.why,
        uses=uses,
        unseen=tuple(sorted(uses - frozenset().union(*map(stated, same)))),
        opened=tuple(one.name for one in plan.search.opened),
        family=_family(plan, file, seen.loss),
        families=len({family(one) for one in (plan.best, *plan.alternatives)}),
        memory=not plan.may_not_fit,
        expected_loss=None if plan.best.judged is None else plan.best.judged.expected_loss,
    )


def used(candidate: Candidate) -> frozenset[str]:
    """Name what a plan uses beside its degrees."""
    options, degrees, seq = candidate.options, candidate.parallel, candidate.batch.seq_length
    empty = any(not chunk for stage in candidate.stages for chunk in stage.chunks)
    found = {
        "activation offload": options.activation_offload,
        "optimizer offload": options.optimizer_offload > 0,
        "parameter offload": options.param_offload,
        "empty chunks": empty,
        "cp by a2a up to 8,192 tokens": degrees.cp > 1 and options.cp_comm == "a2a" and seq <= 8192,
        "experts' all-to-all overlapped": options.overlap.moe_a2a,
        "user buffers": options.overlap.tp_comm,
        "uneven stages": bool(options.stage_layout),
        f"dispatcher {options.moe_flex_backend or options.moe_dispatcher}": degrees.ep > 1,
        f"cuda graphs: {options.cuda_graphs}": options.cuda_graphs != "none",
        "full recompute": options.recompute.granularity == "full",
        **{f"recompute {module}": True for module in options.recompute.modules},
    }
    zero, shape = options.zero_stage, (degrees.pp, degrees.vpp, degrees.cp, degrees.etp)
    return frozenset(name for name, on in found.items() if on) | _shape(*shape, zero, seq)


def _shape(pp: int, vpp: int, cp: int, etp: int, zero: int, seq_length: int) -> frozenset[str]:
    found = {
        "etp > 1": etp > 1,
        f"pp > {MOST_STAGES}": pp > MOST_STAGES,
        f"vpp > {MOST_CHUNKS}": vpp > MOST_CHUNKS,
        f"cp with less than {LEAST_SHARE:,} tokens a rank": cp > 1 and seq_length < LEAST_SHARE * cp,
        f"ZeRO {zero}": zero >= 2,
    }
    return frozenset(name for name, on in found.items() if on)


def stated(recipe: Recipe) -> frozenset[str]:
    """Name what a recipe uses beside its degrees, in the words of `used`."""
    layout, options = recipe.layout, recipe.options
    granularity, _, modules = (layout.recompute or "none").partition(":")
    found = {
        "activation offload": "activation" in (options.offload or "") or "modules" in (options.offload or ""),
        "optimizer offload": "optimizer" in (options.offload or ""),
        "cp by a2a up to 8,192 tokens": layout.cp > 1 and options.cp_comm == "a2a" and recipe.job.seq_length <= 8192,
        "experts' all-to-all overlapped": bool(options.moe_overlap),
        "user buffers": bool(options.tp_comm),
        "uneven stages": layout.stages is not None,
        f"dispatcher {options.dispatcher}": options.dispatcher is not None,
        f"cuda graphs: {graphs(options.cuda_graphs)}": graphs(options.cuda_graphs) != "none",
        "full recompute": granularity == "full",
        **{f"recompute {module}": True for module in modules.split(",") if granularity == "selective"},
    }
    shape = _shape(layout.pp, layout.vpp, layout.cp, layout.etp, layout.zero or 0, recipe.job.seq_length)
    return frozenset(name for name, on in found.items() if on) | shape


def graphs(said: str | None) -> str:
    """Return what is replayed in the words of a plan's option."""
    if said in (None, "none"):
        return "none"
    if said in ("full_iteration", "on"):
        return "all"
    return "outside experts" if "attn" in str(said) else "router"


def family(candidate: Candidate) -> Family:
    """Return how a plan splits the model."""
    degrees = candidate.parallel
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


def _pick(candidate: Candidate) -> str:
    degrees, again = candidate.parallel, candidate.options.recompute
    said = {name: getattr(degrees, name) for name in ("tp", "pp", "vpp", "cp", "ep", "etp")}
    words = layout_words({**said, "micro": candidate.batch.micro, "zero": candidate.options.zero_stage})
    return f"{words} {','.join(again.modules) or again.granularity}" if again.granularity != "none" else words


def summary(rows: Sequence[Row], every: int) -> str:
    """The counts that stand at the top."""
    planned = [one for one in rows if not one.failed]
    whole = len(planned) or 1

    def share(count: int) -> str:
        return f"{count} of {len(planned)} ({100 * count / whole:.0f} %)"

    exotic = Counter(name for one in planned for name in one.uses & set(EXOTIC))
    lines = [
        f"{len(rows)} of {every} recipes; {len(rows) - len(planned)} have no plan.",
        "",
        "| of the picks | |",
        "|---|---|",
        f"| stable, of a published family or priced against it, memory fits | {share(sum(one.launchable for one in planned))} |",
        f"| stable options only | {share(sum(not one.opened for one in planned))} |",
        f"| of a published family | {share(sum(one.family == 'yes' for one in planned))} |",
        f"| of another one, with the recipe within the interval | {share(sum(one.family == 'priced' for one in planned))} |",
        f"| memory's interval fits | {share(sum(one.memory for one in planned))} |",
        f"| families among the first five, on average | {sum(one.families for one in planned) / whole:.1f} |",
        f"| the recipe's layout has a price | {share(sum(one.ratio is not None for one in planned))} |",
    ]
    drawn = [one for one in planned if one.expected_loss is not None]
    if drawn:
        kept = sum((one.expected_loss or 0.0) < NARROW for one in drawn)
        lines.append(f"| expected loss over the draws below {NARROW:.0%} | {kept} of {len(drawn)} |")
    lines += [f"| with {name} | {share(exotic[name])} |" for name in EXOTIC]
    unseen = Counter(name for one in planned for name in one.unseen)
    lines += ["", "Used by picks and by no recipe of the same source and release: "]
    lines[-1] += ", ".join(f"{name} ({count})" for name, count in unseen.most_common()) + "."
    return "\n".join(lines)


def table(rows: Iterable[Row]) -> str:
    """One line a recipe."""
    heads = ("recipe", "job", "layout", "pick", "pick/recipe", "in no recipe", "family", "families", "memory")
    lines = ["| " + " | ".join(heads) + " |", "|---|---|---|---|---:|---|---|---:|---|"]
    for one in rows:
        if one.failed:
            cells = (one.id, one.job, one.layout, f"none: {one.failed}", "", "", "", "", "")
        else:
            ratio = one.why if one.ratio is None else f"{one.ratio:.3f}"
            unseen = ", ".join((*one.unseen, *(f"opened: {name}" for name in one.opened)))
            fits = "fits" if one.memory else "may not fit"
            cells = (one.id, one.job, one.layout, one.pick, ratio, unseen, one.family, str(one.families), fits)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def chosen(limit: int | None, only: str | None) -> list[str]:
    """Names of the recipes that are planned, evenly spread over all."""
    every = [recipe.id for _, recipe in every_recipe() if only is None or only in recipe.id]
    if limit is None or limit >= len(every):
        return every
    return [every[place * len(every) // limit] for place in range(limit)]


def page(rows: Sequence[Row]) -> str:
    every = sum(1 for _ in every_recipe())
    return f"{ABOUT}\n{summary(rows, every)}\n\n{table(rows)}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--limit", type=int, metavar="N", help="so many, spread over all")
    parser.add_argument("--only", metavar="TEXT", help="with this in their name; the page is printed instead")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="processes (default 2)")
    asked = parser.parse_args()
    with ProcessPoolExecutor(asked.jobs) as pool:
        text = page(list(pool.map(row, chosen(asked.limit, asked.only))))
    if asked.only is None:
        PAGE.write_text(text, encoding="utf-8")
    else:
        print(text)


if __name__ == "__main__":
    main()
