"""What a price cannot settle: nodes are eliminated with every pair of cost and bytes that may still be the best.

For each combination of a step's scope a front of labels, none of which another one beats in cost and bytes. What the
exact bound of all the rest puts at or above a ceiling goes. An extension of the labels of constrained shortest paths
(Dumitrescu and Boland, Networks 2003) from paths to graphs of small treewidth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from symconfig.solve.partition.bound import priced
from symconfig.solve.partition.marginal import Eliminated, Factor, beliefs, eliminated, plan
from symconfig.solve.partition.problem import Array
from symconfig.solve.partition.reduce import Bools, Ints, Space

MOST = 1_500_000  # labels of one step, before it is given up: some 100 MB
ROUNDING = 1e-12  # relative: sums of the same bytes in another order
ALIKE = 5e-12  # of the ceiling: costs that differ by less are taken for the same


@dataclass(frozen=True, slots=True)
class Labels:
    """Of one step, sorted by the combination of its scope; those of one start at starts[combination].

    choice: of the step's node. below: for each step that this one joins, the label of it.
    """

    starts: Ints
    cost: Array
    memory: Array
    transient: Array
    choice: Ints
    below: tuple[tuple[int, Ints], ...]


@dataclass(frozen=True, slots=True)
class Front:
    """The best choice that fits (but for rounding) and costs less than the ceiling, if any. complete: or none is known
    because there were too many labels.
    """

    choice: tuple[int, ...] | None
    complete: bool


def cheapest(space: Space, price: float, ceiling: float) -> Front:
    """price: at which the bound is good; it decides how many labels there are, not the answer."""
    found = eliminated(priced(space, price), plan(space)[0])
    alive = {n: _alive(space, belief, price, ceiling) for n, belief in beliefs(found)}
    made: list[Labels] = []
    for number in range(len(found.steps)):
        labels = _step(space, found, number, alive.pop(number), made, price, ceiling)
        if labels is None:
            return Front(None, False)
        made.append(labels)
    return Front(_traced(found, made, space, ceiling), True)


def _alive(space: Space, belief: Array, price: float, ceiling: float) -> tuple[tuple[Ints, ...], Array]:
    """Combinations of a step's node and scope that may be part of something below the ceiling, and their bounds."""
    at = np.nonzero(belief - price * space.room < ceiling)
    return at, belief[at]


def _step(
    space: Space,
    found: Eliminated,
    number: int,
    alive: tuple[tuple[Ints, ...], Array],
    made: Sequence[Labels],
    price: float,
    ceiling: float,
) -> Labels | None:
    """The labels of a step. None: there would be too many."""
    step = found.steps[number]
    places, bound = alive
    columns = dict(zip((step.v, *step.scope), places, strict=True))
    rows = _Rows(columns, *_own(space, step.v, columns), space.transient[step.v][columns[step.v]], bound, {})
    for factor in found.parts[number]:
        if factor.source >= 0:
            joined = _joined(rows, factor, made[factor.source], space, price, ceiling)
            if joined is None:
                return None
            rows = joined
    sizes = tuple(space.sizes[w] for w in step.scope)
    key = np.zeros(len(rows.cost), dtype=np.int64)
    for w, size in zip(step.scope, sizes, strict=True):
        key = key * size + rows.columns[w]
    kept = _front(key, rows, space.floor, ALIKE * abs(ceiling))
    count = int(np.prod(sizes)) if sizes else 1
    starts = np.searchsorted(key[kept], np.arange(count + 1))
    below = tuple((source, labels[kept]) for source, labels in rows.below.items())
    return Labels(
        starts, rows.cost[kept], rows.memory[kept], rows.transient[kept], rows.columns[step.v][kept], below
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Rows:
    """Labels in the making: what the nodes of the step take, sums so far, and a bound of all together at the price."""

    columns: dict[int, Ints]
    cost: Array
    memory: Array
    transient: Array
    bound: Array
    below: dict[int, Ints]


def _own(space: Space, v: int, columns: dict[int, Ints]) -> tuple[Array, Array]:
    """Cost and bytes of the node and of its pairs with the nodes that are still there."""
    cost, memory = space.cost[v][columns[v]], space.memory[v][columns[v]]
    for p, w in space.around[v]:
        if w in columns:
            pair = space.pairs[p]
            at = (columns[pair.u], columns[pair.v])
            cost = cost + pair.cost[at]
            if pair.memory is not None:
                memory = memory + pair.memory[at]
    return cost, memory


def _joined(rows: _Rows, factor: Factor, labels: Labels, space: Space, price: float, ceiling: float) -> _Rows | None:
    """Every row with every label of its combination."""
    at = tuple(rows.columns[w] for w in factor.scope)
    key = np.ravel_multi_index(at, factor.table.shape)
    first = labels.starts[key]
    counts = labels.starts[key + 1] - first
    total = int(counts.sum())
    if total > MOST:
        return None
    row = np.repeat(np.arange(len(key)), counts)
    label = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts) + np.repeat(first, counts)
    cost, memory = labels.cost[label], labels.memory[label]
    bound = rows.bound[row] + (cost + price * memory - factor.table[at][row])
    transient = np.maximum(rows.transient[row], labels.transient[label])
    keep: Bools = bound - price * (space.limit - np.maximum(space.floor, transient)) < ceiling
    row, label = row[keep], label[keep]
    return _Rows(
        {w: column[row] for w, column in rows.columns.items()},
        rows.cost[row] + cost[keep],
        rows.memory[row] + memory[keep],
        transient[keep],
        bound[keep],
        {**{source: below[row] for source, below in rows.below.items()}, factor.source: label},
    )


