"""The third answer: a value that nobody knows, and what follows from it (Kleene's three-valued logic).

Arithmetic and comparisons with UNKNOWN are unknown. `False & UNKNOWN` is false and `True | UNKNOWN` true; of arrays the
same, where all their elements agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NoReturn

import numpy as np


class Unknown:
    """A value that is not known. It decides nothing: `if` and `and` on it are errors."""

    __slots__ = ()
    __array_ufunc__ = None  # arrays leave the operators below to it

    def _unknown(self, other: object = None) -> Unknown:
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _unknown
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _unknown
    __lt__ = __le__ = __gt__ = __ge__ = _unknown

    def __eq__(self, other: object) -> Any:
        return self

    def __ne__(self, other: object) -> Any:
        return self

    __hash__ = object.__hash__

    def __and__(self, other: Any) -> Any:
        return other if isinstance(other, Unknown) or not np.any(other) else self

    def __or__(self, other: Any) -> Any:
        return other if isinstance(other, Unknown) or np.all(other) else self

    __rand__, __ror__ = __and__, __or__

    def __bool__(self) -> NoReturn:
        raise TypeError("an unknown value decides nothing: use &, | and no()")

    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN: Final = Unknown()


def no(value: Any) -> Any:
    """Return the negation of a truth value, or of each element of an array; UNKNOWN for UNKNOWN."""
    return value if isinstance(value, Unknown) else np.logical_not(value)


def among(value: Any, values: frozenset[Any]) -> Any:
    """Return whether a value, or each element of an array, is in `values`; UNKNOWN for UNKNOWN."""
    if isinstance(value, Unknown):
        return value
    return np.isin(value, tuple(values)) if isinstance(value, np.ndarray) else value in values


def looked_up(value: Any, table: Mapping[str, int], otherwise: int) -> Any:
    """Return the table's number for a word, `otherwise` if it has none; UNKNOWN for UNKNOWN."""
    return value if isinstance(value, Unknown) else table.get(value, otherwise)


def has(values: Any, word: str) -> Any:
    """Return whether a word is in a collection, or among the blank-separated words of a text; UNKNOWN for UNKNOWN."""
    if isinstance(values, Unknown):
        return values
    return word in (values.split() if isinstance(values, str) else values)
