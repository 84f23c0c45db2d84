"""Many configurations at once, or one of which not everything is known: the names of `Configuration`, each a column.

Columns that nobody knows are UNKNOWN, with Kleene's three-valued logic: arithmetic and comparisons with UNKNOWN are
unknown, `False & UNKNOWN` is false and `True | UNKNOWN` true; of arrays the same, where all their elements agree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from symconfig.plans.configuration import DEGREES, FIELDS


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


Values = NDArray[Any]  # [n]: int64 where they are tested for division, float64 where they are priced
COLUMNS = (*FIELDS, "world_size", "num_microbatches", "group")


class ConfigurationSet:
    """Columns of configurations, frozen: each an array [n], or one plain value that all share.

    UNKNOWN: nobody decided or wrote it. num_microbatches, like dp, is rounded down where it does not divide. cp_comm
    has words with blanks between where layers differ.
    """

    __slots__ = COLUMNS

    def __init__(self, **columns: Any) -> None:
        for name in COLUMNS:
            object.__setattr__(self, name, columns.pop(name, UNKNOWN))
        if columns:
            raise TypeError(f"no column of a configuration: {', '.join(columns)}")

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{name}: a set of configurations is frozen")

    def having(self, columns: Mapping[str, Any] | None = None, /, **more: Any) -> Self:
        """Return a copy with these columns replaced."""
        return type(self)(**{name: getattr(self, name) for name in COLUMNS} | dict(columns or {}) | more)

    def at(self, chosen: NDArray[Any] | slice | int) -> Self:
        """Return the selected configurations: indices, mask or slice; an int gives one, with scalars. Columns that are
        plain values or UNKNOWN stay as they are.
        """
        return self._each(lambda column: column[chosen])

    def as_floats(self, chosen: NDArray[Any] | slice = slice(None), **given: Values | int) -> Self:
        """Return the selected configurations with arrays of numbers as float64, of objects as they are. Products of
        integers could overflow. given: columns that replace these, not converted.
        """
        return self._each(lambda c: c[chosen] if c.dtype.hasobject else c[chosen].astype(np.float64), **given)

    def _each(self, change: Callable[[Values], Values], **given: Values | int) -> Self:
        columns = ((name, getattr(self, name)) for name in COLUMNS)
        changed = {name: change(column) if isinstance(column, np.ndarray) else column for name, column in columns}
        return type(self)(**changed | given)

    def degrees_at(self, place: int) -> dict[str, Any]:
        """Return the known degrees of the configuration at an index, by name."""
        columns = ((name, getattr(self, name)) for name in DEGREES)
        known = ((name, column) for name, column in columns if column is not UNKNOWN)
        return {name: int(column[place] if isinstance(column, np.ndarray) else column) for name, column in known}

    @property
    def size(self) -> int:
        """Return the number of configurations; tp must be an array."""
        return int(self.tp.size)

    @property
    def degrees(self) -> dict[str, Values]:
        """Return the sizes of the axes that divide a stage, by name; dp is without the ranks of gtp."""
        inner = {"tp": self.tp, "gtp": self.gtp, "cp": self.cp, "dp": self.dp / self.gtp}
        return {**inner, "ep": self.ep, "etp": self.etp}

    @property
    def shards(self) -> Values:
        """Return the number of ranks that hold the same dense weights, over which ZeRO shards them: dp * cp / gtp."""
        ranks: Values = self.dp * self.cp / self.gtp
        return ranks

    @property
    def edp(self) -> Values:
        """Return the number of replicas of each expert within a pipeline stage."""
        replicas: Values = self.tp * self.cp * self.dp / (self.ep * self.etp)
        return replicas
