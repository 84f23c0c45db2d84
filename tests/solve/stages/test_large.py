"""Models as large as those that are trained: an exact dynamic program, the integer program and the bounds agree."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from symconfig.solve.stages import solve as solving
from symconfig.solve.stages.construct import Policy, construct
from symconfig.solve.stages.content import Mode, Scale
from symconfig.solve.stages.frames import Frame
from symconfig.solve.stages.problem import Assignment, Layouts, Scope, StageProblem, StageSolution
from symconfig.solve.stages.solve import beam, solve
from tests.solve.stages.brute import stage
from tests.solve.stages.program import least_s
from tests.solve.stages.samples import ALTERNATING, DEEPSEEK, dense, large

EMPTY = Layouts(any_cut=True, empty_ends=True, empty=True)


def exact(problem: StageProblem) -> float:
    """One chunk a stage, one choice for the model: the least slowest stage over all places where stages may end."""
    answers = [float("inf")]
    total = len(problem.sequence)
    # A stage three times as slow as an even share of the slowest choice is in no best answer of these tests.
    most_s = 3 * sum(max(problem.seconds[kind]) for kind in problem.sequence) / problem.pp
    for choice in range(problem.choices):
        best = {0: 0.0}
        for index in range(problem.pp):
            after: dict[int, float] = {}
            ends = [total] if index == problem.pp - 1 else range(index + 1, total - 1)
            for start, value in best.items():
                for end in ends:
                    if end <= start or not set(problem.sequence[start:end]) - {"embedding", "mtp", "head"}:
                        continue
                    seconds, peak = alone(problem, index, start, end, choice)
                    if peak > problem.limit_bytes or seconds > most_s:
                        break
                    after[end] = min(after.get(end, float("inf")), max(value, seconds))
            best = after
        answers.append(best.get(total, float("inf")))
    return min(answers)


def alone(problem: StageProblem, index: int, start: int, end: int, choice: int) -> tuple[float, float]:
    return stage(problem, index, (problem.sequence[start:end],), ((choice,) * (end - start),))


LARGE = {
    "126 layers on 16 stages": large(dense(126), 16, 1),
    "126 layers on 16 stages, short of memory": large(dense(126), 16, 1, limit_bytes=140),
    "80 layers on 8 stages": large(dense(80), 8, 1),
    "80 layers on 8 stages, short of memory": large(dense(80), 8, 1, limit_bytes=110),
    "61 unequal layers on 16 stages": large(DEEPSEEK, 16, 1),
    "61 unequal layers on 16 stages, short of memory": large(DEEPSEEK, 16, 1, limit_bytes=90),
    "48 alternating layers on 8 stages": large(ALTERNATING, 8, 1),
}


@pytest.mark.parametrize("name", LARGE)
def test_one_chunk_a_stage(name: str) -> None:
    problem = LARGE[name]
    wanted = exact(problem)
    found = solve(problem)
    assert isinstance(found, StageSolution)
    assert found.optimal
    assert found.slowest_s == pytest.approx(wanted, rel=1e-7)
    assert tuple(kind for chunk in found.best.chunks for kind in chunk) == problem.sequence


@pytest.mark.parametrize(
    ("sequence", "pp", "vpp"),
    [
        (dense(126), 16, 8),
        (dense(126), 16, 7),
        (DEEPSEEK, 16, 4),
        (DEEPSEEK, 16, 2),
        (dense(80), 16, 2),
    ],
)
def test_several_chunks_a_stage(sequence: tuple[str, ...], pp: int, vpp: int) -> None:
    problem = large(sequence, pp, vpp, layouts=EMPTY)
    found = solve(problem)
    assert isinstance(found, StageSolution)
    assert found.solver == "bound met"
    assert found.optimal
    assert found.slowest_s == pytest.approx(least_s(problem, found.slowest_s * (1 + 1e-9), found.bound_s), rel=1e-7)
    for one in (found.best, *found.alternatives):
        assert tuple(kind for chunk in one.chunks for kind in chunk) == sequence


def test_a_rounded_up_share_of_equal_layers_is_the_least() -> None:
    problem = large(dense(126), 16, 1)
    free = {kind: (0.0,) * 3 if kind in ("embedding", "head") else (1.0, 2.0, 3.0) for kind in problem.seconds}
    found = solve(replace(problem, seconds=free))
    assert isinstance(found, StageSolution)
    assert found.slowest_s == 8.0  # 126 / 16 = 7.9


def test_cuts_slower_than_the_bound_are_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = large(ALTERNATING, 8, 2, Scope.MODEL, 90, Layouts(any_cut=True, empty_ends=True))
    least: list[float] = []

    def looked(scale: Scale, mode: Mode, most_s: float) -> Assignment | None:
        least.append(most_s)
        return beam(scale, mode, most_s)

    monkeypatch.setattr(solving, "beam", looked)
    quick = solve(problem)
    assert isinstance(quick, StageSolution)
    assert quick.slowest_s < 1.25 * quick.bound_s
    near = sorted({most_s / quick.bound_s for most_s in least})
    assert any(ratio == pytest.approx(1.02) for ratio in near)
    assert any(ratio == pytest.approx(1.06) for ratio in near)


def test_frames_are_filled_no_slower_than_twice_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    def filled(scale: Scale, frames: Iterable[Frame], mode: Mode, most_s: float, policy: Policy) -> Assignment | None:
        asked.append(most_s)
        return construct(scale, frames, mode, most_s, policy)

    monkeypatch.setattr(solving, "construct", filled)
    solve(large(DEEPSEEK, 8, 2, Scope.MODEL, 90, Layouts(any_cut=True, empty_ends=True)))
    bound = min(asked)
    assert sorted({round(most_s / bound, 9) for most_s in asked}) == [1.0, 1.02, 1.06, 1.25, 2.0]


def test_the_same_answer_twice() -> None:
    problem = large(DEEPSEEK, 16, 4, layouts=EMPTY)
    first, second = solve(problem), solve(problem)
    assert isinstance(first, StageSolution)
    assert isinstance(second, StageSolution)
    assert (first.best, first.alternatives) == (second.best, second.alternatives)


@pytest.mark.parametrize("scope", [Scope.MODEL, Scope.FIRST])
@pytest.mark.parametrize(
    ("sequence", "pp", "vpp", "limit"),
    [
        (ALTERNATING, 8, 3, 1e9),
        (dense(32), 4, 2, 85),
        (DEEPSEEK, 8, 2, 150),
        (dense(126), 16, 4, 200),
    ],
)
def test_a_quick_answer_states_what_is_not_proved(
    sequence: tuple[str, ...], pp: int, vpp: int, limit: float, scope: Scope
) -> None:
    problem = large(sequence, pp, vpp, scope, limit, EMPTY)
    found, again = solve(problem), solve(problem)
    assert isinstance(found, StageSolution)
    assert isinstance(again, StageSolution)
    assert replace(found, seconds=0.0) == replace(again, seconds=0.0)
    assert found.optimal == (found.gap <= 1e-9) == (found.solver != "none")
    assert found.bound_s <= found.slowest_s
    assert max(found.peak_bytes) <= limit
