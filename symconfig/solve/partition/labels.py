"""What a price cannot settle: nodes are eliminated with every pair of cost and bytes that may still be the best.

For each combination of a step's scope a front of labels, none of which another one beats in cost and bytes. What the
exact bound of all the rest puts at or above a ceiling goes. An extension of the labels of constrained shortest paths
(Dumitrescu and Boland, Networks 2003) from paths to graphs of small treewidth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from symconfig.solve.partition.bound import priced, weighed
from symconfig.solve.partition.marginal import Eliminated, Factor, beliefs, eliminated, plan
from symconfig.solve.partition.problem import Array, Ints
from symconfig.solve.partition.reduce import Bools, Space

MOST = 500_000  # labels of one step, before it is given up: some 50 MB
TRIED = 10_000_000  # combinations of labels of one step, before it is given up: some 2 s
AT_ONCE = 500_000  # of them
ROUNDING = 1e-12  # relative: sums of the same bytes in another order
ALIKE = 5e-12  # of the ceiling: costs that differ by less are taken for the same


@dataclass(frozen=True, slots=True)
class Labels:
    """Labels of one step, sorted by the combination of its scope; those of one start at starts[combination].

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


@dataclass(frozen=True, slots=True)
class _Rule:
    """A bound of cost + price x bytes (price None: of bytes alone), which a part of a choice has to stay below."""

    space: Space
    price: float | None
    ceiling: float
    order: Eliminated

    def sum(self, cost: Array, memory: Array) -> Array:
        return memory if self.price is None else cost + self.price * memory

    def allows(self, bound: Array, transient: Array) -> Bools:
        """Tell what a rule allows. bound: of all held, and the largest transient known."""
        limit = self.space.limit + ROUNDING * abs(self.space.limit)
        room = limit - np.maximum(self.space.floor, transient)
        below: Bools = bound < room if self.price is None else bound - self.price * room < self.ceiling
        return below


def cheapest(space: Space, prices: Sequence[float | None], ceiling: float) -> Front:
    """Return the cheapest labels. prices: of bounds, None for that of bytes alone. They decide how many labels there
    are, not the answer.
    """
    steps = plan(space)[0]
    rules = [
        _Rule(space, price, ceiling, eliminated(weighed(space) if price is None else priced(space, price), steps))
        for price in prices
    ]
    alive: dict[int, _Alive] = {}
    for every in zip(*(beliefs(rule.order) for rule in rules), strict=True):
        number = every[0][0]
        alive[number] = _alive(space, rules, steps[number].v, [belief for _, belief in every])
    made: list[Labels] = []
    for number in range(len(steps)):
        labels = _step(space, rules, number, alive.pop(number), made)
        if labels is None:
            return Front(None, False)
        made.append(labels)
    return Front(_traced(rules[0].order, made, space, ceiling), True)


_Alive = tuple[tuple[Ints, ...], list[Array]]


def _alive(space: Space, rules: Sequence[_Rule], v: int, every: Sequence[Array]) -> _Alive:
    """Return combinations of a step's node and scope that all rules allow, and their bounds by each."""
    transient = space.transient[v].reshape((-1,) + (1,) * (every[0].ndim - 1))
    allowed = [rule.allows(belief, transient) for rule, belief in zip(rules, every, strict=True)]
    at = np.nonzero(np.logical_and.reduce(allowed))
    return at, [belief[at] for belief in every]


