"""The cost of bringing a tensor from one layout into another, for many pairs of layouts at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from symconfig.cost.partition.rates import Array, Rate
from symconfig.tensors.net import FLAT, PARTIAL, WHOLE

Places = Sequence[NDArray[np.int64]]  # of each axis; arrays that broadcast together


def cut(places: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Split along a dim or flat."""
    result: NDArray[np.bool_] = (places >= 0) | (places == FLAT)
    return result


def local(places: Places, rates: Sequence[Rate]) -> Array:
    """The share of a tensor that one rank has."""
    share: Array = np.ones(1)
    for place, rate in zip(places, rates, strict=True):
        if cut(place).any():
            share = share * np.where(cut(place), 1.0 / rate.size, 1.0)
    return share


def change(given: Places, taken: Places, amount: float, rates: Sequence[Rate]) -> Array:
    """Cost of all collectives; amount: of the whole tensor.

    As symconfig.graph.layout.moves has it: partial sums become split by a reduce-scatter and whole by an all-reduce,
    split becomes whole by an all-gather, and split otherwise by an all-to-all; from whole to split or to partial sums
    is free. Slices come first and gathers last, each along its own axis: reductions from the inner axes to the outer
    ones, gathers the other way, so that slow links carry the least.
    """
    size = local(given, rates) * amount
    cost: Array = np.zeros(1)
    every = [
        axis
        for axis, (a, b) in enumerate(zip(given, taken, strict=True))
        if not (a.size == 1 and b.size == 1 and a.item() == b.item())
    ]
    gives = {axis: cut(given[axis]) for axis in every}
    takes = {axis: cut(taken[axis]) for axis in every}

    for axis in every:  # slices
        if takes[axis].any() and (given[axis] == WHOLE).any():
            size = np.where((given[axis] == WHOLE) & takes[axis], size / rates[axis].size, size)
    for axis in every:
        if takes[axis].any() and (given[axis] == PARTIAL).any():
            now = (given[axis] == PARTIAL) & takes[axis]
            cost = cost + np.where(now, rates[axis].ring(size), 0.0)
            size = np.where(now, size / rates[axis].size, size)
    for axis in every:
        if gives[axis].any() and takes[axis].any():
            now = gives[axis] & takes[axis] & (given[axis] != taken[axis])
            if now.any():
                cost = cost + np.where(now, rates[axis].all_to_all(size), 0.0)
    for axis in every:
        if (given[axis] == PARTIAL).any() and (taken[axis] == WHOLE).any():
            now = (given[axis] == PARTIAL) & (taken[axis] == WHOLE)
            cost = cost + np.where(now, rates[axis].all_reduce(size), 0.0)
    for axis in reversed(every):
        if gives[axis].any() and not takes[axis].all():
            now = gives[axis] & ~takes[axis]
            size = np.where(now, size * rates[axis].size, size)
            cost = cost + np.where(now, rates[axis].ring(size), 0.0)
    return cost
