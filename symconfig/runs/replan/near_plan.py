"""Plans near an old one: as fast as the best within a little, and its checkpoint is loaded with less ado.

Three groups of choices decide what a checkpoint holds and where: which rank has which part of which weight, how the
optimizer's state is divided, and its precision. Each group that the new plan chose otherwise is kept by itself and with
the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations

from symconfig.errors import InfeasibleError, InputError
from symconfig.plans.plan import Candidate, Plan
from symconfig.runs.checkpoint import Loadable, Verdict
from symconfig.runs.replan import keep

WORTH = 0.01  # a step that is this much longer is worth a checkpoint that is loaded with less ado
FREE = 0.001  # and this much longer is nothing
GROUPS = (keep.LAYOUT, ("zero",), ("precision",))


@dataclass(frozen=True, slots=True)
class NearPlan:
    """A plan that keeps some choices of the old one. slower: its step over the new plan's, less one.

    verdict: of the old plan's checkpoint in it.
    """

    pins: dict[str, str]
    plan: Plan
    slower: float
    verdict: Verdict

    @property
    def free(self) -> bool:
        """Tell whether it costs nothing."""
        return self.slower <= FREE


def nearest(
    old: Plan, new: Plan, loads: Loadable, solved: Callable[[Mapping[str, str]], Plan],
    loadable: Callable[[Plan], Loadable],
) -> NearPlan | None:  # fmt: skip
    """Find the plan with the least work for its checkpoint, of those that keep some old choices and are hardly slower.

    Of several, the fastest, and of those that which keeps the least.

    loads: what becomes of the old plan's checkpoint in the new one, `loadable`: in any. solved: the best plan with pins
    beside those that are asked for. None where no such plan is loaded with less ado than the new one.
    """
    if loads.verdict is Verdict.AS_IS or old.model != new.model or _framework(old) != _framework(new):
        return None
    plans = []
    for pins in pins_kept(old.best, new):
        try:
            plan = solved(pins)
        except (InputError, InfeasibleError):
            continue
        slower = plan.best.predicted.step_s / new.best.predicted.step_s - 1
        verdict = loadable(plan).verdict
        if slower <= WORTH and verdict.rank < loads.verdict.rank:
            plans.append(NearPlan(pins, plan, slower, verdict))
    return min(plans, key=lambda one: (one.verdict.rank, max(0.0, one.slower), len(one.pins)), default=None)


def _framework(plan: Plan) -> str:
    return plan.best.target.backend


def pins_kept(old: Candidate, new: Plan) -> Iterator[dict[str, str]]:
    """Yield the old values of the groups in which both differ, of one group, of two, of all; never of wanted fields."""
    groups = [
        pins
        for names in GROUPS
        if (pins := keep.differing(old, new.best, [name for name in names if name not in new.job.pins]))
    ]
    for size in range(1, len(groups) + 1):
        for some in combinations(groups, size):
            yield {name: value for pins in some for name, value in pins.items()}
