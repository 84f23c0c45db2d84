"""The layers of a candidate laid over the stages of two kinds of GPUs, the slower ones with fewer of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from symconfig.solve.mixed.across import Across
from symconfig.solve.pieces import PLAIN, recompute_choices
from symconfig.solve.refine import fewest_recomputed, stages_of
from symconfig.solve.split import plainest
from symconfig.solve.stages import ROUNDING, fastest_cut, layers

TRIES = 4  # solver runs per policy, each with less memory where the last result exceeded it


def best_layers(across: Across, below_s: float) -> Across | None:
    """Return the candidate with the fastest layers per stage that fit on both kinds.

    None if no step is below `below_s` seconds. A pinned layout is the only one tried.
    """
    if across.floor_s >= below_s:
        return None
    own = across.laid(across.split, across.candidates[0].block_layers)
    best = _fastest(across, [own], below_s)
    if across.candidates[0].request.pins.layout is not None:
        return best
    return _fastest(across, _proposed(across), below_s if best is None else best.step_s) or best


def _fastest(across: Across, layouts: Iterable[Across], below_s: float) -> Across | None:
    """Return the layout with the fastest step that fits; None if none is below `below_s` seconds.

    across: priced with the same degrees and policy, which gives the lower bounds.
    """
    best = None
    for one in layouts:
        if across.least_s(one.split) < below_s and one.fits and one.step_s < below_s:
            best, below_s = one, one.step_s
    return best


def _proposed(across: Across) -> Iterator[Across]:
    """Yield up to TRIES layouts of the stage solver, until one fits.

    Each time the solver has less memory where the last layout exceeded it. Stops if it finds none or the target cannot
    express it.
    """
    into, back = across.arrivals_s
    problem = stages_of(across.candidates, across.parts, across.kinds, (into + back).sum(axis=1))
    if problem.first:
        least = int(PLAIN not in recompute_choices(across.candidates[0].request))
        problem = fewest_recomputed(replace(problem, first=layers(problem.sequence)), least)
    for _ in range(TRIES):
        chunks = fastest_cut(problem)
        split = None if chunks is None else plainest(across.pp, chunks, problem.layouts)
        if split is None:
            return
        laid = across.laid(split, problem.first)
        yield laid
        if laid.fits:
            return
        blocks = tuple(
            replace(each, limit_bytes=each.limit_bytes - max(excess, 0.0) * (1 + ROUNDING))
            for each, excess in zip(problem.blocks, laid.excess, strict=True)
        )
        problem = replace(problem, blocks=blocks)
