"""What a plan's search did and proved, in sentences that are the same wherever they are read."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from symconfig.format import count
from symconfig.plans.plan import Plan


def searched(plan: Plan) -> tuple[str, ...]:
    """How much was weighed and simulated, what is known of all else, and of other layouts of the best plan's stages."""
    search = plan.search
    weighed = f"{count(search.candidates)} candidates weighed, {count(search.feasible)} fit"
    if search.layouts:
        weighed += (
            f"; {count(search.layouts)} {'layout' if search.layouts == 1 else 'layouts'} of stages tried, "
            f"{count(search.simulated)} {'candidate' if search.simulated == 1 else 'candidates'} simulated"
        )
    return (f"{weighed}; {_others(plan)}.", *_fastest(plan), *_stages(search.stage_gap), *_narrowed(plan))


def _fastest(plan: Plan) -> Iterator[str]:
    """What it costs under the model that another plan was picked than the fastest one, of which the search speaks."""
    if (fastest := plan.beside.fastest) is not None:
        slower = plan.best.predicted.step_s / fastest.predicted.step_s - 1
        yield (
            f"That is said of the fastest plan under the model, {fastest.predicted.step_s:.3f} s; the one picked takes "
            f"{100 * slower:.1f} % longer: it is plainer, or loses less where the model is off."
        )


def _narrowed(plan: Plan) -> Iterator[str]:
    """What it costs that the job's target cannot be told everything."""
    search, own = plan.search, plan.job.target or plan.best.target.backend
    if search.narrowed and search.free_step_s is not None:
        pins = ", ".join(f"{name}={value}" for name, value in search.narrowed.items())
        slower = plan.best.predicted.step_s / search.free_step_s - 1
        cost = f"takes {100 * slower:.1f} % longer than" if slower >= 0.0005 else "is as fast as"
        yield f"Held to what {own} can be told, {pins}, it {cost} the best plan of its framework."


def _others(plan: Plan) -> str:
    search = plan.search
    if search.gap > 0:
        return f"the search stopped early, and what was left out could be faster by at most {_at_most(search.gap)}"
    if plan.job.objective == "symtensor":
        return "no other one that fits has a lower relative cost"
    if search.layout_gap > 0:
        return (
            "no other one is better under the model in any layout tried, nor by more than "
            f"{_at_most(search.layout_gap)} in one that was not"
        )
    if not search.optimal:
        return "the search stopped early, so a better one may exist"
    return "no other one is better under the model"


def _stages(gap: float | None) -> tuple[str, ...]:
    """Nothing where there is no pipeline, or nothing was proved."""
    if gap is None:
        return ()
    if gap == 0:
        return ("Stages: no layout has a faster slowest stage (proved).",)
    return (
        f"Stages: no layout's slowest stage is faster by more than {_at_most(gap)} (proved); the simulated step "
        "decides, not the slowest stage alone.",
    )


def _at_most(share: float) -> str:
    """Percent, rounded up, so that what is said holds."""
    return f"{ceil(1000 * share) / 10:.1f} %"
