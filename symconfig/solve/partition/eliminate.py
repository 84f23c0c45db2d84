"""The least sum of tables over few choices, exactly, by eliminating one node after the other. No limit of memory."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray

from symconfig.solve.partition.problem import Array

_CELLS = 4_000_000  # of one table; graphs of layers with residual streams need a few choices cubed

Factor = tuple[tuple[int, ...], Array]  # nodes, and a table with an axis for each


def minimum(sizes: Sequence[int], factors: list[Factor]) -> tuple[int, ...] | None:
    """The first of the assignments with the least sum of all factors; None where a table would be too large."""
    of: list[dict[int, Factor]] = [{} for _ in sizes]
    number = 0
    for factor in factors:
        for v in factor[0]:
            of[v][number] = factor
        number += 1
    left, made = set(range(len(sizes))), []
    around = [{w for scope, _ in mine.values() for w in scope} - {v} for v, mine in enumerate(of)]
    while left:
        v = min(left, key=lambda node: (prod(sizes[w] for w in around[node]), node))
        scope = tuple(sorted(around[v]))
        if prod(sizes[w] for w in scope) * sizes[v] > _CELLS:
            return None
        table = _joined((*scope, v), sizes, [factor for _, factor in sorted(of[v].items())])
        best: NDArray[np.intp] = np.argmin(table, axis=-1)
        made.append((v, scope, best))
        rest: Factor = (scope, np.min(table, axis=-1))
        gone = list(of[v])
        for w in scope:
            for key in gone:
                of[w].pop(key, None)
            of[w][number] = rest
            around[w] = (around[w] | set(scope)) - {v, w}
        number += 1
        left.remove(v)
    choice = [0] * len(sizes)
    for v, scope, best in reversed(made):
        choice[v] = int(best[tuple(choice[w] for w in scope)])
    return tuple(choice)


def _joined(scope: tuple[int, ...], sizes: Sequence[int], factors: Sequence[Factor]) -> Array:
    table = np.zeros(tuple(sizes[w] for w in scope))
    for nodes, values in factors:
        order = sorted(range(len(nodes)), key=lambda i: scope.index(nodes[i]))
        shape = tuple(sizes[w] if w in nodes else 1 for w in scope)
        table = table + np.transpose(values, order).reshape(shape)
    return table