def _step(space: Space, rules: Sequence[_Rule], number: int, alive: _Alive, made: Sequence[Labels]) -> Labels | None:
    """Return the labels of a step. None: there would be too many."""
    step = rules[0].order.steps[number]
    places, bounds = alive
    columns = dict(zip((step.v, *step.scope), places, strict=True))
    rows = _Rows(columns, *_own(space, step.v, columns), space.transient[step.v][columns[step.v]], bounds, {})
    for place, factor in enumerate(rules[0].order.parts[number]):
        if factor.source >= 0:
            factors = [rule.order.parts[number][place] for rule in rules]
            joined = _joined(rows, factors, made[factor.source], rules)
            if joined is None:
                return None
            rows = joined
    sizes = tuple(space.sizes[w] for w in step.scope)
    key = np.zeros(len(rows.cost), dtype=np.int64)
    for w, size in zip(step.scope, sizes, strict=True):
        key = key * size + rows.columns[w]
    kept = _front(key, rows, space.floor, ALIKE * abs(rules[0].ceiling))
    starts = np.searchsorted(key[kept], np.arange(prod(sizes) + 1))
    below = tuple((source, labels[kept]) for source, labels in rows.below.items())
    return Labels(
        starts, rows.cost[kept], rows.memory[kept], rows.transient[kept], rows.columns[step.v][kept], below
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Rows:
    """Labels in the making: what the nodes of the step take, sums so far, and bounds of all together by each rule."""

    columns: dict[int, Ints]
    cost: Array
    memory: Array
    transient: Array
    bounds: list[Array]
    below: dict[int, Ints]


def _own(space: Space, v: int, columns: dict[int, Ints]) -> tuple[Array, Array]:
    """Return cost and bytes of the node and of its pairs with the nodes that are still there."""
    cost, memory = space.cost[v][columns[v]], space.memory[v][columns[v]]
    for p, w in space.around[v]:
        if w in columns:
            pair = space.pairs[p]
            at = (pair.rows[columns[pair.u]], pair.columns[columns[pair.v]])
            cost = cost + pair.cost[at]
            if pair.memory is not None:
                memory = memory + pair.memory[at]
    return cost, memory


def _joined(rows: _Rows, factors: Sequence[Factor], labels: Labels, rules: Sequence[_Rule]) -> _Rows | None:
    """Join every row with every label of its combination, as far as the rules allow. None: there would be too many.

    factors: the tables of the labels' step by each rule.
    """
    at = tuple(rows.columns[w] for w in factors[0].scope)
    key = np.ravel_multi_index(at, factors[0].table.shape)
    counts = labels.starts[key + 1] - labels.starts[key]
    ends = np.cumsum(counts)
    if len(ends) and ends[-1] > TRIED:
        return None
    spare = [bound - factor.table[at] for bound, factor in zip(rows.bounds, factors, strict=True)]
    parts: list[tuple[Ints, Ints, list[Array]]] = []
    first = joined = 0
    while first < len(counts):
        past = max(first + 1, int(np.searchsorted(ends, ends[first] - counts[first] + AT_ONCE, side="right")))
        row = np.repeat(np.arange(first, past), counts[first:past])
        label = np.arange(len(row)) - (ends - counts)[row] + (ends - counts)[first] + labels.starts[key[row]]
        parts.append(_allowed(rows, labels, rules, spare, row, label))
        first, joined = past, joined + len(parts[-1][0])
        if joined > MOST:
            return None
    if not parts:
        return rows
    row, label = (np.concatenate([part[n] for part in parts]) for n in (0, 1))
    return _Rows(
        {w: column[row] for w, column in rows.columns.items()},
        rows.cost[row] + labels.cost[label],
        rows.memory[row] + labels.memory[label],
        np.maximum(rows.transient[row], labels.transient[label]),
        [np.concatenate([part[2][n] for part in parts]) for n in range(len(rules))],
        {**{source: below[row] for source, below in rows.below.items()}, factors[0].source: label},
    )


def _allowed(
    rows: _Rows, labels: Labels, rules: Sequence[_Rule], spare: Sequence[Array], row: Ints, label: Ints
) -> tuple[Ints, Ints, list[Array]]:
    """Return the rows and labels, put together, that all rules allow, and their bounds."""
    cost, memory = labels.cost[label], labels.memory[label]
    transient = np.maximum(rows.transient[row], labels.transient[label])
    bounds = [of[row] + rule.sum(cost, memory) for rule, of in zip(rules, spare, strict=True)]
    keep = np.logical_and.reduce([rule.allows(b, transient) for rule, b in zip(rules, bounds, strict=True)])
    return row[keep], label[keep], [bound[keep] for bound in bounds]


def _front(key: Ints, rows: _Rows, floor: float, alike: float) -> Ints:
    """Return the places of the rows that no other one of the same combination and transient beats, by combination."""
    transient = np.maximum(rows.transient, floor)
    order = np.lexsort((rows.cost, rows.memory, transient, key))
    if not len(order):
        return order
    key, transient = key[order], transient[order]
    new = np.ones(len(order), dtype=bool)
    new[1:] = (key[1:] != key[:-1]) | (transient[1:] != transient[:-1])
    grade = rows.cost[order] - rows.cost.min()
    if 0 < alike < np.inf:
        grade = np.floor(grade / alike)
    # by bytes each row must be of a lower grade than all before it; ranks of (group, grade), falling by group
    _, rank = np.unique(grade, return_inverse=True)
    falling = rank - np.cumsum(new) * (int(rank.max()) + 1)
    least = np.minimum.accumulate(falling)
    keep = new.copy()
    keep[1:] |= falling[1:] < least[:-1]
    kept: Ints = order[keep]
    return kept


def _traced(eliminated: Eliminated, made: Sequence[Labels], space: Space, ceiling: float) -> tuple[int, ...] | None:
    """Trace a choice from the best fitting combination of the labels of all parts that hang together."""
    roots = [number for number, step in enumerate(eliminated.steps) if not step.scope]
    best = _together([made[number] for number in roots], space, ceiling)
    if best is None:
        return None
    choice: dict[int, int] = {}
    open_ = list(zip(roots, best, strict=True))
    while open_:
        number, label = open_.pop()
        labels = made[number]
        choice[eliminated.steps[number].v] = int(labels.choice[label])
        open_ += [(source, int(below[label])) for source, below in labels.below]
    return tuple(choice[v] for v in range(len(eliminated.steps)))


def _together(roots: Sequence[Labels], space: Space, ceiling: float) -> tuple[int, ...] | None:
    """Return one label of each root, so that all together fit and cost least; None where that is not below the
    ceiling.
    """
    cost, memory, transient = np.zeros(1), np.zeros(1), np.full(1, space.floor)
    taken: list[Ints] = []
    for root in roots:
        shape = (len(cost), len(root.cost))
        row, label = (axis.ravel() for axis in np.indices(shape))
        sums = _Rows({}, cost[row] + root.cost[label], memory[row] + root.memory[label],
                     np.maximum(transient[row], root.transient[label]), [], {})  # fmt: skip
        kept = _front(np.zeros(len(row), dtype=np.int64), sums, space.floor, ALIKE * abs(ceiling))
        cost, memory, transient = sums.cost[kept], sums.memory[kept], sums.transient[kept]
        taken = [of[row[kept]] for of in taken] + [label[kept]]
    limit = space.limit + ROUNDING * abs(space.limit)
    fits = np.where((memory + transient <= limit) & (cost < ceiling), cost, np.inf)
    if not len(fits) or fits.min() == np.inf:
        return None
    best = int(np.argmin(fits))
    return tuple(int(of[best]) for of in taken)
