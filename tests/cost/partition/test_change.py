"""Changes of layout cost what the graph's own rule says, however many axes and pairs are weighed at once."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from symconfig.cost.partition.change import change, columns, local
from symconfig.cost.partition.rates import elements
from symconfig.descriptor.mesh import Axis
from symconfig.graph.layout import PARTIAL as SUMS
from symconfig.graph.layout import Kind, Layout, moves
from symconfig.graph.monomial import Monomial
from symconfig.graph.program.net import PARTIAL, WHOLE

NAMES = ("tp", "cp", "dp")  # axes of the graph's layouts, innermost first
SIZES = (2, 3, 4)
AXES = (Axis("node", 2, 1), Axis("node", 3, 2), Axis("rail", 4, 6))
AMOUNT = 2**7 * 3**5
place = st.sampled_from((WHOLE, PARTIAL, 0, 1))
layout = st.tuples(place, place, place)


def moved(before: tuple[int, ...], after: tuple[int, ...]) -> float:
    """Elements that leave a rank, by symconfig.graph.layout.moves."""

    def named(places: tuple[int, ...]) -> Layout:
        words = {PARTIAL: SUMS, 0: "rows", 1: "columns"}
        return Layout.of({name: words[p] for name, p in zip(NAMES, places, strict=True) if p != WHOLE})

    numbers = dict(zip(NAMES, SIZES, strict=True))
    total = 0.0
    for move in moves(named(before), named(after), Monomial.of("amount")):
        ranks = float(np.prod([numbers[axis] for axis in move.axes]))
        passes = 2.0 if move.kind is Kind.ALL_REDUCE else 1.0
        total += passes * (ranks - 1) / ranks * move.elements.value(numbers | {"amount": AMOUNT})
    return total


def cost(before: tuple[int, ...], after: tuple[int, ...]) -> float:
    rates = elements(AXES)
    return float(
        np.asarray(change(columns(np.array([before])), columns(np.array([after]), (1, -1)), AMOUNT, rates)).item()
    )


@given(layout, layout)
def test_elements_moved_are_those_of_the_graphs_rule(before: tuple[int, ...], after: tuple[int, ...]) -> None:
    kinds = [(a, b) for a, b in zip(before, after, strict=True) if a != b]
    if any(b == PARTIAL for _, b in kinds):
        return  # the graph's rule knows no way to partial sums
    assert abs(cost(before, after) - moved(before, after)) <= 1e-9 * moved(before, after)


@given(st.lists(layout, min_size=1, max_size=5), st.lists(layout, min_size=1, max_size=5))
def test_many_pairs_at_once_are_each_pair_by_itself(
    first: list[tuple[int, ...]], second: list[tuple[int, ...]]
) -> None:
    rates = elements(AXES)
    table = np.broadcast_to(
        change(columns(np.array(first)), columns(np.array(second), (1, -1)), AMOUNT, rates), (len(first), len(second))
    )
    for i, before in enumerate(first):
        for j, after in enumerate(second):
            assert table[i, j] == cost(before, after)


@given(layout, layout)
def test_nothing_moves_where_nothing_changes_and_the_way_back_is_the_mirror(
    before: tuple[int, ...], after: tuple[int, ...]
) -> None:
    assert cost(before, before) == 0.0
    # A gather forward is a reduce-scatter backward: partial sums and whole change places in the gradient.
    there = [(a, b) for a, b in zip(before, after, strict=True) if a != b]
    if len(there) == 1 and there[0][0] >= 0 and there[0][1] == WHOLE:
        summed = tuple(PARTIAL if a != b else a for a, b in zip(before, after, strict=True))
        assert abs(cost(summed, before) - cost(before, after)) < 1e-9 * AMOUNT


def test_the_share_of_a_rank_is_that_of_the_parts() -> None:
    assert local(columns(np.array([[0, 1, WHOLE]])), elements(AXES)) == 1 / 6
