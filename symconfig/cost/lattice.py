"""A lattice of degrees on which the graph's sizes become arrays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from symconfig.graph.monomial import Monomial

Array = NDArray[np.float64]
FEW = 256  # points that are not worth parting


def pairs(first: NDArray[Any], second: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.intp]]:
    """Return the different pairs [2, k] of two arrays of whole numbers of 0 and more that broadcast to [n], in order,
    and which of them each is, [n]."""
    one, other = np.broadcast_arrays(first.astype(np.int64), second.astype(np.int64))
    width = int(other.max(initial=0)) + 1
    codes, which = np.unique(one * width + other, return_inverse=True)
    return np.stack((codes // width, codes % width)), which


@dataclass(frozen=True, slots=True)
class Lattice:
    """Numbers for every symbol: constants as numbers, degrees as arrays of one length. Every size is evaluated once.

    repeats: many points have some degrees alike and nothing else differs between them, as a machine's constants may.
    """

    numbers: Mapping[str, float | Array]
    points: int
    repeats: bool = False
    known: dict[Monomial, Array] = field(default_factory=dict, compare=False, repr=False)
    parts: dict[frozenset[str], tuple[Lattice, NDArray[np.intp]]] = field(
        default_factory=dict, compare=False, repr=False
    )

    def value(self, monomial: Monomial) -> Array:
        """Return [points], not to be changed."""
        value = self.known.get(monomial)
        if value is None:
            value = np.full(self.points, float(monomial.coefficient))
            for name, power in monomial.powers:
                number = self.numbers[name]
                value = value * number**power if power > 0 else value / number ** (-power)
            self.known[monomial] = value
        return value

    def stack(self, monomials: list[Monomial]) -> Array:
        """Return [len(monomials), points]"""
        return np.array([self.value(monomial) for monomial in monomials]).reshape(len(monomials), self.points)

    def part(self, symbols: Iterable[str]) -> tuple[Lattice, NDArray[np.intp] | slice]:
        """Return a lattice of the points that differ in some symbols, and which of them each point is."""
        if not self.repeats or self.points < FEW:
            return self, slice(None)
        names = frozenset(name for name in symbols if isinstance(self.numbers[name], np.ndarray))
        if names not in self.parts:
            self.parts[names] = self._part(names)
        return self.parts[names]

    def _part(self, names: frozenset[str]) -> tuple[Lattice, NDArray[np.intp]]:
        code = np.zeros(self.points, dtype=np.int64)
        for name in sorted(names):
            code = pairs(code, np.unique(self.numbers[name], return_inverse=True)[1])[1]
        _, first, which = np.unique(code, return_index=True, return_inverse=True)
        numbers = {
            name: number[first] if isinstance(number, np.ndarray) else number for name, number in self.numbers.items()
        }
        return Lattice(numbers, first.size), which
