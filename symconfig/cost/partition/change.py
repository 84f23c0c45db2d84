"""The collectives that bring a tensor from one layout into another, for many pairs of layouts at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from symconfig.cost.partition.rates import Array, Rate
from symconfig.graph.layout import Column, Kind, Truth, changes, cut, ever, where


class Move(NamedTuple):
    """A collective along one axis.

    happens: for which pairs of layouts. amount: of the larger buffer on one rank, in bytes or elements.
    """

    kind: Kind
    axis: int
    happens: Truth
    amount: Array | float
    cost: Array | float


def local(places: Sequence[Column], rates: Sequence[Rate]) -> Array | float:
    """Return one rank's share of a tensor: 1 / (product of the sizes of the axes that it is sharded over)."""
    share: Array | float = 1.0
    for place, rate in zip(places, rates, strict=True):
        share = share * np.where(cut(place), 1.0 / rate.size, 1.0)
    return share


def change(
    given: Sequence[Column], taken: Sequence[Column], amount: Array | float, rates: Sequence[Rate]
) -> Array | float:
    """Return the cost of bringing a tensor from one layout into another. amount: of the whole tensor."""
    return total(moves(given, taken, amount, rates))


def total(run: Iterable[Move]) -> Array | float:
    """Return the sum of the costs of moves, each only where it happens; 0.0 for none."""
    cost: Any = 0.0
    for move in run:
        cost = cost + where(move.happens, move.cost, 0.0)
    result: Array | float = cost
    return result


def moves(
    given: Sequence[Column], taken: Sequence[Column], amount: Array | float, rates: Sequence[Rate]
) -> Iterator[Move]:
    """Yield the moves that bring a tensor from one layout into another, in order. amount: of the whole tensor.

    Moves of one kind are one collective over all of their axes; each has what its axis adds to the cost.
    """
    sizes = [rate.size for rate in rates]
    for kind, axes, larger in changes(given, taken, local(given, rates) * amount, sizes):
        # What stays within an outer axis' part is left for the inner ones: each element crosses one of them only.
        order = reversed(axes) if kind is Kind.ALL_TO_ALL else axes
        yield from together(kind, ((axis, rates[axis], now) for axis, now in order), larger)


def together(kind: Kind, along: Iterable[tuple[int, Rate, Truth]], whole: Array | float) -> Iterator[Move]:
    """Yield the moves of one collective, one for each axis on which it happens anywhere; none without such an axis.

    whole: the larger buffer on one rank. The amount is divided by each axis before the next one.
    """
    group: Any = 0
    amount: Any = whole
    for axis, rate, now in along:
        if ever(now):
            yield Move(kind, axis, now, amount, getattr(rate, _PRICED[kind])(whole, group))
            group = where(now, group + rate.step, group)
            amount = where(now, amount / rate.size, amount)


_PRICED = {
    Kind.REDUCE_SCATTER: "ring",
    Kind.ALL_GATHER: "ring",
    Kind.ALL_REDUCE: "all_reduce",
    Kind.ALL_TO_ALL: "all_to_all",
}
