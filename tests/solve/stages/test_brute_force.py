"""Small problems solved by trying everything: all scopes, kinds and layouts, one to three chunks a stage."""

from __future__ import annotations

import importlib.util
import time
from dataclasses import replace
from itertools import count

import pytest

from symconfig.solve.stages.judge import stage_peaks, stage_seconds
from symconfig.solve.stages.lean import leanest
from symconfig.solve.stages.problem import Layouts, Scope, StageProblem, StageSolution, Unsatisfied
from symconfig.solve.stages.solve import proved_s, solve
from tests.solve.stages.brute import best, cuts, least_peak, stage
from tests.solve.stages.samples import small

RULES = (
    Layouts(any_cut=True),
    Layouts(any_cut=True, empty_ends=True),
    Layouts(any_cut=True, empty_ends=True, empty=True, mtp_with_head=False),
    Layouts(any_cut=True, empty_ends=True, mtp_with_head=False),
    Layouts(any_cut=True, empty_ends=True, uneven=False),
)
SOLVERS = [
    "cbc",
    pytest.param(
        "highs",
        marks=pytest.mark.skipif(importlib.util.find_spec("highspy") is None, reason="highspy is not installed"),
    ),
]


def holds(problem: StageProblem, solver: str) -> None:
    """The answer is the best of all; what it says of itself is true."""
    wanted, found = best(problem), solve(problem, solver=solver, time_limit_s=60)
    if wanted is None or wanted == float("inf"):
        assert found == Unsatisfied(proved=True)
        return
    assert isinstance(found, StageSolution)
    assert found.optimal
    assert found.slowest_s == pytest.approx(wanted, rel=1e-7)
    assert found.bound_s == pytest.approx(wanted, rel=1e-7)
    assert max(found.stage_s) == pytest.approx(wanted, rel=1e-7)
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
    holds(small(seed, scope, 1, RULES[seed % len(RULES)]), "auto")


@pytest.mark.parametrize("scope", [Scope.MODEL, Scope.FIRST])
@pytest.mark.parametrize("vpp", [1, 2])
def test_what_is_proved_of_a_known_assignment_is_no_more_than_the_best_one_takes(vpp: int, scope: Scope) -> None:
    exact = 0
    for seed in range(24):
        problem = small(seed, scope, vpp, RULES[seed % len(RULES)])
        wanted = best(problem)
        if wanted is None or wanted == float("inf"):
            continue
        for known_s in (wanted, 1.3 * wanted):
            proved = proved_s(problem, known_s)
            assert proved <= wanted * (1 + 1e-7)
            exact += proved == pytest.approx(wanted, rel=1e-7)
        assert vpp > 1 or proved == pytest.approx(wanted, rel=1e-7)
    assert exact > 10


@pytest.mark.parametrize("scope", Scope)
@pytest.mark.parametrize("vpp", [2, 3])
@pytest.mark.parametrize("seed", range(12))
def test_several_chunks_a_stage(seed: int, vpp: int, scope: Scope) -> None:
    holds(small(seed, scope, vpp, RULES[seed % len(RULES)]), "auto")


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("scope", Scope)
@pytest.mark.parametrize("seed", range(12))
def test_the_integer_program_by_itself(seed: int, scope: Scope, solver: str) -> None:
    holds(small(100 + seed, scope, 1 + seed % 3, RULES[seed % len(RULES)]), solver)


@pytest.mark.parametrize("scope", Scope)
@pytest.mark.parametrize("vpp", [1, 2])
@pytest.mark.parametrize("seed", range(6))
def test_the_leanest_when_nothing_fits(seed: int, vpp: int, scope: Scope) -> None:
    problem = small(200 + seed, scope, vpp, RULES[seed % len(RULES)])
    lean = leanest(problem)
    assert lean is not None
    assert lean.proved
    assert max(lean.peak_bytes) == lean.peak_bytes[lean.stage] == pytest.approx(least_peak(problem), rel=1e-7)
    tight = replace(problem, limit_bytes=max(lean.peak_bytes) * 0.999)
    assert solve(tight) == Unsatisfied(proved=True)


@pytest.mark.parametrize("vpp", [1, 2])
def test_recomputing_that_needs_more_memory_is_not_the_leanest(vpp: int) -> None:
    """Choice 1 needs more than choice 0; that choice 2 needs less is nothing that the first layers can have."""
    problem = small(4, Scope.FIRST, vpp, RULES[0])
    problem = replace(problem, kept_bytes=dict.fromkeys(problem.kept_bytes, (2.0, 3.0, 0.5)))
    lean = leanest(problem)
    assert lean is not None
    assert max(lean.peak_bytes) == pytest.approx(least_peak(problem), rel=1e-7)


def test_time_that_others_spend_ends_no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = count(0.0, 100.0)
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    problem = small(202, Scope.MODEL, 2, RULES[2])
    lean = leanest(problem)
    assert lean is not None
    assert lean.proved
    assert solve(replace(problem, limit_bytes=max(lean.peak_bytes) * 0.999)) == Unsatisfied(proved=True)
