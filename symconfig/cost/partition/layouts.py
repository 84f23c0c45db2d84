"""Where the rows of two nodes lay the tensor between them: columns of places for every pair of rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from symconfig.cost.partition.work import Rows
from symconfig.graph.layout import FLAT, PARTIAL, WHOLE, Column, cut
from symconfig.graph.program.net import Node, Port

Columns = Sequence[Column]


class Pairs(NamedTuple):
    """Shapes of columns of rows that are given and taken, and of what comes of both."""

    down: tuple[int, ...]
    across: tuple[int, ...]
    shape: tuple[int, ...]


def across(given: Rows, taken: Rows) -> Pairs:
    return Pairs((-1, 1), (1, -1), (len(given), len(taken)))


def paired_rows(rows: Rows) -> Pairs:
    return Pairs((-1,), (-1,), (len(rows),))


def states(node: Node, rows: Rows) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return places [rows, axes] of a parameter's weight, gradient and optimizer state."""
    port = node.ports[0]
    flat = np.array([option.zero > 0 for option in node.options])
    weight, gradient = port.forward[rows], port.backward[rows]
    return weight, gradient, np.where(flat[rows], FLAT, weight)


def distinct(port: Port, rows: Rows) -> tuple[Rows, list[int]]:
    """Return the rows that place the port's tensor differently, and for each given row the one that is like it."""
    digits = len(port.places) ** np.arange(rows.shape[1], dtype=np.int64)
    first: dict[int, int] = {}
    alike: list[int] = (port.alike[rows] @ digits).tolist()
    back = [first.setdefault(number, len(first)) for number in alike]
    at = [0] * len(first)
    for row in range(len(rows) - 1, -1, -1):
        at[back[row]] = row
    return rows[at], back


def gathered_pairs(a: Columns, b: Columns) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return the pairs where nothing changes, and the pairs where all that changes is gathered."""
    same, only = np.ones(1, dtype=bool), np.ones(1, dtype=bool)
    for x, y in zip(a, b, strict=True):
        if isinstance(x, np.ndarray) or isinstance(y, np.ndarray) or x != y:
            equal = np.asarray(x == y)
            same = same & equal
            only = only & (equal | (cut(x) & (y == WHOLE)))
    return same, only & ~same


def between_turns(stored: Column, given: Column) -> Column:
    """Return where a gradient lies between turns: as it is stored if that is split, else as it comes, summed up
    or not.
    """
    result: NDArray[np.int64] = np.where(cut(stored), stored, np.where(given == PARTIAL, PARTIAL, WHOLE))
    return result
