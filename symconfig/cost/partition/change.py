"""The collectives that bring a tensor from one layout into another, for many pairs of layouts at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from symconfig.cost.partition.rates import Array, Rate
from symconfig.graph.layout import Kind
from symconfig.graph.program.net import FLAT, PARTIAL, WHOLE

# Places of one axis in many layouts, in arrays that broadcast together; or one place in all of them.
Column = int | NDArray[np.int64]
Truth = bool | NDArray[np.bool_]


class Move(NamedTuple):
    """A collective along one axis, and where among the pairs it happens. amount: of the larger buffer on one rank."""

    kind: Kind
    axis: int
    happens: Truth
    amount: Array | float
    cost: Array | float


def columns(places: NDArray[np.int64], shape: tuple[int, ...] = (-1, 1)) -> list[Column]:
    """Split places [rows, axes] into a column for each axis, in this shape: [rows, 1], or [1, rows], or [rows]."""
    alike, first = (places == places[:1]).all(axis=0).tolist(), places[0].tolist()
    return [
        one if same else places[:, axis].reshape(shape)
        for axis, (one, same) in enumerate(zip(first, alike, strict=True))
    ]


def cut(place: Column) -> Truth:
    """Split along a dim or flat."""
    return (place >= 0) | (place == FLAT)


def local(places: Sequence[Column], rates: Sequence[Rate]) -> Array | float:
    """Return the share of a tensor that one rank has."""
    share: Any = 1.0
    for place, rate in zip(places, rates, strict=True):
        split = cut(place)
        if isinstance(split, np.ndarray):
            share = share * np.where(split, 1.0 / rate.size, 1.0)
        elif split:
            share = share / rate.size
    result: Array | float = share
    return result


def change(
    given: Sequence[Column], taken: Sequence[Column], amount: Array | float, rates: Sequence[Rate]
) -> Array | float:
    """Return the cost of all collectives; amount: of the whole tensor."""
    return total(moves(given, taken, amount, rates))


def total(run: Iterable[Move]) -> Array | float:
    """Return the cost of collectives that follow one another."""
    cost: Any = 0.0
    for move in run:
        cost = cost + where(move.happens, move.cost, 0.0)
    result: Array | float = cost
    return result


def moves(
    given: Sequence[Column], taken: Sequence[Column], amount: Array | float, rates: Sequence[Rate]
) -> Iterator[Move]:
    """Yield the collectives, one after the other; amount: of the whole tensor.

    As symconfig.graph.layout.moves has it: partial sums become split by a reduce-scatter and whole by an all-reduce,
    split becomes whole by an all-gather, and split otherwise by an all-to-all; from whole to split or to partial sums
    is free. Slices come first and gathers last. Those of one kind are one collective over all of their axes; each axis
    has what it adds to the cost.
    """
    size: Any = local(given, rates) * amount
    moving = [
        (axis, rates[axis], a, b, cut(a), cut(b))
        for axis, (a, b) in enumerate(zip(given, taken, strict=True))
        if isinstance(a, np.ndarray) or isinstance(b, np.ndarray) or a != b
    ]
    for _, rate, a, _, _, takes in moving:
        size = where((a == WHOLE) & takes, size / rate.size, size)
    scattered = [(axis, rate, (a == PARTIAL) & takes) for axis, rate, a, _, _, takes in moving]
    yield from together(Kind.REDUCE_SCATTER, scattered, size)
    size = size / _ranks(scattered)
    # What stays within an outer axis' part is left for the inner ones: each element crosses one of them only.
    exchanged = [(axis, rate, gives & takes & (a != b)) for axis, rate, a, b, gives, takes in reversed(moving)]
    yield from together(Kind.ALL_TO_ALL, exchanged, size)
    yield from together(
        Kind.ALL_REDUCE, [(axis, rate, (a == PARTIAL) & (b == WHOLE)) for axis, rate, a, b, _, _ in moving], size
    )
    gathered = [
        (axis, rate, gives & (np.logical_not(takes) if isinstance(takes, np.ndarray) else not takes))
        for axis, rate, _, _, gives, takes in moving
    ]
    yield from together(Kind.ALL_GATHER, gathered, size * _ranks(gathered))


def together(kind: Kind, along: Iterable[tuple[int, Rate, Truth]], whole: Array | float) -> Iterator[Move]:
    """Yield one collective over all axes along which it happens; whole: the larger buffer of it on one rank.

    The ranks along an axis share what moves along the next one.
    """
    group: Any = 0
    amount: Any = whole
    for axis, rate, now in along:
        if _ever(now):
            yield Move(kind, axis, now, amount, getattr(rate, _PRICED[kind])(whole, group))
            group = where(now, group + rate.step, group)
            amount = where(now, amount / rate.size, amount)


_PRICED = {
    Kind.REDUCE_SCATTER: "ring",
    Kind.ALL_GATHER: "ring",
    Kind.ALL_REDUCE: "all_reduce",
    Kind.ALL_TO_ALL: "all_to_all",
}


def _ranks(along: Iterable[tuple[int, Rate, Truth]]) -> Any:
    ranks: Any = 1
    for _, rate, now in along:
        ranks = where(now, ranks * rate.size, ranks) if _ever(now) else ranks
    return ranks


def _ever(condition: Truth) -> bool:
    return bool(condition.any()) if isinstance(condition, np.ndarray) else condition


def where(condition: Truth, yes: Any, no: Any) -> Any:
    """Choose as np.where does, also by one truth for all."""
    if isinstance(condition, np.ndarray):
        return np.where(condition, yes, no)
    return yes if condition else no
