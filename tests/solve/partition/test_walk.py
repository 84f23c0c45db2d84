"""The random walk: honest, repeatable, and worse than a proof."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from symconfig.solve.partition import exact, walk
from symconfig.solve.partition.problem import Problem
from tests.solve.partition import brute
from tests.solve.partition.samples import network, small


def test_with_enough_steps_it_finds_the_optimum_of_small_problems() -> None:
    known = [(brute.solve(problem), walk.solve(problem, 0, 3000)) for problem in map(small, range(12))]
    assert all(found.cost >= best.cost for best, found in known)
    equal = sum(found.cost == best.cost for best, found in known)
    assert equal >= 10
    assert not any(found.optimal for best, found in known if best.choice is not None)


def test_the_seed_decides_and_more_steps_help() -> None:
    problem = network(1, 20, 4, 2)
    assert walk.solve(problem, 3, 500) == walk.solve(problem, 3, 500)
    assert walk.solve(problem, 3, 500).choice != walk.solve(problem, 4, 500).choice
    means = [np.mean([walk.solve(problem, seed, steps).cost for seed in range(4)]) for steps in (100, 4000)]
    assert means[1] < means[0]
    assert exact.solve(problem).cost <= means[1]


@pytest.mark.parametrize("seed", range(4))
def test_what_it_finds_fits(seed: int) -> None:
    free = network(seed, 12, 3, 2)
    best = exact.solve(free)
    assert best.choice is not None
    least = sum(float(node.memory.min()) for node in free.nodes)
    problem: Problem = replace(free, memory_limit=least + 0.5 * (free.memory(best.choice) - least))
    found = walk.solve(problem, seed, 3000)
    assert found.choice is not None
    assert problem.fits(found.choice)
    assert found.cost == problem.cost(found.choice) >= exact.solve(problem).cost * (1 - 1e-9)


def test_a_start_is_not_forgotten() -> None:
    problem = network(1, 12, 3, 2)
    best = exact.solve(problem)
    assert walk.solve(problem, 0, 50, start=best.choice).cost == best.cost
