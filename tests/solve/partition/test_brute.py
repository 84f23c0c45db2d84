"""Brute force against a plain loop, and its limits."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

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
