"""Refinement: the best candidates simulated, in the stages that were weighed and in those that the stage solver finds.

The degrees were weighed under a few layouts of stages and a formula for the schedule. The best candidates of each
family, and those that may fit in a better layout, are laid out by seconds and bytes of their own blocks; each layout's
schedule is simulated, and takes the formula's place.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from symconfig.cost.device import device_bytes
from symconfig.cost.step import HOST_SHARE, host_bytes
from symconfig.solve.budget import peak_budget
from symconfig.solve.choice import scored
from symconfig.solve.costed import Costed, costed
from symconfig.solve.kinds import stage_problem
from symconfig.solve.pieces import PLAIN, WHOLE, recompute_choices
from symconfig.solve.prospect import Prospect
from symconfig.solve.split import plainest
from symconfig.solve.stages import StageProblem, fastest_cut
from symconfig.solve.timeline import refined_s
from symconfig.solve.weighed import Weighed


def refine(weighed: Weighed) -> int:
    """Put simulated steps in the place of the formula's, and return how many were simulated."""
    simulated, every = 0, [*weighed.best, *weighed.nearly]
    weighed.families.clear()
    weighed.worst_s = weighed.below_s
    for prospect in every:
        parts = costed(prospect)
        own = [(prospect, parts)] if _fits(prospect, parts) else []
        for each, its in (*own, *_laid_out(prospect, parts)):
            weighed.add(_simulated(each, its))
            simulated += 1
    return simulated


def _laid_out(prospect: Prospect, parts: Costed) -> Iterator[tuple[Prospect, Costed]]:
    """Yield the candidate in the layout of stages that the stage solver finds, where it is another one that fits."""
    request, pp = prospect.request, prospect.split.pp
    if pp == 1 or request.pins.layout is not None:
        return
    if prospect.choice == WHOLE and not prospect.block_layers and request.limits.block_recompute:
        prospect = replace(prospect, block_layers=prospect.split.longest_chunk)
        parts = costed(prospect)
    least = int(PLAIN not in recompute_choices(request))
    problem = fewest_recomputed(stage_problem(prospect, parts), least)
    chunks = fastest_cut(problem)
    split = None if chunks is None else plainest(pp, chunks, request.limits.layouts)
    if split is None or (split == prospect.split and problem.first == prospect.block_layers):
        return
    first = problem.first if problem.first < split.longest_chunk else 0
    choice = PLAIN if prospect.block_layers and not problem.first else prospect.choice
    laid = replace(prospect, split=split, block_layers=first, choice=choice)
    its = costed(laid)
    if _fits(laid, its):
        yield laid, its


def fewest_recomputed(problem: StageProblem, least: int = 0) -> StageProblem:
    """Return the problem with the fewest recomputed first layers of every chunk that fit, at least `least` where any
    are."""
    low, high = min(least, problem.first), problem.first
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fastest_cut(replace(problem, first=middle)) else (middle + 1, high)
    return replace(problem, first=low)


def _fits(prospect: Prospect, parts: Costed) -> bool:
    room = prospect.machine.host_memory_bytes_per_gpu * HOST_SHARE
    on_host = host_bytes(parts.sums, parts.points, parts.setting).max()
    return max(parts.peaks) <= peak_budget(prospect.request, prospect.machine) and bool(on_host <= room)


def _simulated(prospect: Prospect, parts: Costed) -> Prospect:
    """Return the candidate with its simulated step, and what its fullest stage takes of the device."""
    step = refined_s(prospect, parts)
    device = device_bytes(max(parts.peaks), prospect.machine, prospect.request.framework)
    return scored(prospect, step, device)
