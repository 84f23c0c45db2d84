"""What becomes of a plan when nodes are lost: the same job solved for every smaller number of them, beforehand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from symconfig.checkpoint import Loadable, loadable
from symconfig.errors import InfeasibleError, InputError, Problem
from symconfig.plan import Plan
from symconfig.render import summary
from symconfig.render.answer import answer

Progress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class Smaller:
    """What is left after `lost` nodes: `nodes` of them with `gpus` GPUs in all.

    plan, loads: the best plan there, and whether it can go on from the whole cluster's checkpoint; None where nothing
    fits, for the reasons in `problems`.
    """

    lost: int
    nodes: int
    gpus: int
    plan: Plan | None
    loads: Loadable | None
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True)
class Fallback:
    """A plan and its smaller ones, the largest first."""

    plan: Plan
    nodes: summary.Nodes
    smaller: tuple[Smaller, ...]

    @property
    def runs(self) -> tuple[tuple[int, Plan], ...]:
        """Numbers of nodes for which there is a plan, the most first, with that plan."""
        return (self.nodes.count, self.plan), *((each.nodes, each.plan) for each in self.smaller if each.plan)

    def share(self, each: Smaller) -> float | None:
        """Tokens per second over what the nodes that are left would give if all scaled with their number."""
        if each.plan is None:
            return None
        return each.plan.best.predicted.tokens_per_s_per_gpu / self.plan.best.predicted.tokens_per_s_per_gpu


def fallback(plan: Plan, lost: Sequence[int], *, top: int, progress: Progress | None = None) -> Fallback:
    """Plans for a cluster that lost so many nodes: same model, same global batch, same limits and pins.

    A number of nodes on which nothing fits is an answer, too. Raises InputError where more nodes are lost than the plan
    has, or none.
    """
    nodes = summary.nodes(plan)
    wrong = [count for count in lost if not 1 <= count < nodes.count]
    if wrong or not lost:
        raise InputError(Problem(
            "a plan of one node has none to lose" if nodes.count == 1 else "cannot lose so many nodes",
            field="lose_nodes", got=", ".join(map(str, wrong)) or "none",
            need=f"1 to {nodes.count - 1}" if nodes.count > 1 else "a plan of more nodes"))
    return Fallback(plan, nodes, tuple(_without(plan, nodes, count, top, progress) for count in sorted(set(lost))))


def _without(plan: Plan, nodes: summary.Nodes, lost: int, top: int, progress: Progress | None) -> Smaller:
    left = nodes.count - lost
    gpus = left * nodes.gpus

    def of(phase: str, share: float) -> None:
        if progress is not None:
            progress(f"{left} of {nodes.count} nodes, {phase}", share)

    try:
        found = answer(plan.model, plan.cluster, plan.job.model_copy(update={"gpus": gpus}), top=top, progress=of)
    except InfeasibleError as error:
        return Smaller(lost, left, gpus, None, None, error.problems)
    return Smaller(lost, left, gpus, found, loadable(plan, found))
