"""The adaptive partitioner: the mesh is cut one axis at a time, as the source paper's is.

At each cut every node takes the option that costs least together with what its neighbours take, re-partition included,
memory at a price of 1/gamma; what is cut already stays. Then, axis by axis, everything may choose once more. gamma
adapts until memory fits. The choices of one cut are few, so that a cut is solved exactly, in time linear in the nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import NamedTuple

import numpy as np

from symconfig.cost.partition.costs import Costs, LinkCost, NodeCost
from symconfig.cost.partition.links import BASE, Numbers
from symconfig.cost.partition.work import Rows, counted
from symconfig.descriptor.mesh import Axis
from symconfig.graph.operator import Work
from symconfig.solve.partition.problem import Array
from symconfig.solve.partition.rows import all_rows, allowed, every_row, shared_out

_ROUNDS = 4  # over all axes, after the first cuts, at most
_PRICES = 16
_ANY = 20  # log2 of a price at which little counts but memory; what is equal in it is chosen by its cost still
_CLOSE = 1e-3  # of the cost without a limit: no price gains more

Row = tuple[int, ...]
Strategy = tuple[Row, ...]  # of every node


@dataclass(frozen=True, slots=True)
class Division:
    """A strategy with its cost. memory: bytes at the peak. gamma: 1 / the price of memory that it was found at.

    moved: the cost without the price of memory. weight: the priced amount, bytes or the source paper's Cost_mem.
    """

    rows: Strategy
    cost: float
    memory: float
    gamma: float
    moved: float
    weight: float


class Adapted(NamedTuple):
    """best: the cheapest partition found that fits, or None. tight: whether memory ruled out a cheaper one."""

    best: Division | None
    tight: bool


class Lines:
    """The cost tables of a network on some axes: all rows of a node in one, all pairs of layouts of a link in another
    (`symconfig.cost.partition.links`), each with a dimension for every axis, so that a cut only reads.

    nodes: by row, [options, options, …]: an infinite cost forbids a row. passes: forward and backward seconds of nodes
    that read a parameter. parts: for the objective symtensor the parts that a row splits a node's products into.
    pairs: of every link its tables by pair of layouts, as (digits of the pairs of options, values [BASE, BASE, …]).
    """

    def __init__(self, costs: Costs, axes: tuple[Axis, ...]) -> None:
        """Compute the tables of all nodes and links. Raise InputError as `all_rows`."""
        self.costs, self.axes = costs, range(len(axes))
        self.nodes, self.passes, self.parts = list[NodeCost](), dict[int, list[Array]](), dict[int, Array]()
        self._known: dict[object, LinkCost] = {}
        nodes = costs.net.nodes
        readers = {link.consumer for link in costs.net.links if nodes[link.producer].parameter is not None}
        for index, node in enumerate(nodes):
            rows, shape = all_rows(node, axes), (len(node.options),) * len(axes)
            own, able = costs.node(index, rows), allowed(costs.net, node, rows, axes)
            if not costs.flat:
                able &= ~np.array([option.zero > 0 for option in node.options])[rows].any(axis=1)
            own = own._replace(cost=np.where(able, own.cost, np.inf))
            self.nodes.append(NodeCost(*(values.reshape(shape, order="F") for values in own)))
            if index in readers:
                passes = costs.passes(node, rows)
                self.passes[index] = [of.reshape(shape, order="F") for of in (passes.forward, passes.backward)]
            if not costs.timed and node.operator and node.operator.work is not Work.MEMORY and not node.fixed:
                splits = np.array([option.split is not None for option in node.options])
                self.parts[index] = counted(splits, rows, costs.rates).reshape(shape, order="F")
        cube = (BASE,) * len(axes)
        every = [costs.tables(number) for number in range(len(costs.net.links))]
        self.pairs = [[(pairs, values.reshape(cube, order="F")) for pairs, values in some] for some in every]

    def along(self, axis: int | None, rows: Strategy) -> tuple[list[NodeCost], list[LinkCost]]:
        """Return costs and bytes of every option of every node on this axis, and of every link's pairs of such options.

        Of a node [options], of a link [producer's options, consumer's options]. rows: the options on the other axes.
        axis: None for the costs of the strategy itself, without dimensions. With the objective symtensor, which has no
        computation cost, options that split a node's products into fewer parts than another one cost infinitely much.
        """
        nodes = []
        for index, row in enumerate(rows):
            at = self._at(row, axis)
            own = NodeCost(*(values[at] for values in self.nodes[index]))
            if axis is not None and index in self.parts:
                parts = np.where(np.isfinite(own.cost), self.parts[index][at], 0.0)
                own = own._replace(cost=np.where(parts == parts.max(), own.cost, np.inf))
            nodes.append(own)
        ends = [(rows[link.producer], rows[link.consumer]) for link in self.costs.net.links]
        return nodes, [self._link(number, axis, *both) for number, both in enumerate(ends)]

    def _at(self, row: Row, axis: int | None) -> tuple[int | slice, ...]:
        return tuple(slice(None) if other == axis else row[other] for other in self.axes)

    def _link(self, number: int, axis: int | None, given: Row, taken: Row) -> LinkCost:
        """Return a link's cost and bytes for the pairs of options on the axis (None: for this pair of rows). Cached."""
        first, last = (len(given), 0) if axis is None else (axis, axis + 1)
        key = number, axis, given[:first], given[last:], taken[:first], taken[last:]
        if (known := self._known.get(key)) is not None:
            return known

        def read(digits: Numbers, values: Array) -> Array:
            pair: Array = values[tuple(digits if a == axis else digits[given[a], taken[a]] for a in self.axes)]
            return pair

        consumer, overlap = self.costs.net.links[number].consumer, self.costs.framework.hide.data
        work = (overlap * of[self._at(taken, axis)] for of in self.passes.get(consumer, ()))
        result = self.costs.combined(number, [read(*one) for one in self.pairs[number]], *work)
        self._known[key] = result
        return result


