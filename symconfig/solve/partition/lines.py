"""Costs along one axis of a mesh, of all nodes and links of a network at once: what each cut of the mesh weighs.

All rows of a node lie in one table, and all pairs of layouts of a link in another (`symconfig.cost.partition.links`),
so that a cut only reads: no operator is looked at by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from symconfig.cost.partition.costs import Costs
from symconfig.cost.partition.links import BASE, Activation, Weight, every, exposed_cost, held_bytes, moved_cost
from symconfig.cost.partition.work import Rows, counted
from symconfig.descriptor.mesh import Axis
from symconfig.graph.operator import Work
from symconfig.graph.program.net import Net, Node
from symconfig.solve.partition.problem import Array
from symconfig.solve.partition.rows import all_rows, allowed

Ints = NDArray[np.int64]


class Line(NamedTuple):
    """[options of all nodes], one after the other, and [options x options of all links]; or [nodes] and [links] of one
    strategy. relative: see NodeCost.

    An infinite cost forbids an option.
    """

    cost: Array
    memory: Array
    transient: Array
    relative: Array
    link_cost: Array
    link_memory: Array


class Lines:
    """The tables of a network on some axes."""

    def __init__(self, costs: Costs, axes: tuple[Axis, ...]) -> None:
        """Compute the tables of all nodes and links. Raise InputError as `all_rows`."""
        self.costs, net, table = costs, costs.net, every(costs.rates)
        options = np.array([len(node.options) for node in net.nodes], dtype=np.int64)
        self.rows = _Rows(costs, axes, options)
        self.choices = [np.arange(many) for many in options.tolist()]
        rules = [(number, costs.rule(number)) for number in range(len(net.links))]
        moved = [(number, rule) for number, rule in rules if isinstance(rule, Activation)]
        self.moved = [
            _Lookup(net, [(n, rule.there, rule.cost(table, False)) for n, rule in moved], len(axes)),
            _Lookup(net, [(n, rule.back, rule.cost(table, True)) for n, rule in moved], len(axes)),
        ]
        self.kept = _Lookup(net, [(n, rule.there, held_bytes(table, rule.kept)) for n, rule in moved], len(axes))
        weights = [(number, rule) for number, rule in rules if isinstance(rule, Weight)]
        self.weights = [
            _Lookup(
                net,
                [(n, rule.transfers[way][0], moved_cost(every(rates), rule.transfers[way][1])) for n, rule in weights],
                len(axes),
            )
            for way, rates in enumerate(costs.rates_of_weights)
        ]
        self.regathers, self.trainable = (
            np.array([getattr(rule, name) for _, rule in weights], dtype=bool) for name in ("regathers", "trainable")
        )
        self.turns, self.times = (
            np.array([getattr(rule, name) for _, rule in weights], dtype=np.float64) for name in ("turns", "times")
        )
        # of each pair of a weight's link: the place of the consumer's option among those of all nodes
        first, consumer = self.weights[0], self.weights[0].ends[:, 1]
        option = (np.arange(len(first.flat)) - first.first[first.owner]) % first.width[first.owner]
        self.consumer, self.taken = consumer, self.rows.starts[consumer][first.owner] + option
        sizes = [int(options[link.producer] * options[link.consumer]) for link in net.links]
        self.shapes = [(int(options[link.producer]), int(options[link.consumer])) for link in net.links]
        ends, starts = (list(accumulate(some, initial=0)) for some in (sizes, options.tolist()))
        self.of_link, self.of_node = ([slice(*both) for both in pairwise(some)] for some in (ends, starts))
        # where the entries of activations and then of weights go, so that links are in their own order
        self.order = np.array([number for number, _ in (*moved, *weights)], dtype=np.int64)
        self.place = np.concatenate([np.arange(ends[n], ends[n + 1]) for n in self.order] or [np.zeros(0, np.int64)])

    def of_nodes(self, values: Array) -> list[Array]:
        """Split an array over the options of all nodes into one array per node."""
        return [values[part] for part in self.of_node]

    def of_links(self, values: Array) -> list[Array]:
        """Split an array over the option pairs of all links into tables: [producer's options, consumer's options]."""
        return [values[part].reshape(shape) for part, shape in zip(self.of_link, self.shapes, strict=True)]

    def along(self, axis: int, rows: Rows) -> Line:
        """Return costs and bytes of every option of every node on this axis, and of every link's pairs of such options.

        rows: [nodes, axes], the options on the other axes. An infinite cost: not allowed.
        """
        at, own = self.rows.along(axis, rows), self.rows
        cost, memory = self._link_costs(rows, axis, at[self.taken], self.weights[0].owner, self.place)
        return Line(own.costs(at), own.memory[at], own.transient[at], own.relative[at], cost, memory)

    def at(self, rows: Rows) -> Line:
        """Return the costs of one strategy: [nodes] and [links]. rows: [nodes, axes]."""
        at, own = self.rows.at(rows), self.rows
        cost, memory = self._link_costs(rows, None, at[self.consumer], slice(None), self.order)
        return Line(own.cost[at], own.memory[at], own.transient[at], own.relative[at], cost, memory)

    def _link_costs(
        self, rows: Rows, axis: int | None, consumers: Ints, owner: Any, place: Ints
    ) -> tuple[Array, Array]:
        """Return cost and bytes kept of all links, each entry at its position in `place` (activations, then weights).

        axis: along which all option pairs are read, or None for one strategy's pairs. consumers: for each of a weight's
        entries the consumer's row in the nodes' tables, whose work overlaps the transfers. owner: the weight link of
        each such entry. Weights keep no memory.
        """
        moved, kept = sum(lookup.read(rows, axis) for lookup in self.moved), self.kept.read(rows, axis)
        exposed = exposed_cost(
            [lookup.read(rows, axis) for lookup in self.weights],
            *(self.costs.framework.hide.data * work[consumers] for work in (self.rows.forward, self.rows.backward)),
            regathers=self.regathers[owner],
            trainable=self.trainable[owner],
            turns=self.turns[owner],
        )
        cost, memory = np.empty(len(place)), np.zeros(len(place))
        cost[place] = np.concatenate([moved, self.times[owner] * exposed])
        memory[place[: len(kept)]] = kept
        return cost, memory


class _Lookup:
    """A value of every pair of rows of some links, read from each link's table by the number of its pair of layouts.

    tables: (link, digits of its pairs of options [options, options], values by number), of each link.
    """

    def __init__(self, net: Net, tables: Sequence[tuple[int, Ints, Array]], axes: int) -> None:
        """Concatenate the tables. A table of values that several links share (the same object) is held once."""
        none = np.zeros(0, np.int64)
        links = [net.links[number] for number, _, _ in tables]
        self.ends = np.array([(link.producer, link.consumer) for link in links], dtype=np.int64).reshape(-1, 2)
        self.powers = BASE ** np.arange(axes, dtype=np.int64)
        self.flat = np.concatenate([digits.ravel() for _, digits, _ in tables] or [none])
        sizes = [digits.size for _, digits, _ in tables]
        self.owner = np.repeat(np.arange(len(tables)), sizes)
        self.first = np.array(list(accumulate(sizes, initial=0))[:-1], dtype=np.int64)
        self.width = np.array([digits.shape[1] for _, digits, _ in tables], dtype=np.int64)
        known = {id(values): values for _, _, values in tables}  # each once
        starts = dict(zip(known, accumulate((len(values) for values in known.values()), initial=0), strict=False))
        self.values: Array = np.concatenate(list(known.values()) or [np.zeros(0)])
        self.start = np.array([starts[id(values)] for _, _, values in tables], dtype=np.int64)

    def read(self, rows: Rows, axis: int | None) -> Array:
        """Return the value of each link under one strategy, [links], or along an axis, [pairs of options of all links].

        rows: the strategy, [nodes, axes]. axis: all pairs of options on it are read, with the other axes as in `rows`.
        """
        given, taken = rows[self.ends[:, 0]], rows[self.ends[:, 1]]
        here = self.flat[self.first[:, None] + given * self.width[:, None] + taken]  # [links, axes]
        numbers = self.start + (here * self.powers).sum(axis=1)
        if axis is not None:
            power = self.powers[axis]
            numbers = (numbers - here[:, axis] * power)[self.owner] + self.flat * power
        values: Array = self.values[numbers]
        return values


class _Rows:
    """Tables of all rows of all nodes, one node after the other; a row's number has a digit of its base for each axis.

    allowed: as far as the divisors of dims say. shared: of an objective that does not see it, the parts that each row
    cuts its products into.
    """

    def __init__(self, costs: Costs, axes: tuple[Axis, ...], options: Ints) -> None:
        """Compute the costs of every row of every node.

        Forward and backward seconds are only of nodes that read a parameter. The cost of a row that is not allowed
        (`_allowed_rows`) is infinite. shared: None for the objective `time`; else 1 for nodes without products and for
        pinned ones.
        """
        count, nodes = len(axes), costs.net.nodes
        self.options, self.powers = options, options[:, None] ** np.arange(count, dtype=np.int64)
        sizes = options**count
        self.first = np.concatenate([[0], np.cumsum(sizes)])[:-1].astype(np.int64)
        self.owner = np.repeat(np.arange(len(nodes)), options)
        self.option = np.concatenate([np.arange(many) for many in options.tolist()] or [np.zeros(0, np.int64)])
        self.starts = np.concatenate([[0], np.cumsum(options)])[:-1].astype(np.int64)
        self.cost, self.memory, self.transient, self.relative, self.forward, self.backward = np.zeros(
            (6, int(sizes.sum()))
        )
        self.shared = None if costs.timed else np.ones(int(sizes.sum()))
        used = {link.consumer for link in costs.net.links if nodes[link.producer].parameter is not None}
        for index, node in enumerate(nodes):
            some = all_rows(node, axes)
            here = slice(int(self.first[index]), int(self.first[index] + sizes[index]))
            cost, self.memory[here], self.transient[here], self.relative[here] = costs.node(index, some)
            self.cost[here] = np.where(_allowed_rows(costs, node, some, axes), cost, np.inf)
            if index in used:
                own = costs.passes(node, some)
                self.forward[here], self.backward[here] = own.forward, own.backward
            free = node.operator is not None and node.operator.work is not Work.MEMORY and not node.fixed
            if self.shared is not None and free:
                splits = np.array([option.split is not None for option in node.options])
                self.shared[here] = counted(splits, some, costs.rates)

    def at(self, rows: Rows) -> Ints:
        """Return each node's index of its row in the tables: [nodes]."""
        result: Ints = self.first + (rows * self.powers).sum(axis=1)
        return result

    def along(self, axis: int, rows: Rows) -> Ints:
        """Return the table index of the row that has each option on this axis, [options of all nodes].

        rows: [nodes, axes], the options on the other axes.
        """
        power = self.powers[:, axis]
        base = self.at(rows) - rows[:, axis] * power
        result: Ints = base[self.owner] + self.option * power[self.owner]
        return result

    def costs(self, at: Ints) -> Array:
        """Return the costs at these table indices, one per option of every node: [options of all nodes].

        With the objective symtensor, which has no computation cost, infinite for options that split a node's products
        into fewer parts than another allowed one of the same node does.
        """
        cost: Array = self.cost[at]
        if self.shared is None:
            return cost
        parts = np.where(np.isfinite(cost), self.shared[at], 0.0)
        most = np.maximum.reduceat(parts, self.starts)
        return np.where(parts == most[self.owner], cost, np.inf)


def _allowed_rows(costs: Costs, node: Node, rows: Rows, axes: Sequence[Axis]) -> NDArray[np.bool_]:
    """Return for each row whether its parts divide the sizes (`rows.allowed`): [rows].

    Rows with options of ZeRO are not allowed either, unless `costs.flat`.
    """
    able = allowed(costs.net, node, rows, axes)
    if not costs.flat:
        able = able & ~np.array([option.zero > 0 for option in node.options])[rows].any(axis=1)
    return able
