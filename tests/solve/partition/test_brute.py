"""Brute force against a plain loop, and its limits."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from symconfig.errors import InputError
from symconfig.solve.partition.problem import Node, Problem
from tests.solve.partition import brute
from tests.solve.partition.samples import SHAPES, small


@pytest.mark.parametrize("seed", range(2 * len(SHAPES)))
def test_it_finds_what_a_plain_loop_finds_the_first_of_equal_ones(seed: int) -> None:
    problem = small(seed)
    every = product(*(range(len(node.cost)) for node in problem.nodes))
    fitting = [choice for choice in every if problem.fits(choice) and np.isfinite(problem.cost(choice))]
    best = min(fitting, key=problem.cost, default=None)
    found = brute.solve(problem)
    assert found.choice == best
    assert found.optimal
    assert found.cost == (problem.cost(best) if best else np.inf)


def test_as_many_as_may_be_tried_are(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node("n", np.array([3.0, 1.0]), np.zeros(2), np.zeros(2))
    monkeypatch.setattr(brute, "MOST", 8)
    assert brute.solve(Problem((node,) * 3, ())).choice == (1, 1, 1)
    with pytest.raises(InputError, match="got 16 assignments"):
        brute.solve(Problem((node,) * 4, ()))


def test_it_says_how_many_assignments_are_too_many() -> None:
    nodes = tuple(Node(str(v), np.zeros(10), np.zeros(10), np.zeros(10)) for v in range(7))
    with pytest.raises(InputError, match=r"got 1e\+07 assignments, need at most 2,000,000"):
        brute.solve(Problem(nodes, ()))
