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
    """Of places [rows, axes] a column for each axis, in this shape: [rows, 1], or [1, rows], or [rows]."""
    alike, first = (places == places[:1]).all(axis=0).tolist(), places[0].tolist()
    return [
        one if same else places[:, axis].reshape(shape)
        for axis, (one, same) in enumerate(zip(first, alike, strict=True))
    ]


def cut(place: Column) -> Truth:
    """Split along a dim or flat."""
    return (place >= 0) | (place == FLAT)


def local(places: Sequence[Column], rates: Sequence[Rate]) -> Array | float:
    """The share of a tensor that one rank has."""
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
    """Cost of all collectives; amount: of the whole tensor."""
    return total(moves(given, taken, amount, rates))


def total(run: Iterable[Move]) -> Array | float:
    """Cost of collectives that follow one another."""
    cost: Any = 0.0
    for move in run:
        cost = cost + where(move.happens, move.cost, 0.0)
    result: Array | float = cost
    return result


def moves(
    given: Sequence[Column], taken: Sequence[Column], amount: Array | float, rates: Sequence[Rate]
) -> Iterator[Move]:
    """The collectives, one after the other; amount: of the whole tensor.

    As symconfig.graph.layout.moves has it: partial sums become split by a reduce-scatter and whole by an all-reduce,
    split becomes whole by an all-gather, and split otherwise by an all-to-all; from whole to split or to partial sums
    is free. Slices come first and gathers last, each along its own axis: reductions from the inner axes to the outer
    ones, gathers the other way, so that slow links carry the least. An exchange over several axes goes from the outer
    to the inner ones, so that each element crosses one of them only.
    """
    size: Any = local(given, rates) * amount
    moving = [
        (axis, rates[axis], a, b, cut(a), cut(b))
        for axis, (a, b) in enumerate(zip(given, taken, strict=True))
        if isinstance(a, np.ndarray) or isinstance(b, np.ndarray) or a != b
    ]
    for _, rate, a, _, _, takes in moving:
        size = where((a == WHOLE) & takes, size / rate.size, size)
    for axis, rate, a, _, _, takes in moving:
        now = (a == PARTIAL) & takes
        if _ever(now):
            yield Move(Kind.REDUCE_SCATTER, axis, now, size, rate.ring(size))
            size = where(now, size / rate.size, size)
    exchanged = size  # what stays within an outer axis' part is left for the inner ones
    for axis, rate, a, b, gives, takes in reversed(moving):
        now = gives & takes & (a != b)
        if _ever(now):
            yield Move(Kind.ALL_TO_ALL, axis, now, exchanged, rate.all_to_all(exchanged))
            exchanged = where(now, exchanged / rate.size, exchanged)
    reduced = size  # by an inner axis and not yet gathered again: the outer ones move that only
    for axis, rate, a, b, _, _ in moving:
        now = (a == PARTIAL) & (b == WHOLE)
        if _ever(now):
            yield Move(Kind.ALL_REDUCE, axis, now, reduced, rate.all_reduce(reduced))
            reduced = where(now, reduced / rate.size, reduced)
    for axis, rate, _, _, gives, takes in reversed(moving):
        now = gives & (np.logical_not(takes) if isinstance(takes, np.ndarray) else not takes)
        if _ever(now):
            size = where(now, size * rate.size, size)
            yield Move(Kind.ALL_GATHER, axis, now, size, rate.ring(size))


def _ever(condition: Truth) -> bool:
    return bool(condition.any()) if isinstance(condition, np.ndarray) else condition


def where(condition: Truth, yes: Any, no: Any) -> Any:
    """np.where, also of one truth for all."""
    if isinstance(condition, np.ndarray):
        return np.where(condition, yes, no)
    return yes if condition else no
