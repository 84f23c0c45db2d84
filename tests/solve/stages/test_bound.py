"""The bound of the slowest stage: never above the best of all cuts, and equal to it for layers that are alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product

import pytest

from symconfig.solve.stages.bound import bound_s, work_s
from symconfig.solve.stages.content import Mode, layers, modes
from symconfig.solve.stages.problem import Chunks, Layouts, Scope, StageProblem
from tests.solve.stages.brute import ENDS, cuts, legal, stage
from tests.solve.stages.samples import small

RULES = (
    Layouts(any_cut=True),
    Layouts(any_cut=True, empty_ends=True),
    Layouts(any_cut=True, empty_ends=True, empty=True),
)
INFINITE = float("inf")


def alike(problem: StageProblem) -> StageProblem:
    """The problem with all layers of one kind, of which no choice changes what is there once, and no mtp."""
    kind = next(kind for kind in problem.sequence if kind not in ENDS)
    inside = tuple(kind for each in problem.sequence if each not in ENDS)
    once, transient = (
        {**of_kind, kind: (of_kind[kind][0],) * problem.choices}
        for of_kind in (problem.once_bytes, problem.transient_bytes)
    )
    return replace(problem, sequence=("embedding", *inside, "head"), once_bytes=once, transient_bytes=transient)


def fastest(problem: StageProblem, mode: Mode, every: Iterable[Chunks] | None = None) -> float:
    """The least slowest stage of all cuts that fit with these choices. every: what there is instead of cuts."""

    def choices(chunk: tuple[str, ...]) -> tuple[int, ...]:
        number = [sum(kind not in ENDS for kind in chunk[: n + 1]) for n in range(len(chunk))]
        return tuple(
            1 if kind not in ENDS and nth <= mode.first else mode.choice
            for kind, nth in zip(chunk, number, strict=True)
        )

    def slowest(chunks: Chunks) -> float:
        found = []
        for i in range(problem.pp):
            mine = chunks[i :: problem.pp]
            found.append(stage(problem, i, mine, tuple(map(choices, mine))))
        return max(s for s, _ in found) if max(b for _, b in found) <= problem.limit_bytes else INFINITE

    return min(map(slowest, every or cuts(problem)), default=INFINITE)


@pytest.mark.parametrize("scope", Scope)
@pytest.mark.parametrize("seed", range(60))
def test_it_is_the_best_of_all_for_layers_that_are_alike(seed: int, scope: Scope) -> None:
    problem = alike(small(seed, scope, 1, RULES[seed % 3]))
    for mode in modes(problem, layers(problem.sequence)):
        assert bound_s(problem, mode) == pytest.approx(fastest(problem, mode), rel=1e-7)


def anywhere(problem: StageProblem) -> Iterator[Chunks]:
    """Every way to share the blocks among stages of one chunk, whatever lies beside what in the model."""
    counts = Counter(problem.sequence)
    ways = [
        [shares for shares in product(range(count + 1), repeat=problem.pp) if sum(shares) == count]
        for count in counts.values()
    ]
    for chosen in product(*ways):
        chunks = tuple(
            tuple(kind for kind, shares in zip(counts, chosen, strict=True) for _ in range(shares[i]))
            for i in range(problem.pp)
        )
        if all(legal(problem, number, chunk, problem.pp) for number, chunk in enumerate(chunks)):
            yield chunks


@pytest.mark.parametrize("seed", range(90))
def test_it_is_the_best_of_all_where_blocks_of_any_kind_may_lie_anywhere(seed: int) -> None:
    problem = small(500 + seed, Scope.MODEL, 1, RULES[seed % 3])
    problem = replace(problem, limit_bytes=problem.limit_bytes * (0.3, 0.5, 1.0)[seed % 3])
    for mode in modes(problem, 0):
        assert bound_s(problem, mode) == pytest.approx(fastest(problem, mode, anywhere(problem)), rel=1e-7)


@pytest.mark.parametrize("seed", range(12))
def test_several_chunks_of_layers_that_are_alike_meet_it_without_a_limit_of_memory(seed: int) -> None:
    problem = replace(alike(small(seed, Scope.MODEL, 2, RULES[seed % 3])), limit_bytes=INFINITE)
    for mode in modes(problem, layers(problem.sequence)):
        assert bound_s(problem, mode) == pytest.approx(fastest(problem, mode), rel=1e-7)


@pytest.mark.parametrize("vpp", [1, 2])
@pytest.mark.parametrize("scope", Scope)
@pytest.mark.parametrize("seed", range(20))
def test_no_cut_is_faster(seed: int, scope: Scope, vpp: int) -> None:
    problem = small(300 + seed, scope, vpp, RULES[seed % 3])
    for mode in modes(problem, layers(problem.sequence)):
        wanted = fastest(problem, mode)
        assert work_s(problem, mode) <= wanted * (1 + 1e-7)
        assert bound_s(problem, mode) <= wanted * (1 + 1e-7)