@dataclass(slots=True)
class Cutter:
    """A network and its costs on some axes. Raises InputError where its nodes have too many rows."""

    costs: Costs
    axes: tuple[Axis, ...]
    by_bytes: bool  # the price is on bytes; else on the source paper's Cost_mem, of which it is 1 / gamma
    scopes: tuple[Scope, ...] = ()
    steps: tuple[Step, ...] | None = None
    lines: Lines = field(init=False)
    fixed: dict[int, Rows] = field(default_factory=dict)  # of pinned nodes, the rows that satisfy their pins

    def __post_init__(self) -> None:
        """Set scopes, the rows of pinned nodes, the steps of elimination (None: too dense) and the tables of costs.

        Raise InputError if a node has too many rows.
        """
        nodes, links = self.costs.net.nodes, self.costs.net.links
        pairs = (tuple(sorted({link.producer, link.consumer})) for link in links)
        self.scopes = (*((index,) for index in range(len(nodes))), *pairs)
        for index, node in enumerate(nodes):
            if node.fixed:
                self.fixed[index] = shared_out(self.costs, node, every_row(node, self.costs.net, self.axes))
        self.steps = plan(self.scopes, [len(node.options) for node in nodes])
        self.lines = Lines(self.costs, self.axes)

    def cut(self, axis: int, rows: Strategy, price: float, open_: Sequence[int] = ()) -> Strategy:
        """Return the strategy that is cheapest among those that differ from `rows` in this axis only, links included.

        Exact by variable elimination; a local search from `rows` if the net is too dense for it (steps is None).

        Args:
            price: of a byte held (by_bytes), else of a unit of Cost_mem.
            open_: axes cut later; a pinned node takes only options that satisfy its pins for some choice on these axes.
        """
        nodes, links = self.lines.along(axis, rows)
        tables = [node.cost + price * (node.memory if self.by_bytes else node.relative) for node in nodes]
        for link, pair in zip(self.costs.net.links, links, strict=True):
            table = pair.cost + price * pair.memory if self.by_bytes and price else pair.cost
            if link.producer == link.consumer:  # of a layer that is followed by itself
                table = table.diagonal()
            tables.append(table if link.producer < link.consumer else table.T)
        others = [other for other in range(len(self.axes)) if other != axis and other not in open_]
        for index, every in self.fixed.items():
            able = every[(every[:, others] == np.array(rows[index])[others]).all(axis=1), axis]
            tables[index] = np.where(np.isin(np.arange(len(tables[index])), able), tables[index], np.inf)
        now = [row[axis] for row in rows]
        chosen = least(self.steps, tables) if self.steps is not None else _local_search(self.scopes, tables, now)
        return tuple((*row[:axis], int(c), *row[axis + 1 :]) for row, c in zip(rows, chosen, strict=True))

    def sums(self, rows: Strategy) -> tuple[float, float, float, float]:
        """Return a strategy's cost, bytes held, largest transient in bytes, and the source paper's Cost_mem."""
        nodes, links = self.lines.along(None, rows)
        moved = sum(float(node.cost) for node in nodes) + sum(float(link.cost) for link in links)
        held = sum(float(node.memory) for node in nodes) + sum(float(link.memory) for link in links)
        transient = max((float(node.transient) for node in nodes), default=0.0)
        return moved, held, transient, sum(float(node.relative) for node in nodes)

    def measured(self, rows: Strategy, price: float) -> Division:
        """Return a strategy with its cost and memory (bytes at the peak), both infinite if a node violates its pins.

        price: of memory, with which it was found; part of the cost if it is of Cost_mem.
        """
        moved, held, transient, relative = self.sums(rows)
        memory = held + transient
        if not all((every == rows[index]).all(axis=1).any() for index, every in self.fixed.items()):
            moved = memory = np.inf
        gamma = 1.0 / price if price and (self.costs.timed or not self.by_bytes) else self.costs.gamma
        weight = memory if self.by_bytes else relative
        cost = moved if self.by_bytes else moved + weight / gamma
        return Division(rows=rows, cost=cost, memory=memory, gamma=gamma, moved=moved, weight=weight)

    def partitioned(self, price: float, order: Sequence[int], start: Strategy | None = None) -> Division:
        """Return the partition found by `cut` axis by axis in the given order, repeated until no axis changes a row.

        At most _ROUNDS rounds over all axes. start: a strategy to improve; None: from unsplit rows, with one more
        round, in the first of which pins may still be satisfied by later axes. price: see `cut`.
        """
        rows = start or tuple((0,) * len(self.axes) for _ in self.costs.net.nodes)
        settled = 0
        rounds = list(order) * (_ROUNDS + (start is None))
        for number, axis in enumerate(rounds, 1):
            open_ = order[number:] if start is None else ()
            before, rows = rows, self.cut(axis, rows, price, open_)
            settled = settled + 1 if rows == before else 0
            if settled == len(order):
                break
        return self.measured(rows, price)


