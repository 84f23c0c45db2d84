"""The adaptive partitioner: the mesh is cut one axis at a time, as the source paper's is.

At each cut every node takes the option that costs least together with what its neighbours take, re-partition included,
memory at a price of 1/gamma; what is cut already stays. Then, axis by axis, everything may choose once more. gamma
adapts until memory fits. The choices of one cut are few, so that a cut is solved exactly, in time linear in the nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from symconfig.cost.partition.costs import Costs, LinkCost, NodeCost
from symconfig.cost.partition.work import Rows
from symconfig.descriptor.mesh import Axis
from symconfig.solve.partition.assemble import assemble
from symconfig.solve.partition.eliminate import Factor, minimum
from symconfig.solve.partition.problem import Array
from symconfig.solve.partition.rows import allowed

Row = tuple[int, ...]
Strategy = tuple[Row, ...]  # of every node
_ROUNDS = 4  # over all axes, after the first cuts, at most
_DOUBLINGS, _HALVINGS = 12, 8  # of the logarithm of the price
_ANY = 40  # a price at which nothing counts but memory
_CLOSE = 1e-3  # of the cost without a limit: no price gains more


@dataclass(frozen=True, slots=True)
class Found:
    """memory: bytes at the peak. gamma: at which it was found. cuts: how many were solved until then."""

    rows: Strategy
    cost: float
    memory: float
    gamma: float
    cuts: int


@dataclass(slots=True)
class Cutter:
    """Costs that were worked out are kept: they do not depend on the price, and most neighbours of a cut stay."""

    costs: Costs
    axes: tuple[Axis, ...]
    gamma: float | None  # given, or to adapt
    nodes: dict[tuple[int, int, Row], tuple[Rows, NodeCost]] = field(default_factory=dict)
    links: dict[tuple[int, int, Row, Row], LinkCost] = field(default_factory=dict)
    cuts: int = 0

    def node(self, index: int, axis: int, row: Row) -> tuple[Rows, NodeCost]:
        """The rows of a node that differ from the given one in this axis only, and their costs."""
        key = (index, axis, (*row[:axis], 0, *row[axis + 1 :]))
        if key not in self.nodes:
            node = self.costs.net.nodes[index]
            some = np.tile(np.array(row, dtype=np.int64), (len(node.options), 1))
            some[:, axis] = np.arange(len(node.options))
            if not self.costs.flat:
                some = some[[not node.options[option].zero for option in some[:, axis]]]
            some = some[allowed(self.costs.net, node, some, self.axes)]
            self.nodes[key] = some, self.costs.node(index, some)
        return self.nodes[key]

    def link(self, index: int, axis: int, given: Row, taken: Row) -> LinkCost:
        link = self.costs.net.links[index]
        key = (index, axis, (*given[:axis], 0, *given[axis + 1 :]), (*taken[:axis], 0, *taken[axis + 1 :]))
        if key not in self.links:
            pair = (self.node(link.producer, axis, given)[0], self.node(link.consumer, axis, taken)[0])
            self.links[key] = self.costs.link(index, *pair)
        return self.links[key]

    def cut(self, axis: int, rows: Strategy, price: float) -> Strategy:
        """Every node's best row among those that differ in this axis."""
        self.cuts += 1
        choices: list[Rows] = []
        factors: list[Factor] = []
        for index, row in enumerate(rows):
            some, costs = self.node(index, axis, row)
            choices.append(some)
            factors.append(((index,), costs.cost + price * (costs.memory if self.costs.timed else costs.relative)))
        for index, link in enumerate(self.costs.net.links):
            u, v = link.producer, link.consumer
            pair = self.link(index, axis, rows[u], rows[v])
            table = pair.cost + price * pair.memory if self.costs.timed and price else pair.cost
            factors.append(_factor(u, v, table))
        sizes = [len(some) for some in choices]
        chosen = minimum(sizes, factors) or _in_turn(factors, choices, rows)
        return tuple(tuple(some[c].tolist()) for some, c in zip(choices, chosen, strict=True))

    def found(self, rows: Strategy, price: float) -> Found:
        gamma = self.gamma or (1.0 / price if price else float("inf"))
        every = [np.array([row], dtype=np.int64) for row in rows]
        whole, at = assemble(self.costs, every, float("inf"), gamma), (0,) * len(rows)
        return Found(rows, whole.cost(at), whole.memory(at), gamma, self.cuts)

    def partitioned(self, price: float, order: Sequence[int], start: Strategy | None = None) -> Found:
        """start: a partition to go on from; without one the whole mesh is cut first."""
        rows = start or tuple((0,) * len(self.axes) for _ in self.costs.net.nodes)
        settled, cuts = 0, list(order) * (_ROUNDS + (start is None))
        for axis in cuts:
            before, rows = rows, self.cut(axis, rows, price)
            settled = settled + 1 if rows == before else 0
            if settled == len(order):
                break
        return self.found(rows, price)


