"""Layers over stages of two kinds: held against every cut, each stage priced by its own kind."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from symconfig.solve.mixed.layers import bound_s, slowest_least
from symconfig.solve.stages.content import Mode
from symconfig.solve.stages.problem import Layouts, Scope, StageProblem
from tests.solve.stages.brute import cuts, shared, stage
from tests.solve.stages.samples import small

INFINITE = float("inf")


def pair(seed: int, scope: Scope) -> tuple[list[StageProblem], list[int], list[float]]:
    """Return a problem as two kinds have it, where the second begins, and waits of each stage."""
    pick = random.Random(seed)
    one = small(seed, scope, 1, Layouts(any_cut=True, empty_ends=seed % 2 == 0))
    slower = {kind: pick.uniform(0.5, 3.0) for kind in one.seconds}
    seconds = {kind: tuple(slower[kind] * value for value in values) for kind, values in one.seconds.items()}
    other = replace(one, seconds=seconds, limit_bytes=one.limit_bytes * pick.choice((0.6, 1.0, 2.0)))
    if pick.random() < 0.5:  # memory is ample
        one, other = (replace(problem, limit_bytes=1e6) for problem in (one, other))
    ahead = pick.randint(1, one.pp - 1)
    return [one, other], [int(place >= ahead) for place in range(one.pp)], [pick.uniform(0, 1) for _ in range(one.pp)]


def brute(problems: list[StageProblem], kinds: list[int], wait_s: list[float]) -> float:
    """Return the least slowest stage of all cuts and choices that fit, each stage in its own kind's memory."""
    best = INFINITE
    for chunks in cuts(problems[0]):
        for choices in shared(problems[0], chunks):
            priced = [
                (*stage(problems[kind], place, (chunks[place],), (choices[place],)), problems[kind].limit_bytes)
                for place, kind in enumerate(kinds)
            ]
            if all(held <= limit for _, held, limit in priced):
                best = min(best, max(seconds + wait for (seconds, *_), wait in zip(priced, wait_s, strict=True)))
    return best


@pytest.mark.parametrize("scope", [Scope.MODEL, Scope.FIRST])
@pytest.mark.parametrize("seed", range(60))
def test_no_cut_has_a_faster_slowest_stage(seed: int, scope: Scope) -> None:
    problems, kinds, wait_s = pair(1000 + seed, scope)
    least = brute(problems, kinds, wait_s)
    found, first = slowest_least(problems, kinds, wait_s, INFINITE)
    assert (found is None) == (least == INFINITE)
    if found is None:
        return
    priced = [
        stage(problems[kind], place, (found.chunks[place],), (found.choices[place],))
        for place, kind in enumerate(kinds)
    ]
    assert max(seconds + wait for (seconds, _), wait in zip(priced, wait_s, strict=True)) == pytest.approx(least)
    assert bound_s(problems, kinds, Mode(0, first)) <= least * (1 + 1e-9)