def adaptive(costs: Costs, axes: tuple[Axis, ...], memory_limit: float, ceiling: float = float("inf")) -> Adapted:
    """Return the cheapest partition found that fits the memory limit (bytes), or None, and whether that one is `tight`.

    It costs less than `ceiling`. tight: a cheaper one violated the limit or the pins. Axes are cut outermost first,
    then again innermost first, unless the first order already costs `ceiling` or more. Memory is free at first; if the
    result does not fit, prices are searched (`_within_limit`): of bytes, but with the objective symtensor and without a
    gamma of Cost_mem, and only if none of these fits of bytes. Raise InputError if a node has too many rows.
    """
    cutter = Cutter(costs, axes, by_bytes=costs.timed or costs.gamma < np.inf)
    orders = (tuple(reversed(range(len(axes)))), tuple(range(len(axes))))
    best: Division | None = None
    tight = False
    for order in orders:
        cut = cutter.partitioned(0.0, order)
        upper = best.cost if best is not None else ceiling
        if cut.cost == np.inf:  # no strategy that was met splits what is fixed as it is fixed
            tight = True
            continue
        if cut.cost >= upper:
            break  # memory can only make it dearer, and the other way round is hardly cheaper
        tight = tight or cut.memory > memory_limit
        fits = cut if cut.memory <= memory_limit else _within_limit(cutter, order, cut, memory_limit)
        if fits is None and not cutter.by_bytes:  # d_i / s_i is no measure of bytes
            by_bytes = replace(cutter, by_bytes=True)
            fits = _within_limit(by_bytes, order, replace(cut, weight=cut.memory), memory_limit)
        if fits is not None and fits.cost < upper:
            best = fits
    return Adapted(best, tight)


