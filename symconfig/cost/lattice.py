"""A lattice of degrees on which the graph's sizes become arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from symconfig.graph.monomial import Monomial

Array = NDArray[np.float64]


def pairs(first: NDArray[Any], second: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.intp]]:
    """Return the different pairs [2, k] of two arrays of whole numbers of 0 and more that broadcast to [n], in order,
    and which of them each is, [n]."""
    one, other = np.broadcast_arrays(first.astype(np.int64), second.astype(np.int64))
    width = int(other.max(initial=0)) + 1
    found, which = np.unique(one * width + other, return_inverse=True)
    return np.stack((found // width, found % width)), which


@dataclass(frozen=True, slots=True)
class Lattice:
    """Numbers for every symbol: constants as numbers, degrees as arrays of one length."""

    numbers: Mapping[str, float | Array]
    points: int

    def value(self, monomial: Monomial) -> Array:
        """[points]"""
        result = np.full(self.points, float(monomial.coefficient))
        for name, power in monomial.powers:
            number = self.numbers[name]
            result = result * number**power if power > 0 else result / number ** (-power)
        return result

    def stack(self, monomials: list[Monomial]) -> Array:
        """[len(monomials), points]; equal monomials are evaluated once."""
        cache: dict[Monomial, Array] = {}
        rows = []
        for monomial in monomials:
            if monomial not in cache:
                cache[monomial] = self.value(monomial)
            rows.append(cache[monomial])
        return np.array(rows).reshape(len(rows), self.points)


@dataclass(frozen=True, slots=True)
class KeptLattice(Lattice):
    """A small lattice on which blocks are evaluated again and again: every size is evaluated once."""

    known: dict[Monomial, Array] = field(default_factory=dict)

    def value(self, monomial: Monomial) -> Array:
        if monomial not in self.known:
            self.known[monomial] = Lattice.value(self, monomial)
        return self.known[monomial]
