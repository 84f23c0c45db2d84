"""A lattice of degrees on which the graph's sizes become arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from symconfig.graph.dims import Monomial

Array = NDArray[np.float64]


def pairs(first: NDArray[Any], second: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.intp]]:
    """Return the distinct pairs (first, second), ascending, [2, k], and for each point the index of its pair, [n].

    first, second: non-negative whole numbers that broadcast to [n].
    """
    one, other = np.broadcast_arrays(first.astype(np.int64), second.astype(np.int64))
    width = int(other.max(initial=0)) + 1
    codes, which = np.unique(one * width + other, return_inverse=True)
    return np.stack((codes // width, codes % width)), which


@dataclass(frozen=True, slots=True)
class Lattice:
    """Values of every symbol at the points of a lattice: constants as numbers, degrees as arrays [points].

    known: a cache of evaluated monomials.
    """

    numbers: Mapping[str, float | Array]
    points: int
    known: dict[Monomial, Array] = field(default_factory=dict, compare=False, repr=False)

    def value(self, monomial: Monomial) -> Array:
        """Return a monomial's value at every point, [points]; it is cached, so the caller must not change it.

        Raises:
            KeyError: a symbol has no number.
        """
        value = self.known.get(monomial)
        if value is None:
            value = np.full(self.points, float(monomial.coefficient))
            for name, power in monomial.powers:
                number = self.numbers[name]
                value = value * number**power if power > 0 else value / number ** (-power)
            self.known[monomial] = value
        return value

    def stack(self, monomials: list[Monomial]) -> Array:
        """Return the values of monomials, one row each: [len(monomials), points]."""
        return np.array([self.value(monomial) for monomial in monomials]).reshape(len(monomials), self.points)
