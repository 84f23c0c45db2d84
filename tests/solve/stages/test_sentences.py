"""What a target can say, and what is told to a person."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from symconfig.errors import InfeasibleError
from symconfig.solve.split import plainest
from symconfig.solve.stages.chain import leanest_peaks
from symconfig.solve.stages.cuts import every
from symconfig.solve.stages.judge import stage_peaks, stage_seconds, without_collinear
from symconfig.solve.stages.problem import Layouts, StageSolution, Unsatisfied
from symconfig.solve.stages.solve import solve
from tests.solve.stages.samples import DEEPSEEK, dense, large

COUNTS = Layouts(any_cut=False, first_last=True, account=True)


@pytest.mark.parametrize(("layers", "pp", "vpp"), [(30, 4, 1), (46, 4, 1), (80, 16, 1), (62, 8, 2), (16, 2, 2)])
def test_every_cut_of_the_family_can_be_said(layers: int, pp: int, vpp: int) -> None:
    cuts = list(every(large(dense(layers), pp, vpp, layouts=COUNTS)))
    assert cuts
    for chunks in cuts:
        assert plainest(pp, chunks, COUNTS) is not None
        assert tuple(kind for chunk in chunks for kind in chunk) == dense(layers)


def test_the_best_of_the_family_is_found() -> None:
    problem = large(dense(30), 4, 1, layouts=COUNTS)
    found = solve(problem)
    assert isinstance(found, StageSolution)
    assert found.solver == "enumeration"
    seconds = {kind: of_kind[0] for kind, of_kind in problem.seconds.items()}
    slowest = [max(sum(seconds[kind] for kind in chunk) for chunk in chunks) for chunks in every(problem)]
    assert found.slowest_s == pytest.approx(min(slowest))


def test_a_target_that_says_more_is_never_slower() -> None:
    rules = (Layouts(any_cut=False), Layouts(any_cut=False, account=True), COUNTS, Layouts(any_cut=True))
    slowest = []
    for layouts in rules:
        found = solve(large(dense(46), 4, 1, layouts=layouts))
        slowest.append(found.slowest_s if isinstance(found, StageSolution) else float("inf"))
    assert slowest == sorted(slowest, reverse=True)
    assert slowest[0] == float("inf")  # 46 layers do not divide by 4


def test_more_chunks_than_layers() -> None:
    with pytest.raises(InfeasibleError, match=r"every pipeline stage needs a layer \(got 12 layers, need 16 for pp 16"):
        solve(large(dense(12), 16, 1))
    with pytest.raises(InfeasibleError, match="every virtual pipeline stage needs a layer"):
        solve(large(dense(126), 16, 8))


def test_a_limit_that_nothing_meets_is_said_by_the_leanest() -> None:
    problem = large(DEEPSEEK, 16, 1, limit_bytes=20 * 2**30)
    problem = replace(problem, state_bytes=dict.fromkeys(problem.state_bytes, 2**33))
    assert solve(problem) == Unsatisfied(proved=True)
    peaks = leanest_peaks(problem)
    assert peaks is not None
    assert max(peaks) > problem.limit_bytes
    assert solve(replace(problem, limit_bytes=max(peaks))) != Unsatisfied(proved=True)


def test_seconds_of_the_stages_add_up() -> None:
    problem = large(DEEPSEEK, 4, 3)
    found = solve(problem)
    assert isinstance(found, StageSolution)
    assert sum(found.stage_s) == pytest.approx(sum(problem.seconds[kind][0] for kind in problem.sequence))
    assert max(found.stage_s) == found.slowest_s
    assert found.stage_s == stage_seconds(problem, found.best)


def test_moments_between_others_do_not_matter() -> None:
    problem = large(dense(12), 2, 2)
    between = np.array([[7.0, 4.0], [8.0, 3.0], [8.0, 4.0], [8.0, 5.0], [8.0, 5.0], [4.0, 9.0]])
    problem = replace(problem, held=(between, between[:1]))
    fewer = without_collinear(problem)
    assert fewer.held[0].tolist() == [[7.0, 4.0], [8.0, 3.0], [8.0, 5.0], [8.0, 5.0], [4.0, 9.0]]
    assert fewer.held[1].tolist() == [[7.0, 4.0]]
    found = solve(problem)
    assert isinstance(found, StageSolution)
    assert found.peak_bytes == stage_peaks(problem, found.best)
