"""Costs that are read by number are those of the layouts themselves."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from symconfig.cost.partition.links import FORBIDDEN, codes, digits, every, moved_cost
from symconfig.cost.partition.rates import Prices, Rate, change, local
from symconfig.graph.layout import FLAT, PARTIAL, WHOLE

AMOUNT = 2.0**20 * 3
PLACES = np.array([FLAT, PARTIAL, WHOLE, 0, 1, 2])


def rates(axes: int) -> tuple[Rate, ...]:
    """Rates that all differ, with latencies; the number of a group has a bit for each axis."""
    sizes = (2, 3, 4, 5, 2, 7)[:axes]
    groups = range(2**axes)

    def prices(fixed: float, each: float) -> Prices:
        return Prices(tuple(fixed * n for n in groups), tuple(each * n for n in groups))

    of = prices(1e-5, 1e-11), prices(3e-5, 3e-11), prices(2e-5, 2e-11)
    return tuple(Rate(size, 2**axis, *of, Prices((1e-6,), (1e-11,))) for axis, size in enumerate(sizes))


rows = st.integers(1, 4).flatmap(
    lambda axes: st.lists(st.tuples(*[st.integers(0, len(PLACES) - 1)] * axes), min_size=1, max_size=4)
)


@given(rows)
def test_a_number_has_the_cost_and_the_shares_of_its_layouts(some: list[tuple[int, ...]]) -> None:
    given_rows = np.array(some, dtype=np.int64)
    taken_rows = np.roll(given_rows[::-1], 1, axis=1)
    speeds = rates(given_rows.shape[1])
    both = zip((given_rows, taken_rows), ((-1, 1), (1, -1)), strict=True)
    a, b = ([PLACES[column].reshape(shape) for column in r.T] for r, shape in both)
    table, at = every(speeds), codes(digits(PLACES[:, None], PLACES), given_rows, taken_rows)
    np.testing.assert_allclose(moved_cost(table, AMOUNT)[at], np.zeros(at.shape) + change(a, b, AMOUNT, speeds), 1e-12)
    for share, places in zip(table.shares, (a, b), strict=True):
        np.testing.assert_allclose(share[at], np.zeros(at.shape) + local(places, speeds))
    same = np.logical_and.reduce([np.zeros(at.shape, bool) | (x == y) for x, y in zip(a, b, strict=True)])
    np.testing.assert_array_equal(table.same[at], same)


def test_what_is_forbidden_costs_without_end_and_nothing_else_does() -> None:
    table = every(rates(2))
    forbidden = (table.digits == FORBIDDEN).any(axis=0)
    np.testing.assert_array_equal(np.isinf(moved_cost(table, AMOUNT)), forbidden)
