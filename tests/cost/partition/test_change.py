"""Changes of layout cost what the graph's own rule says, however many axes and pairs are weighed at once."""

from __future__ import annotations

from itertools import groupby

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from symconfig.cost.partition.rates import Move, elements, local, total
from symconfig.cost.partition.rates import moves as array_moves
from symconfig.descriptor.mesh import Axis
from symconfig.graph.dims import Monomial
from symconfig.graph.layout import FLAT, PARTIAL, WHOLE, Column, Kind, Layout, Place, moves

NAMES = ("tp", "cp", "dp")  # axes of the graph's layouts, innermost first
SIZES = (2, 3, 2)
AXES = (Axis("node", 2, 1), Axis("node", 3, 2), Axis("rail", 2, 6))
AMOUNT = 2**7 * 3**5
place = st.sampled_from((WHOLE, PARTIAL, FLAT, 0, 1))
layout = st.tuples(place, place, place)


def columns(rows: NDArray[np.int64], shape: tuple[int, ...] = (-1, 1)) -> list[Column]:
    """Places [rows, axes] as a column for each axis."""
    return [column.reshape(shape) for column in rows.T]


def cost(before: tuple[int, ...], after: tuple[int, ...]) -> float:
    rates = elements(AXES)
    return float(
        np.asarray(
            total(array_moves(columns(np.array([before])), columns(np.array([after]), (1, -1)), AMOUNT, rates))
        ).item()
    )


@given(layout, layout)
def test_arrays_and_a_pair_of_layouts_give_the_same_collectives(
    before: tuple[int, ...], after: tuple[int, ...]
) -> None:
    def named(places: tuple[int, ...]) -> Layout:
        words: dict[int, Place] = {0: "rows", 1: "columns"}
        return Layout.of({name: words.get(p, p) for name, p in zip(NAMES, places, strict=True) if p != WHOLE})

    numbers = dict(zip(NAMES, map(float, SIZES), strict=True)) | {"amount": AMOUNT}
    pair = {move.kind: move for move in moves(named(before), named(after), Monomial.of("amount"))}
    rows = columns(np.array([before, before])), columns(np.array([after, layout_of(before)]))
    arrays: dict[Kind, list[Move]] = {}
    for move in array_moves(*rows, AMOUNT, elements(AXES)):
        if np.broadcast_to(move.happens, (2, 1))[0, 0]:
            arrays.setdefault(move.kind, []).append(move)
    assert list(arrays) == list(pair)
    for kind, each in arrays.items():
        assert sorted(NAMES[move.axis] for move in each) == sorted(pair[kind].axes)
        largest = max(float(np.broadcast_to(move.amount, (2, 1))[0, 0]) for move in each)
        assert largest == pytest.approx(pair[kind].elements.value(numbers))


def layout_of(places: tuple[int, ...]) -> tuple[int, ...]:
    """Another layout, so that each axis changes in one row and not in the other."""
    return tuple(place if place != WHOLE else 0 for place in places)


@given(layout, layout)
def test_collectives_bring_every_rank_what_it_has_to_hold(before: tuple[int, ...], after: tuple[int, ...]) -> None:
    """Run on the elements themselves: on each rank the sum and the cuts that the layouts say, nothing more or less."""
    assume(all(a == b or b != PARTIAL for a, b in zip(before, after, strict=True)))
    ranks = Ranks(before)
    for axis, (a, b) in enumerate(zip(before, after, strict=True)):
        if a == WHOLE and b != WHOLE:
            ranks.slice(axis, b)
    each = list(array_moves(columns(np.array([before])), columns(np.array([after])), ELEMENTS, elements(AXES)))
    for kind, some in groupby(each, key=lambda move: move.kind):
        group = list(some)
        largest = max(float(np.asarray(move.amount).item()) for move in group)
        if kind is not Kind.ALL_GATHER:
            assert largest == pytest.approx(ranks.held)
        for move in group:
            ranks.run(kind, move.axis, after[move.axis])
        if kind is Kind.ALL_GATHER:
            assert largest == pytest.approx(ranks.held)
    assert np.array_equal(ranks.values, Ranks(after).values, equal_nan=True)


ELEMENTS = int(np.prod(SIZES)) ** 3


class Ranks:
    """Elements on all ranks: [ranks along each axis, element], NaN where a rank does not hold one. An element's number
    has a digit for each dim and axis, so that an axis cuts a dim by one digit whatever the others do: an axis's part of
    a dim is those elements whose digit is its rank. An axis of partial sums holds the value on all but one rank as 0.
    """

    def __init__(self, places: tuple[int, ...]) -> None:
        self.digits = np.indices((*SIZES, *SIZES, *SIZES)).reshape(9, ELEMENTS)  # rows, columns, flat
        self.values = np.broadcast_to(np.arange(ELEMENTS, dtype=float), (*SIZES, ELEMENTS)).copy()
        for axis, place in enumerate(places):
            if place == PARTIAL:
                np.moveaxis(self.values, axis, 0)[1:] = 0.0
        for axis, place in enumerate(places):
            if place >= 0 or place == FLAT:
                self.slice(axis, place)

    @property
    def held(self) -> int:
        (count,) = {int(n) for n in (~np.isnan(self.values)).sum(axis=-1).ravel()}
        return count

    def slice(self, axis: int, place: int) -> None:
        digit = self.digits[3 * (2 if place == FLAT else place) + axis]
        for rank, values in enumerate(np.moveaxis(self.values, axis, 0)):
            values[..., digit != rank] = np.nan

    def run(self, kind: Kind, axis: int, after: int) -> None:
        join = np.nansum if kind in (Kind.ALL_TO_ALL, Kind.ALL_GATHER) else np.sum
        nobody = np.isnan(self.values).all(axis=axis, keepdims=True)
        joined = np.where(nobody, np.nan, join(self.values, axis=axis, keepdims=True))
        self.values = np.broadcast_to(joined, self.values.shape).copy()
        if kind in (Kind.ALL_TO_ALL, Kind.REDUCE_SCATTER):
            self.slice(axis, after)


@given(st.lists(layout, min_size=1, max_size=5), st.lists(layout, min_size=1, max_size=5))
def test_many_pairs_at_once_are_each_pair_by_itself(
    first: list[tuple[int, ...]], second: list[tuple[int, ...]]
) -> None:
    rates = elements(AXES)
    table = np.broadcast_to(
        total(array_moves(columns(np.array(first)), columns(np.array(second), (1, -1)), AMOUNT, rates)),
        (len(first), len(second)),
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
