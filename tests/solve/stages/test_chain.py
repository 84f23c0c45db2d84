"""Of the cuts with the fastest slowest stage, the one with the least work is taken."""

from __future__ import annotations

from dataclasses import replace

import pytest

from symconfig.solve.stages.chain import fastest_chain
from symconfig.solve.stages.content import Mode, Scale, content, modes
from symconfig.solve.stages.judge import stage_seconds
from symconfig.solve.stages.problem import Chunks, Layouts, Scope, StageProblem
from tests.solve.stages.brute import cuts, least_peak, stage
from tests.solve.stages.samples import small

RULES = (Layouts(any_cut=True), Layouts(any_cut=True, empty_ends=True), Layouts(any_cut=True, mtp_with_head=False))
INFINITE = float("inf")


def quickest(problem: StageProblem, chunks: Chunks, mode: Mode) -> list[float]:
    """Per stage, its seconds; infinite where it does not fit."""
    ways = [stage(problem, i, (chunk,), (mode.of(content(chunk)),)) for i, chunk in enumerate(chunks)]
    return [s if b <= problem.limit_bytes else INFINITE for s, b in ways]


@pytest.mark.parametrize("scope", Scope)
@pytest.mark.parametrize("seed", range(60))
def test_it_is_the_fastest_and_has_the_least_work(seed: int, scope: Scope) -> None:
    problem = small(700 + seed, scope, 1, RULES[seed % 3])
    if seed % 2:  # the last stage is slowest however the others are cut
        head = tuple(20.0 + choice for choice in range(problem.choices))
        problem = replace(problem, seconds={**problem.seconds, "head": head})
    lean = least_peak(problem)
    assert lean is not None
    problem = replace(problem, limit_bytes=lean * (0.99, 1.05, 1.2, 1.4)[seed // 2 % 4])
    for mode in modes(problem, 3):
        every = [quickest(problem, chunks, mode) for chunks in cuts(problem)]
        slowest = min(map(max, every))
        found = fastest_chain([Scale(problem)] * problem.pp, mode, 0.0, INFINITE)
        if slowest == INFINITE:
            assert found is None
            continue
        assert found is not None
        seconds = stage_seconds(problem, found)
        assert max(seconds) == pytest.approx(slowest)
        assert sum(seconds) == pytest.approx(min(sum(each) for each in every if max(each) <= slowest * (1 + 1e-9)))
