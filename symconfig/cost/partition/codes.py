"""Pairs of layouts as decimal numbers: the digit of each axis says what becomes of a tensor along it.

What a change of layouts moves, costs and keeps depends on these digits alone, so that all pairs of rows of a link read
from one table with an entry for each number.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from symconfig.cost.partition.rates import Array, Rate, change, local
from symconfig.cost.partition.work import Rows
from symconfig.graph.layout import PARTIAL, WHOLE, Column, cut

Numbers = NDArray[np.int64]
Pairs = tuple[Numbers, Numbers]  # places of one row and of the other
BASE = 10
_MOST_KNOWN = 128  # arrays of a table: some 10 MB
FORBIDDEN = 9  # the digit of what is ruled out
# By digit, one pair of places that stands for all that are alike: (given, taken).
_PAIRS = (
    (WHOLE, WHOLE),  # nothing changes, and nothing is cut
    (0, 0),  # nothing changes
    (WHOLE, PARTIAL),
    (WHOLE, 0),
    (PARTIAL, 0),
    (0, 1),
    (PARTIAL, WHOLE),
    (0, WHOLE),
    (0, PARTIAL),
    (WHOLE, WHOLE),  # forbidden
)
_HELD, _EXCHANGED, _GATHERED = 1, 5, 7
_MOVES_AS = np.array([0, 1, 0, 3, 4, 5, 6, 7, 7, 0])  # the lowest digit that moves the same
_DIGIT_OF = np.array([[0, 2, 3], [6, 0, 4], [7, 8, 1]])  # [given, taken]: whole, partial, cut the same way


def digits(given: Numbers, taken: Numbers) -> Numbers:
    """Return the digit (0 to 8) of each pair of places of a mesh axis before and after, in the arrays' broadcast shape.

    A place is the index of the dim that the axis shards, WHOLE, PARTIAL or FLAT; for digits see _PAIRS. Two different
    sharded places, FLAT too, are an exchange (5), equal ones 1. Never FORBIDDEN.
    """
    first, second = np.asarray(cut(given)), np.asarray(cut(taken))
    result: Numbers = _DIGIT_OF[np.where(first, 2, WHOLE - given), np.where(second, 2, WHOLE - taken)]
    return np.where(first & second & (given != taken), _EXCHANGED, result)


def pair_of(digit: int) -> tuple[int, int]:
    """Return the places before and after of one pair that moves as every pair with this digit does."""
    return _PAIRS[digit]


def is_gather(digits: Sequence[int]) -> bool:
    """Return whether the change with these digits, one for each axis, is an all-gather along some axis and no more."""
    return _GATHERED in digits and all(digit <= _HELD or digit == _GATHERED for digit in digits)


def codes(table: Numbers, given: Rows, taken: Rows) -> Numbers:
    """Return the number of every pair of rows: the digit of axis i times 10^i, summed. [given, taken]

    table: digits, [options of the producer, options of the consumer]. given, taken: [rows, axes].
    """
    total = np.zeros((len(given), len(taken)), dtype=np.int64)
    for axis, (row, column) in enumerate(zip(given.T, taken.T, strict=True)):
        total += BASE**axis * table[row].take(column, axis=1)
    return total


def codes_where(able: Numbers, tables: Sequence[Numbers], given: Rows, taken: Rows) -> tuple[Pairs, list[Numbers]]:
    """Return the pairs of rows without a FORBIDDEN digit in `able`, and their numbers (see `codes`) by each of
    `tables`.

    able, tables: digits, [options of the producer, options of the consumer]. Pairs are two index arrays, into given and
    into taken, [pairs] each; numbers are one array [pairs] per table, FORBIDDEN digits of `tables` included.
    """
    some = np.ones((len(given), len(taken)), dtype=bool)
    for row, column in zip(given.T, taken.T, strict=True):
        some &= (able != FORBIDDEN)[row].take(column, axis=1)
    first, second = np.divmod(np.flatnonzero(some), len(taken))
    powers = BASE ** np.arange(given.shape[1], dtype=np.int64)
    return (first, second), [table[given[first], taken[second]] @ powers for table in tables]


@dataclass(frozen=True)
class Table:
    """Properties of numbers of layout pairs, [numbers]. known: a cache of arrays by key."""

    rates: tuple[Rate, ...]
    numbers: Numbers
    known: dict[Hashable, Array] = field(default_factory=dict)

    @cached_property
    def digits(self) -> Numbers:
        """Return the digit of each axis: [axes, numbers]"""
        powers = BASE ** np.arange(len(self.rates), dtype=np.int64)
        return self.numbers // powers[:, None] % BASE

    @cached_property
    def moving(self) -> tuple[list[Column], list[Column], Numbers]:
        """Return the distinct movements among the numbers, and each number's index among them, as (given, taken,
        indices).

        given, taken: a list with an array per axis, the places before and after of each movement, [movements]. indices:
        [numbers]. Digits that move alike are merged; FORBIDDEN counts as no movement.
        """
        powers, digits = BASE ** np.arange(len(self.rates), dtype=np.int64), _MOVES_AS[self.digits]
        some, back = np.unique(powers @ digits, return_inverse=True)
        each = some // powers[:, None] % BASE
        given, taken = (np.array(of, dtype=np.int64)[each] for of in zip(*_PAIRS, strict=True))
        return list(given), list(taken), back

    @cached_property
    def forbidden(self) -> NDArray[np.bool_]:
        return np.asarray((self.digits == FORBIDDEN).any(axis=0))

    @cached_property
    def same(self) -> NDArray[np.bool_]:
        """Return where the layout changes along no axis: [numbers]."""
        return np.asarray((self.digits <= _HELD).all(axis=0))

    @cached_property
    def gathered(self) -> NDArray[np.bool_]:
        """Return where the tensor is all-gathered along one axis or more, and no other change happens: [numbers]."""
        plain = (self.digits <= _HELD) | (self.digits == _GATHERED)
        return np.asarray(plain.all(axis=0) & ~self.same)

    @cached_property
    def shares(self) -> tuple[Array, Array]:
        """Return the share of the tensor that one rank has before and after the change of layout, two arrays [numbers]:
        1 over the product of the sizes of the axes on which it is cut.
        """
        ones = np.ones(len(self.numbers))
        given, taken = (list(np.array(of, dtype=np.int64)[self.digits]) for of in zip(*_PAIRS, strict=True))
        return ones * local(given, self.rates), ones * local(taken, self.rates)

    def cost(self, amount: float) -> Array:
        """Return the cost of each number's change of layout (a decimal digit per mesh axis) for a tensor of `amount` in
        all, bytes or elements: [numbers]. Infinite where a digit is FORBIDDEN. Cached by amount.
        """

        def changed() -> Array:
            given, taken, back = self.moving
            moved = np.broadcast_to(change(given, taken, amount, self.rates), (int(back.max(initial=0)) + 1,))
            cost: Array = np.where(self.forbidden, np.inf, moved[back])
            return cost

        return self.once(amount, changed)

    def once(self, what: Hashable, make: Callable[[], Array]) -> Array:
        """Return the array cached under the key `what`; on a miss compute it by `make` and cache it.

        The cache is emptied first if it holds _MOST_KNOWN arrays. Every caller gets the same array, not a copy.
        """
        result = self.known.get(what)
        if result is None:
            if len(self.known) >= _MOST_KNOWN:
                self.known.clear()
            result = self.known[what] = make()
        return result


@lru_cache(maxsize=8)
def every(rates: tuple[Rate, ...]) -> Table:
    """Return the table of all numbers with as many digits as there are axes; a number is its own index."""
    return Table(rates, np.arange(BASE ** len(rates), dtype=np.int64))
