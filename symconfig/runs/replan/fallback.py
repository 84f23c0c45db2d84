"""What becomes of a plan when nodes are lost: the same job solved for every smaller number of them, beforehand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from symconfig.errors import InfeasibleError, InputError, Problem
from symconfig.plans.plan import Plan
from symconfig.plans.sentences import batch_nearby
from symconfig.render import summary
from symconfig.runs.best import best_plan
from symconfig.runs.checkpoint.folder import shown
from symconfig.runs.checkpoint.loadable import Saving, loadable, savings
from symconfig.runs.checkpoint.table import Loadable

Progress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class Smaller:
    """The plan after `lost` nodes: `nodes` remain with `gpus` GPUs in all.

    plan: the best one; None if nothing fits, with `problems`. every: whether a checkpoint of the full plan loads, for
    each way of `savings`. other_batch: as of `Replan`.
    """

    lost: int
    nodes: int
    gpus: int
    plan: Plan | None
    every: Mapping[Saving, Loadable]
    problems: tuple[Problem, ...] = ()
    other_batch: str | None = None

    @property
    def loads(self) -> Loadable | None:
        """Return whether the checkpoint that the rendered files write loads; None without a plan."""
        return next(iter(self.every.values()), None)


@dataclass(frozen=True, slots=True)
class Fallback:
    """A plan and its plans for fewer nodes, the most nodes first."""

    plan: Plan
    nodes: summary.Nodes
    smaller: tuple[Smaller, ...]

    @property
    def advised(self) -> Saving | None:
        """Return the way to save with which the most smaller plans load the checkpoint whole without a conversion, the
        first of equals; None if that is the default one. Numbers of nodes without a plan are ignored.
        """
        ways, planned = savings(self.plan), [each for each in self.smaller if each.plan is not None]
        best = min(ways, key=lambda way: sum(not each.every[way].verdict.unconverted for each in planned))
        return None if best == ways[0] else best

    def advisedly(self, each: Smaller) -> Loadable | None:
        """Return whether the checkpoint loads in a smaller plan if saved as `advised`; None without advice or plan."""
        return None if self.advised is None else each.every.get(self.advised)

    @property
    def runs(self) -> tuple[tuple[int, Plan], ...]:
        """Return (nodes, plan) of all numbers of nodes with a plan, descending, the full cluster first."""
        return (self.nodes.count, self.plan), *((each.nodes, each.plan) for each in self.smaller if each.plan)

    def share(self, each: Smaller) -> float | None:
        """Return tokens per second per GPU over the full cluster's (scaling efficiency); None without a plan."""
        if each.plan is None:
            return None
        return each.plan.best.predicted.tokens_per_s_per_gpu / self.plan.best.predicted.tokens_per_s_per_gpu


def fallback(plan: Plan, lost: Sequence[int], *, top: int, progress: Progress | None = None) -> Fallback:
    """Return the plans after losing these numbers of nodes, each once and rising, for the same job but its GPUs. top:
    candidates of each. A number of nodes on which nothing fits is recorded, not raised. Raises InputError if `lost` is
    empty or a number is not from 1 to the plan's nodes less one, or as `best_plan`.
    """
    nodes = summary.nodes(plan)
    wrong = [count for count in lost if not 1 <= count < nodes.count]
    if wrong or not lost:
        raise InputError(
            "a plan of one node has none to lose"
            if nodes.count == 1
            else f"cannot lose so many of {nodes.count} nodes",
            field="lose_nodes",
            got=shown(list(map(str, wrong))) or "none",
            need="a plan of more nodes" if nodes.count == 1 else "1" if nodes.count == 2 else f"1 to {nodes.count - 1}",
        )
    return Fallback(plan, nodes, tuple(_without(plan, nodes, count, top, progress) for count in sorted(set(lost))))


def _without(plan: Plan, nodes: summary.Nodes, lost: int, top: int, progress: Progress | None) -> Smaller:
    """Return the best plan without `lost` nodes, and whether the full plan's checkpoint loads in it, for each way to
    save. If its ZeRO stage is another one, a plan with the full plan's stage replaces it where there is one. If nothing
    fits, the result has `problems` and no plan. progress: called with a phase that names the nodes.
    """
    left = nodes.count - lost
    gpus = left * nodes.gpus

    def of(phase: str, share: float) -> None:
        if progress is not None:
            progress(f"{left} of {nodes.count} nodes, {phase}", share)

    job, stage = plan.job.model_copy(update={"gpus": gpus}), plan.best.configuration.zero_stage
    try:
        rest = best_plan(plan.model, plan.cluster, job, top=top, progress=of)
    except InfeasibleError as error:
        return Smaller(lost, left, gpus, None, {}, error.problems)
    if (
        rest.best.configuration.zero_stage != stage
    ):  # the optimizer's state loads only where it is sharded as it was saved
        kept = job.model_copy(update={"pins": {**job.pins, "zero": str(stage)}})
        with suppress(InputError, InfeasibleError):
            rest = best_plan(plan.model, plan.cluster, kept, top=top, progress=of)
    loads = {way: loadable(plan, rest, way.kind) for way in savings(plan)}
    return Smaller(lost, left, gpus, replace(rest, history=plan.history), loads, other_batch=batch_nearby(rest))
