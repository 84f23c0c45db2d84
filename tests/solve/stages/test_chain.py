"""Of the cuts with the fastest slowest stage, the one with the least work is taken."""

from __future__ import annotations

from dataclasses import replace

import pytest

from symconfig.solve.stages.chain import fastest_chain, leanest_chain
from symconfig.solve.stages.content import Scale
from symconfig.solve.stages.judge import assignment, stage_peaks, stage_seconds
from symconfig.solve.stages.problem import Chunks, Layouts, Scope, StageProblem
from tests.solve.stages.brute import cuts, least_peak, own, stage
from tests.solve.stages.samples import small

RULES = (Layouts(any_cut=True), Layouts(any_cut=True, empty_ends=True), Layouts(any_cut=True, mtp_with_head=False))
INFINITE = float("inf")


def quickest(problem: StageProblem, chunks: Chunks) -> list[float]:
    """Per stage, the seconds of the fastest choices with which it fits."""
    every = (
        [stage(problem, i, (chunk,), choices) for choices in own(problem, (chunk,))] for i, chunk in enumerate(chunks)
    )
    return [min((s for s, b in ways if b <= problem.limit_bytes), default=INFINITE) for ways in every]


@pytest.mark.parametrize("scope", [Scope.STAGE, Scope.LAYER])
@pytest.mark.parametrize("seed", range(60))
def test_it_is_the_fastest_and_has_the_least_work(seed: int, scope: Scope) -> None:
    problem = small(700 + seed, scope, 1, RULES[seed % 3])
    if seed % 2:  # the last stage is slowest however the others are cut
        head = tuple(20.0 + choice for choice in range(problem.choices))
        problem = replace(problem, seconds={**problem.seconds, "head": head})
    lean = least_peak(problem)
    assert lean is not None
    problem = replace(problem, limit_bytes=lean * (0.99, 1.05, 1.2, 1.4)[seed // 2 % 4])
    every = [quickest(problem, chunks) for chunks in cuts(problem)]
    slowest = min(map(max, every))
    found = fastest_chain([Scale(problem)] * problem.pp, None, 0.0, INFINITE)
    if slowest == INFINITE:
        assert found is None
        return
    assert found is not None
    seconds = stage_seconds(problem, assignment(problem, found.chunks, found.choices))
    assert max(seconds) == pytest.approx(slowest)
    assert sum(seconds) == pytest.approx(min(sum(each) for each in every if max(each) <= slowest * (1 + 1e-9)))


@pytest.mark.parametrize("seed", range(30))
def test_the_leanest_has_the_least_largest_peak(seed: int) -> None:
    problem = small(800 + seed, Scope.STAGE, 1, RULES[seed % 3])
    found = leanest_chain(Scale(problem), None)
    assert found is not None
    least = min(
        max(min(stage(problem, i, (c,), choices)[1] for choices in own(problem, (c,))) for i, c in enumerate(chunks))
        for chunks in cuts(problem)
    )
    assert max(stage_peaks(problem, assignment(problem, found.chunks, found.choices))) == pytest.approx(least)