def _front(key: Ints, rows: _Rows, floor: float, alike: float) -> Ints:
    """Places of the rows that no other one of the same combination and transient beats, by combination."""
    transient = np.maximum(rows.transient, floor)
    order = np.lexsort((rows.cost, rows.memory, transient, key))
    if not len(order):
        return order
    key, transient = key[order], transient[order]
    new = np.ones(len(order), dtype=bool)
    new[1:] = (key[1:] != key[:-1]) | (transient[1:] != transient[:-1])
    grade = np.floor((rows.cost[order] - rows.cost.min()) / (alike or 1.0))
    # by bytes each row must be of a lower grade than all before it; ranks of (group, grade), falling by group
    _, rank = np.unique(grade, return_inverse=True)
    falling = rank - np.cumsum(new) * (int(rank.max()) + 1)
    least = np.minimum.accumulate(falling)
    keep = new.copy()
    keep[1:] |= falling[1:] < least[:-1]
    kept: Ints = order[keep]
    return kept


def _traced(found: Eliminated, made: Sequence[Labels], space: Space, ceiling: float) -> tuple[int, ...] | None:
    """From the best fitting combination of the labels of all parts that hang together."""
    roots = [number for number, step in enumerate(found.steps) if not step.scope]
    best = _together([made[number] for number in roots], space, ceiling)
    if best is None:
        return None
    choice = [0] * len(found.steps)
    open_ = list(zip(roots, best, strict=True))
    while open_:
        number, label = open_.pop()
        labels = made[number]
        choice[found.steps[number].v] = int(labels.choice[label])
        open_ += [(source, int(below[label])) for source, below in labels.below]
    return tuple(choice)


def _together(roots: Sequence[Labels], space: Space, ceiling: float) -> tuple[int, ...] | None:
    """One label of each root, so that all together fit and cost least; None where that is not below the ceiling."""
    cost, memory, transient = np.zeros(1), np.zeros(1), np.full(1, space.floor)
    taken: list[Ints] = []
    for root in roots:
        shape = (len(cost), len(root.cost))
        row, label = (axis.ravel() for axis in np.indices(shape))
        sums = _Rows({}, cost[row] + root.cost[label], memory[row] + root.memory[label],
                     np.maximum(transient[row], root.transient[label]), np.zeros(0), {})  # fmt: skip
        kept = _front(np.zeros(len(row), dtype=np.int64), sums, space.floor, ALIKE * abs(ceiling))
        cost, memory, transient = sums.cost[kept], sums.memory[kept], sums.transient[kept]
        taken = [of[row[kept]] for of in taken] + [label[kept]]
    limit = space.limit + ROUNDING * abs(space.limit)
    fits = np.where((memory + transient <= limit) & (cost < ceiling), cost, np.inf)
    if not len(fits) or fits.min() == np.inf:
        return None
    best = int(np.argmin(fits))
    return tuple(int(of[best]) for of in taken)