def adaptive(
    costs: Costs,
    axes: tuple[Axis, ...],
    memory_limit: float,
    gamma: float | None = None,
    ceiling: float = float("inf"),
) -> Found | None:
    """The cheapest partition that was found to fit; None where none was.

    Cuts go from the outer axes to the inner ones, and from the inner to the outer. The price of memory starts at
    nothing; where the cheapest does not fit, the lowest price at which it does is searched for. gamma: a fixed price of
    the source paper's Cost_mem instead, for the objective symtensor. ceiling: dearer ones are not wanted.
    """
    cutter = Cutter(costs, axes, gamma)
    orders = (tuple(reversed(range(len(axes)))), tuple(range(len(axes))))
    first = 1.0 / gamma if gamma else 0.0
    free = [cutter.partitioned(first, order) for order in orders]
    best: Found | None = None
    for found, order in sorted(zip(free, orders, strict=True), key=lambda pair: pair[0].cost):
        if found.cost >= (best.cost if best is not None else ceiling):
            continue  # memory can only make it dearer
        fits = found if found.memory <= memory_limit else _fitted(cutter, order, found, memory_limit)
        if fits is not None and fits.cost < (best.cost if best is not None else ceiling):
            best = fits
    return best


def _fitted(cutter: Cutter, order: Sequence[int], free: Found, limit: float) -> Found | None:
    """gamma adapts: the price goes up in large steps until memory fits, then its logarithm is halved."""
    unit = free.cost / max(free.memory, 1.0)
    lightest = cutter.partitioned(unit * 2.0**_ANY, order)
    if lightest.memory > limit:
        return None
    low, high, best = 0.0, unit / 2.0**10, lightest
    for _ in range(_DOUBLINGS):
        found = cutter.partitioned(high, order, free.rows)
        if found.memory <= limit:
            best = found if found.cost < best.cost else best
            break
        low, high = high, high * 8.0
    for _ in range(_HALVINGS):
        if best.cost <= free.cost * (1 + _CLOSE):
            break
        middle = (low * high) ** 0.5 if low else high / 8.0
        found = cutter.partitioned(middle, order, best.rows)
        if found.memory > limit:
            low = middle
            continue
        high = middle
        if found.cost < best.cost:
            best = found
    return best


def _factor(u: int, v: int, table: Array) -> Factor:
    if u == v:
        return ((u,), np.diagonal(table))
    return ((u, v), table) if u < v else ((v, u), table.T)


def _in_turn(factors: Sequence[Factor], choices: Sequence[Rows], rows: Strategy) -> tuple[int, ...]:
    """Where a network is too tangled for the exact way: the heaviest nodes choose first, until none would change."""
    around: list[list[Factor]] = [[] for _ in rows]
    for factor in factors:
        for v in factor[0]:
            around[v].append(factor)
    chosen = [int(np.flatnonzero((some == row).all(axis=1))[0]) for some, row in zip(choices, rows, strict=True)]
    alone = [next(table for nodes, table in mine if len(nodes) == 1) for mine in around]
    for _ in rows:
        changed = False
        for v in sorted(range(len(rows)), key=lambda v: (-float(np.max(alone[v])), v)):
            score: Array = np.zeros(len(choices[v]))
            for nodes, table in around[v]:
                at = tuple(slice(None) if w == v else chosen[w] for w in nodes)
                score = score + table[at]
            best = int(np.argmin(score))
            if score[best] < score[chosen[v]]:
                chosen[v], changed = best, True
        if not changed:
            break
    return tuple(chosen)
