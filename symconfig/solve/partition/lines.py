"""Costs along one axis of a mesh, of all nodes and links of a network: what a cut of the mesh chooses from.

All rows of a node lie in one table, and all pairs of layouts of a link in another (`symconfig.cost.partition.links`),
each with a dimension for every axis, so that a cut only reads.
"""

from __future__ import annotations

import numpy as np

from symconfig.cost.partition.costs import Costs, LinkCost, NodeCost
from symconfig.cost.partition.links import BASE, Numbers
from symconfig.cost.partition.work import counted
from symconfig.descriptor.mesh import Axis
from symconfig.graph.operator import Work
from symconfig.solve.partition.problem import Array
from symconfig.solve.partition.rows import all_rows, allowed

Row = tuple[int, ...]
Strategy = tuple[Row, ...]  # of every node


class Lines:
    """The cost tables of a network on some axes.

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
