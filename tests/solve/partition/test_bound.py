"""Bounds and eliminations against every assignment: of the sum, and with each choice of each node."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from symconfig.solve.partition import local
from symconfig.solve.partition.bound import Priced, narrowed, priced, silent, sweep, weighed
from symconfig.solve.partition.marginal import eliminated, marginals, plan
from symconfig.solve.partition.problem import Array, Node, Problem
from symconfig.solve.partition.reduce import restrict, space, undominated
from tests.solve.partition.samples import small


def _truth(of: Priced) -> tuple[float, list[Array]]:
    least = [np.full(size, np.inf) for size in of.space.sizes]
    for choice in product(*map(range, of.space.sizes)):
        value = sum(float(u[c]) for u, c in zip(of.unary, choice, strict=True))
        value += sum(float(p.full(of.table(n))[choice[p.u], choice[p.v]]) for n, p in enumerate(of.space.pairs))
        for v, c in enumerate(choice):
            least[v][c] = min(least[v][c], value)
    return float(least[0].min()), least


@pytest.mark.parametrize("seed", range(36))
@pytest.mark.parametrize("price", [0.0, 0.7, np.inf])
def test_no_bound_is_above_and_elimination_is_exact(seed: int, price: float) -> None:
    of = space(small(seed))
    if of is None:
        return
    at = weighed(of) if price == np.inf else priced(of, price)
    truth, by_choice = _truth(at)
    messages, last = silent(of), -np.inf
    for turn in range(6):
        swept = sweep(at, messages, turn % 2 == 0)
        assert last - 1e-9 <= swept.bound <= truth + 1e-9
        last = swept.bound
        if turn:
            assert all((b <= t + 1e-9).all() for b, t in zip(swept.bounds, by_choice, strict=True))
    found = eliminated(at, plan(of)[0])
    assert found.least == pytest.approx(truth, rel=1e-12)
    for exact, known in zip(marginals(found), by_choice, strict=True):
        np.testing.assert_allclose(exact, known, rtol=1e-12)


@pytest.mark.parametrize("seed", range(0, 36, 6))
def test_on_trees_two_sweeps_are_exact(seed: int) -> None:
    of = space(small(seed))
    assert of is not None
    truth, by_choice = _truth(priced(of, 0.3))
    messages = silent(of)
    sweep(priced(of, 0.3), messages, True)
    back = sweep(priced(of, 0.3), messages, False)
    assert back.bound == pytest.approx(truth, rel=1e-12)
    assert priced(of, 0.3).space is of
    assert local.cost(of, back.choice) + 0.3 * local.held(of, back.choice) == pytest.approx(truth, rel=1e-12)
    assert all((b <= t + 1e-9).all() for b, t in zip(back.bounds, by_choice, strict=True))


def _uneven(problem: Problem, seed: int) -> Problem:
    """Without two choices that cost the same."""
    random = np.random.default_rng(seed)
    nodes = tuple(replace(node, cost=node.cost + random.random(len(node.cost))) for node in problem.nodes)
    return replace(problem, nodes=nodes)


def _mirrored(problem: Problem) -> Problem:
    """With the last node first."""
    last = len(problem.nodes) - 1
    edges = (replace(edge, u=last - edge.u, v=last - edge.v) for edge in problem.edges)
    return replace(problem, nodes=problem.nodes[::-1], edges=tuple(edges))


@pytest.mark.parametrize("seed", range(36))
def test_a_sweep_backward_is_one_forward_in_the_mirror(seed: int) -> None:
    problem = _uneven(small(seed), seed)
    here, there = space(problem), space(_mirrored(problem))
    if here is None or there is None:
        return
    mine, other = silent(here), silent(there)
    for forward in (True, False, True):
        one, two = sweep(priced(here, 0.4), mine, forward), sweep(priced(there, 0.4), other, not forward)
        assert one.bound == pytest.approx(two.bound)
        assert one.choice == two.choice[::-1]
        for a, b in zip(one.bounds, two.bounds[::-1], strict=True):
            np.testing.assert_allclose(a, b)


@pytest.mark.parametrize("seed", range(36))
def test_narrowed_to_some_choices_the_bound_stays_true_and_is_no_lower(seed: int) -> None:
    """Messages of the whole go on with what is left of it."""
    of = space(small(seed))
    if of is None:
        return
    messages, random = silent(of), np.random.default_rng(seed)
    known = sweep(priced(of, 0.4), messages, True).bound
    keep = [random.random(size) < 0.7 for size in of.sizes]
    found = narrowed(of, messages, keep)
    left = restrict(of, keep)
    assert (found is None) == (left is None)
    if found is None or left is None:
        return
    assert all(np.array_equal(a, b) for a, b in zip(found[0].kept, left.kept, strict=True))
    assert all(set(new) <= set(old[mask]) for new, old, mask in zip(left.kept, of.kept, keep, strict=True))
    truth, _ = _truth(priced(left, 0.4))
    bound = sweep(priced(left, 0.4), found[1], False).bound
    assert known - 1e-9 <= bound <= truth + 1e-9


def test_a_choice_goes_that_another_one_beats_and_one_of_two_equals() -> None:
    """By cost, bytes held and bytes for a while: the second is dearer, the third the same, the fourth lighter."""
    node = Node("n", *(np.array(of) for of in ([1.0, 2.0, 1.0, 3.0], [5.0, 5.0, 5.0, 4.0], [2.0, 2.0, 2.0, 2.0])))
    of = space(Problem((node, node), ()))
    assert of is not None
    assert [kept.tolist() for kept in undominated(of).kept] == [[0, 3], [0, 3]]


@pytest.mark.parametrize("seed", range(48))
def test_without_dominated_choices_all_that_was_worth_having_is_left(seed: int) -> None:
    """For each assignment there is one among those left that costs, holds and needs for a while no more."""
    of = space(small(seed))
    if of is None:
        return
    fewer = undominated(of)
    assert sum(fewer.sizes) <= sum(of.sizes)

    def values(left: object) -> Array:
        assert isinstance(left, type(of))
        rows = [
            (local.cost(left, c), local.held(left, c), local.transient(left, c))
            for c in product(*map(range, left.sizes))
        ]
        return np.array([row for row in rows if np.isfinite(row[0])])

    few = values(fewer)
    for row in values(of):
        assert (few <= row).all(axis=1).any()
