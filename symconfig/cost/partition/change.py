"""The cost of bringing a tensor from one layout into another, for many pairs of layouts at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from symconfig.cost.partition.rates import Array, Rate
from symconfig.tensors.net import FLAT, PARTIAL, WHOLE

# Places of one axis in many layouts, in arrays that broadcast together; or one place in all of them.
Column = int | NDArray[np.int64]
Truth = bool | NDArray[np.bool_]


def columns(places: NDArray[np.int64], across: bool = False) -> list[Column]:
    """Of places [rows, axes] a column for each axis, [rows, 1]; or, across, [1, rows]."""
    alike, first = (places == places[:1]).all(axis=0).tolist(), places[0].tolist()
    shape = (1, -1) if across else (-1, 1)
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
    return share  # type: ignore[no-any-return]


def change(given: Sequence[Column], taken: Sequence[Column], amount: float, rates: Sequence[Rate]) -> Array | float:
    """Cost of all collectives; amount: of the whole tensor.

    As symconfig.graph.layout.moves has it: partial sums become split by a reduce-scatter and whole by an all-reduce,
    split becomes whole by an all-gather, and split otherwise by an all-to-all; from whole to split or to partial sums
    is free. Slices come first and gathers last, each along its own axis: reductions from the inner axes to the outer
    ones, gathers the other way, so that slow links carry the least.
    """
    size: Any = local(given, rates) * amount
    cost: Any = 0.0
    moving = [
        (rate, a, b, cut(a), cut(b))
        for rate, a, b in zip(rates, given, taken, strict=True)
        if isinstance(a, np.ndarray) or isinstance(b, np.ndarray) or a != b
    ]
    for rate, a, _, _, takes in moving:
        size = _if((a == WHOLE) & takes, size / rate.size, size)
    for rate, a, _, _, takes in moving:
        now = (a == PARTIAL) & takes
        if _ever(now):
            cost = cost + _if(now, rate.ring(size), 0.0)
            size = _if(now, size / rate.size, size)
    for rate, a, b, gives, takes in moving:
        now = gives & takes & (a != b)
        if _ever(now):
            cost = cost + _if(now, rate.all_to_all(size), 0.0)
    reduced = size  # by an inner axis and not yet gathered again: the outer ones move that only
    for rate, a, b, _, _ in moving:
        now = (a == PARTIAL) & (b == WHOLE)
        if _ever(now):
            cost = cost + _if(now, rate.all_reduce(reduced), 0.0)
            reduced = _if(now, reduced / rate.size, reduced)
    for rate, _, _, gives, takes in reversed(moving):
        now = gives & (np.logical_not(takes) if isinstance(takes, np.ndarray) else not takes)
        if _ever(now):
            size = _if(now, size * rate.size, size)
            cost = cost + _if(now, rate.ring(size), 0.0)
    return cost  # type: ignore[no-any-return]


def _ever(condition: Truth) -> bool:
    return bool(condition.any()) if isinstance(condition, np.ndarray) else condition


def _if(condition: Truth, yes: Any, no: Any) -> Any:
    if isinstance(condition, np.ndarray):
        return np.where(condition, yes, no)
    return yes if condition else no
