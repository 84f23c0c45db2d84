"""Small problems solved by trying everything: all scopes, kinds and layouts, one to three chunks a stage."""

from __future__ import annotations

from dataclasses import replace

import pytest

from symconfig.solve.stages.chain import leanest_peaks
from symconfig.solve.stages.judge import stage_peaks, stage_seconds
from symconfig.solve.stages.problem import Layouts, Scope, StageProblem, Unsatisfied
from symconfig.solve.stages.solve import solve
from tests.solve.stages.brute import best, cuts, least_peak, stage
from tests.solve.stages.program import least_s
from tests.solve.stages.samples import small

RULES = (
    Layouts(any_cut=True),
    Layouts(any_cut=True, empty_ends=True),
    Layouts(any_cut=True, empty_ends=True, empty=True, mtp_with_head=False),
    Layouts(any_cut=True, empty_ends=True, mtp_with_head=False),
    Layouts(any_cut=True, empty_ends=True, uneven=False),
)


def holds(problem: StageProblem) -> None:
    """The answer is the best of all, or says by how much it may not be; what it says of itself is true."""
    wanted, found = best(problem), solve(problem)
    if isinstance(found, Unsatisfied):
        assert wanted is None or (problem.vpp > 1 and not found.proved)
        assert wanted is not None or problem.vpp > 1 or found.proved
        return
    assert wanted is not None
    if found.optimal:
        assert found.slowest_s == pytest.approx(wanted, rel=1e-7)
    assert problem.vpp > 1 or found.optimal
    assert found.bound_s * (1 - 1e-7) <= wanted <= found.slowest_s * (1 + 1e-7)
    assert max(found.stage_s) == pytest.approx(found.slowest_s, rel=1e-7)
    every = set(cuts(problem))
    for one in (found.best, *found.alternatives):
        assert one.chunks in every
        stages = [
            stage(problem, i, one.chunks[i :: problem.pp], one.choices[i :: problem.pp]) for i in range(problem.pp)
        ]
        assert max(s for s, _ in stages) >= wanted * (1 - 1e-7)
        assert max(b for _, b in stages) <= problem.limit_bytes * (1 + 1e-7)
        assert [s for s, _ in stages] == pytest.approx(stage_seconds(problem, one))
        assert [b for _, b in stages] == pytest.approx(stage_peaks(problem, one))


@pytest.mark.parametrize("scope", Scope)
@pytest.mark.parametrize("seed", range(40))
def test_one_chunk_a_stage(seed: int, scope: Scope) -> None:
    holds(small(seed, scope, 1, RULES[seed % len(RULES)]))


@pytest.mark.parametrize("scope", Scope)
@pytest.mark.parametrize("vpp", [2, 3])
@pytest.mark.parametrize("seed", range(12))
def test_several_chunks_a_stage(seed: int, vpp: int, scope: Scope) -> None:
    holds(small(seed, scope, vpp, RULES[seed % len(RULES)]))


@pytest.mark.parametrize("scope", Scope)
@pytest.mark.parametrize("seed", range(12))
def test_the_integer_program_by_itself(seed: int, scope: Scope) -> None:
    problem = small(100 + seed, scope, 1 + seed % 2, RULES[seed % 4])
    wanted = best(problem) or float("inf")
    assert least_s(problem, 1.3 * wanted) == pytest.approx(wanted, rel=1e-7)


@pytest.mark.parametrize("scope", Scope)
@pytest.mark.parametrize("seed", range(12))
def test_the_leanest_when_nothing_fits(seed: int, scope: Scope) -> None:
    problem = small(200 + seed, scope, 1, RULES[seed % len(RULES)])
    peaks = leanest_peaks(problem)
    assert peaks is not None
    assert max(peaks) == pytest.approx(least_peak(problem), rel=1e-7)
    assert solve(replace(problem, limit_bytes=max(peaks) * 0.999)) == Unsatisfied(proved=True)


def test_recomputing_that_needs_more_memory_is_not_the_leanest() -> None:
    """Choice 1 needs more than choice 0; that choice 2 needs less is nothing that the first layers can have."""
    problem = small(4, Scope.FIRST, 1, RULES[0])
    problem = replace(problem, kept_bytes=dict.fromkeys(problem.kept_bytes, (2.0, 3.0, 0.5)))
    peaks = leanest_peaks(problem)
    assert peaks is not None
    assert max(peaks) == pytest.approx(least_peak(problem), rel=1e-7)
