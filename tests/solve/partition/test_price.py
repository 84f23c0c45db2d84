"""The best price of a byte, against the dual function of every assignment."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

from symconfig.solve.partition import local
from symconfig.solve.partition.price import Ask, Known, by_elimination, by_messages, lightest, opened, part, search
from symconfig.solve.partition.problem import Array, Problem
from symconfig.solve.partition.reduce import Space, space
from tests.solve.partition import brute
from tests.solve.partition.samples import small

SEEDS = [seed for seed in range(240) if small(seed).memory_limit < np.inf and space(small(seed)) is not None]


def opening(seed: int) -> tuple[Problem, Space]:
    """A problem with a limit, and its choices that are not forbidden."""
    problem, of = small(seed), space(small(seed))
    assert of is not None
    return problem, of


@dataclass(frozen=True)
class Every:
    """All assignments of finite cost, by the numbers of the space: [assignments, nodes] and what each costs."""

    choices: NDArray[np.int64]
    cost: Array
    held: Array
    fits: NDArray[np.bool_]

    def least(self, v: int, choice: int) -> float:
        """Of those that fit, with one choice of a node."""
        return float(self.cost[self.fits & (self.choices[:, v] == choice)].min(initial=np.inf))


def every(of: Space) -> Every:
    known = np.array(list(product(*map(range, of.sizes))))
    cost, held, peak = (np.array([what(of, c) for c in known]) for what in (local.cost, local.held, local.peak))
    able = cost < np.inf
    return Every(known[able], cost[able], held[able], peak[able] <= of.limit)


def dual(of: Space) -> float:
    """The highest bound that any price gives, at one of the prices at which two assignments cost the same."""
    all_ = every(of)
    over, under = all_.held > of.room, all_.held <= of.room
    if not under.any():
        return np.inf
    cost, held = all_.cost, all_.held
    prices = (cost[under][:, None] - cost[over]) / (held[over] - held[under][:, None])
    tried = np.unique(np.concatenate([[0.0], prices[prices > 0]]))
    return max(float((cost + price * (held - of.room)).min()) for price in tried)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_bound_of_the_best_price_is_found(seed: int) -> None:
    problem, of = opening(seed)
    state, known, best = opened(of), Known(problem), brute.solve(problem)
    if not search(state, known, by_elimination, 40):
        assert known.cost == pytest.approx(best.cost)  # whatever is better than the choice that is known is gone
        return
    assert dual(of) - 1e-6 * abs(best.cost) <= state.bound <= best.cost * (1 + 1e-9)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("ask", [by_messages, by_elimination])
def test_bounds_are_true_of_every_choice_and_what_is_better_than_the_known_one_stays(seed: int, ask: Ask) -> None:
    problem, of = opening(seed)
    state, known, best, all_ = opened(of), Known(problem), brute.solve(problem), every(of)
    for price in (0.0, 0.3, 2.0, 0.7):
        if ask(state, known, price) is None:
            assert known.cost == pytest.approx(best.cost)
            return
        assert state.bound <= best.cost * (1 + 1e-9)
        for v, (bounds, kept) in enumerate(zip(state.bounds, state.space.kept, strict=True)):
            left = dict(zip(np.searchsorted(of.kept[v], kept).tolist(), bounds.tolist(), strict=True))
            for choice in range(of.sizes[v]):
                assert left.get(choice, known.target) <= all_.least(v, choice) + 1e-9


@pytest.mark.parametrize("exactly", [True, False])
@pytest.mark.parametrize("seed", SEEDS)
def test_choices_with_which_nothing_fits_go_and_no_others_need_to(seed: int, exactly: bool) -> None:
    problem, of = opening(seed)
    state, all_ = opened(of), every(of)
    found = lightest(state, Known(problem), exactly)
    assert found is not None or not all_.fits.any()
    if found is None:
        return
    if exactly:
        assert found.held == all_.held.min()
    for v, kept in enumerate(state.space.kept):
        assert {int(of.kept[v][c]) for c in all_.choices[all_.fits, v]} <= set(kept.tolist())


def test_a_part_has_a_larger_transient_and_messages_of_its_own() -> None:
    problem, of = opening(SEEDS[0])
    state = opened(of)
    by_messages(state, Known(problem), 0.3)
    before = [message.copy() for message in state.messages.first]
    child = part(state, [np.ones(size, dtype=bool) for size in state.space.sizes], state.space.floor + 5)
    assert child is not None
    assert child.space.room == state.space.room - 5
    assert (child.bound, child.price) == (state.bound, 0.3)
    by_messages(child, Known(problem), 0.9)
    assert all(np.array_equal(a, b) for a, b in zip(before, state.messages.first, strict=True))