def _within_limit(cutter: Cutter, order: Sequence[int], free: Division, limit: float) -> Division | None:
    """Return the cheapest partition found that fits the limit (bytes), or None if not even the leanest does.

    The leanest is that at a price of memory so high that little else counts. Then at most _PRICES prices, each the one
    at which the last partition that fits and the last that does not would cost the same; stops if the result repeats
    one of these or is nearly as cheap as `free`, the partition without a price.
    """
    fits = cutter.partitioned(free.moved / max(free.weight, 1.0) * 2.0**_ANY, order)
    if fits.memory > limit:
        return None
    best = fits
    over = free
    for _ in range(_PRICES):
        if best.cost <= free.cost * (1 + _CLOSE) or fits.weight >= over.weight or fits.moved <= over.moved:
            break
        cut = cutter.partitioned((fits.moved - over.moved) / (over.weight - fits.weight), order, fits.rows)
        if cut.rows in (fits.rows, over.rows):
            break
        if cut.memory > limit:
            over = cut
            continue
        fits = cut
        if fits.moved < best.moved:
            best = fits
    return best


def _local_search(scopes: Sequence[Scope], tables: Sequence[Array], now: Sequence[int]) -> tuple[int, ...]:
    """Return a choice of every node by coordinate descent from the choices `now`, on the sum of all tables.

    It ends at a local minimum, or after as many rounds as nodes. scopes: the one or two nodes of each table.
    """
    chosen = list(now)
    for _ in now:
        before = list(chosen)
        for v in range(len(now)):
            mine = ((nodes, table) for nodes, table in zip(scopes, tables, strict=True) if v in nodes)
            each = (table[tuple(slice(None) if w == v else chosen[w] for w in nodes)] for nodes, table in mine)
            score = np.sum(list(each), axis=0)
            chosen[v] = int(np.argmin(score)) if score.min() < score[chosen[v]] else chosen[v]
        if chosen == before:
            break
    return tuple(chosen)


Scope = tuple[int, ...]  # nodes, one for each axis of a table, in rising order
_CELLS = 4_000_000  # of one table; layers with residual streams need a few choices cubed


@dataclass(frozen=True, slots=True)
class Step:
    """Elimination of a node. scope: its neighbours at that time. tables: numbers of the tables with the node.

    Each has the transpose order and the index that align its axes with (*scope, node).
    """

    node: int
    scope: Scope
    tables: tuple[tuple[int, tuple[int, ...], tuple[slice | None, ...]], ...]


def plan(scopes: Sequence[Scope], sizes: Sequence[int]) -> tuple[Step, ...] | None:
    """Return the steps of a variable elimination, one per node, or None if a table would exceed _CELLS entries.

    The node whose neighbours have the fewest joint choices goes first (then the lowest index). Each step adds a table
    over its scope, numbered after those before. scopes: nodes of every table. sizes: upper bound on the choices of
    every node.
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
        steps.append(Step(v, scope, tuple((n, *_aligned(every[n], (*scope, v))) for n in gone)))
        for w in scope:
            of[w] = (of[w] - set(gone)) | {len(every)}
            around[w] = (around[w] | set(scope)) - {v, w}
        every.append(scope)
        left.remove(v)
    return tuple(steps)


def _aligned(scope: Scope, axes: Scope) -> tuple[tuple[int, ...], tuple[slice | None, ...]]:
    order = tuple(sorted(range(len(scope)), key=lambda axis: axes.index(scope[axis])))
    return order, tuple(slice(None) if w in scope else None for w in axes)


def least(steps: Sequence[Step], tables: Sequence[Array]) -> tuple[int, ...]:
    """Return the choice of every node that minimizes the sum of all tables, by variable elimination.

    steps: from `plan` for these tables, which are not changed. Of equally cheap choices of a node the lowest is taken.
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
