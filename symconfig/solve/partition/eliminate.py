"""The least sum of tables over few choices, exactly, by eliminating one node after the other.

In which order, and which tables meet at each step, is planned once for a network; the tables change with every cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from symconfig.solve.partition.problem import Array

Scope = tuple[int, ...]  # nodes, one for each axis of a table, in rising order
_CELLS = 4_000_000  # of one table; layers with residual streams need a few choices cubed


@dataclass(frozen=True, slots=True)
class Step:
    """node: the one that goes. scope: its neighbours by then. tables: numbers of those that it is in, each with the
    index that lays its axes along (*scope, node).
    """

    node: int
    scope: Scope
    tables: tuple[tuple[int, tuple[int, ...], tuple[slice | None, ...]], ...]


def plan(scopes: Sequence[Scope], sizes: Sequence[int]) -> tuple[Step, ...] | None:
    """Plan the elimination. scopes: of every table. sizes: choices of every node, at most. None: some table would be
    too large.

    The node whose neighbours have the fewest choices together goes first. What a step leaves is a table of its scope,
    and its number follows those of the tables before.
    """
    every, of = list(scopes), [{n for n, scope in enumerate(scopes) if v in scope} for v in range(len(sizes))]
    around = [{w for n in mine for w in every[n]} - {v} for v, mine in enumerate(of)]
    left, steps = set(range(len(sizes))), []
    while left:
        v = min(left, key=lambda node: (prod(sizes[w] for w in around[node]), node))
        scope = tuple(sorted(around[v]))
        if prod(sizes[w] for w in scope) * sizes[v] > _CELLS:
            return None
        gone = sorted(of[v])
        steps.append(Step(v, scope, tuple((n, *_along(every[n], (*scope, v))) for n in gone)))
        for w in scope:
            of[w] = (of[w] - set(gone)) | {len(every)}
            around[w] = (around[w] | set(scope)) - {v, w}
        every.append(scope)
        left.remove(v)
    return tuple(steps)


def _along(scope: Scope, axes: Scope) -> tuple[tuple[int, ...], tuple[slice | None, ...]]:
    order = tuple(sorted(range(len(scope)), key=lambda axis: axes.index(scope[axis])))
    return order, tuple(slice(None) if w in scope else None for w in axes)


def least(steps: Sequence[Step], tables: Sequence[Array]) -> tuple[int, ...]:
    """Return the choice of every node that makes the sum of all tables least; of equal ones the lowest, last nodes
    first.
    """
    every, made = list(tables), []
    for step in steps:
        (first, order, index), *others = step.tables
        table = every[first].transpose(order)[index]
        for number, order, index in others:
            table = table + every[number].transpose(order)[index]
        made.append(table.argmin(axis=-1))
        every.append(table.min(axis=-1))
    choice = [0] * len(steps)
    for step, best in zip(reversed(steps), reversed(made), strict=True):
        choice[step.node] = int(best[tuple(choice[w] for w in step.scope)])
    return tuple(choice)
