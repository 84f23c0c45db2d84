"""Descents end where no move is better; the moves are counted out here one by one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from symconfig.solve.partition import exact, local
from symconfig.solve.partition.problem import Problem
from symconfig.solve.partition.reduce import Space, space
from tests.solve.partition import brute
from tests.solve.partition.samples import network, small

Choice = tuple[int, ...]
SEEDS = range(120)


def single(of: Space, choice: Choice) -> Iterator[Choice]:
    """Every choice that differs in one node."""
    for v, size in enumerate(of.sizes):
        for c in range(size):
            yield (*choice[:v], c, *choice[v + 1 :])


def double(of: Space, choice: Choice) -> Iterator[Choice]:
    """Every choice that differs in the two nodes of a pair."""
    for pair in of.pairs:
        for a, b in product(range(of.sizes[pair.u]), range(of.sizes[pair.v])):
            other = list(choice)
            other[pair.u], other[pair.v] = a, b
            yield tuple(other)


def started(seed: int) -> tuple[Problem, Space, Choice] | None:
    """A problem, and a random choice of it."""
    problem, random = small(seed), np.random.default_rng(seed)
    of = space(problem)
    return None if of is None else (problem, of, tuple(int(random.integers(size)) for size in of.sizes))


@pytest.mark.parametrize("price", [0.0, 0.4])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_descent_ends_where_no_node_alone_can_do_better(seed: int, price: float) -> None:
    begun = started(seed)
    if begun is None:
        return
    problem, of, start = begun

    def energy(choice: Choice) -> float:
        """Of the problem itself; all of the transients but for the largest do not count."""
        known = of.original(choice)
        largest = max(float(node.transient[c]) for node, c in zip(problem.nodes, known, strict=True))
        return problem.cost(known) + price * (problem.memory(known) - largest)

    found = local.descended(of, start, price)
    assert energy(found) <= energy(start)
    assert energy(found) <= min(map(energy, single(of, found))) + 1e-9


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_fitted_fits_and_no_node_or_pair_does_better_within_the_limit(seed: int) -> None:
    begun = started(seed)
    if begun is None:
        return
    problem, of, start = begun
    found = local.fitted(of, start)
    if found is None:
        return

    def cost(choice: Choice) -> float:
        known = of.original(choice)
        return problem.cost(known) if problem.fits(known) else np.inf

    assert cost(found) < np.inf
    assert cost(found) <= min(map(cost, single(of, found))) + 1e-9
    assert cost(found) <= min(map(cost, double(of, found)), default=np.inf) + 1e-9


def test_most_of_what_fits_is_found_and_often_the_best_of_it() -> None:
    fitting = found = best = 0
    for seed in SEEDS:
        begun, known = started(seed), brute.solve(small(seed))
        if begun is None or known.choice is None:
            continue
        problem, of, start = begun
        choice = local.fitted(of, start)
        fitting, found = fitting + 1, found + (choice is not None)
        best += choice is not None and problem.cost(of.original(choice)) == known.cost
    assert fitting > 60
    assert found == fitting
    assert best >= 0.9 * fitting


@pytest.mark.parametrize("seed", range(4))
def test_the_bytes_that_cost_least_go_first(seed: int) -> None:
    """From the cheapest choice of a chain with residual links, which holds twice or more of the limit."""
    problem = network(seed, 12, 3, 2)
    free = exact.solve(problem).choice
    assert free is not None
    least = sum(float(node.memory.min()) for node in problem.nodes)
    limited = replace(problem, memory_limit=least + 0.3 * (problem.memory(free) - least))
    of, best = space(limited), exact.solve(limited)
    assert of is not None
    assert best.cost > problem.cost(free)
    found = local.fitted(of, free)
    assert found is not None
    assert limited.cost(found) <= 1.002 * best.cost
