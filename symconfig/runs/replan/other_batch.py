"""A batch close by with which a plan made again is faster, or keeps more of its checkpoint."""

from __future__ import annotations

from collections.abc import Callable

from symconfig.errors import InfeasibleError
from symconfig.format import percent
from symconfig.plans.plan import Plan
from symconfig.runs.checkpoint import Loadable
from symconfig.solve.near_batch import near_batch, replicas_sentence

TIE = 0.02  # shares of speed that say nothing


def other_batch(
    plan: Plan, loads: Loadable, solved: Callable[[int], Plan], judged: Callable[[Plan], Loadable]
) -> str | None:
    """Return a sentence that names such a batch, by how much it is faster and what its plan loads; None: there is none.

    loads: what becomes of the run's checkpoint in the plan. solved: finds the plan of another batch; judged: what
    becomes of the checkpoint in that.
    """
    if plan.rl or (batch := near_batch(plan)) is None:
        return None
    try:
        other = solved(batch)
    except InfeasibleError:
        return None
    one, two = plan.best.predicted.tokens_per_s_per_gpu, other.best.predicted.tokens_per_s_per_gpu
    verdict, faster = judged(other).verdict, two / one - 1
    loads_more = verdict.rank < loads.verdict.rank
    if faster <= -TIE or not (loads_more or faster > TIE):
        return None
    speed = f"{percent(faster)} more tokens a second" if faster > 0 else f"{percent(-faster)} fewer tokens a second"
    kept = f"; the checkpoint: {verdict.value} instead of {loads.verdict.value}" if loads_more else ""
    return f"{replicas_sentence(plan, batch)}: {speed}{kept}. Try: --global-batch-size {batch}"
