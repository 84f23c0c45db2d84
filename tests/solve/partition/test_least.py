"""The least memory against every assignment."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from symconfig.solve.partition import exact
from symconfig.solve.partition.infeasible import least_memory
from symconfig.solve.partition.problem import Edge, Node, Problem
from tests.solve.partition import brute
from tests.solve.partition.samples import network, small


@pytest.mark.parametrize("seed", range(48))
def test_it_is_what_a_limit_has_to_reach(seed: int) -> None:
    problem = small(seed)
    every = product(*(range(len(node.cost)) for node in problem.nodes))
    peaks = [problem.memory(choice) for choice in every if np.isfinite(problem.cost(choice))]
    least = least_memory(problem)
    if least.choice is None:
        assert not peaks
        return
    assert least.bound == min(peaks) == problem.memory(least.choice)
    assert brute.solve(replace(problem, memory_limit=least.bound)).choice is not None
    assert exact.solve(replace(problem, memory_limit=least.bound * (1 - 1e-6))).choice is None


def test_a_large_transient_is_weighed_against_what_is_held() -> None:
    """Alone each choice has its merit: (held, transient) of 10 + 9, 14 + 4 and 18 + 1."""
    one = Node("a", np.zeros(3), np.array([10.0, 14.0, 18.0]), np.array([9.0, 4.0, 1.0]))
    assert least_memory(Problem((one,), ())).choice == (1,)
    none = Edge(0, 1, np.zeros((3, 3)), np.zeros((3, 3)))
    assert least_memory(Problem((one, one), (none,))).choice == (0, 0)  # 20 + 9; 28 + 4; 36 + 1


def test_it_has_the_seconds_that_it_is_given_and_says_what_it_knows_after_them() -> None:
    problem = small(1)
    whole, stopped = least_memory(problem, limit_s=0.9), least_memory(problem, limit_s=0.0)
    assert whole == least_memory(problem)
    assert stopped.bound < whole.bound


def test_on_a_network_no_walk_finds_less() -> None:
    problem = network(3, 20, 4, 2)
    least = least_memory(problem)
    assert least.choice is not None
    assert least.bound == pytest.approx(problem.memory(least.choice), rel=1e-9)
    random = np.random.default_rng(0)
    for _ in range(200):
        assert problem.memory([int(random.integers(16)) for _ in range(20)]) >= least.bound
