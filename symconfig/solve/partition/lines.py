"""Costs along one axis of a mesh, of all nodes and links of a network at once: what each cut of the mesh weighs.

All rows of a node lie in one table, and all pairs of layouts of a link in another (`symconfig.cost.partition.codes`),
so that a cut only reads: no operator is looked at by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from symconfig.cost.partition.between import Activation, Weight, shown
from symconfig.cost.partition.codes import BASE, every
from symconfig.cost.partition.costs import Costs
from symconfig.cost.partition.work import Rows, counted
from symconfig.descriptor.mesh import Axis
from symconfig.errors import InputError
from symconfig.graph.operator import Work
from symconfig.graph.program.net import Node
from symconfig.solve.partition.problem import Array
from symconfig.solve.partition.rows import allowed

Ints = NDArray[np.int64]
MOST_ROWS = 200_000  # of one node, that are weighed at once


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
        self.costs, self.axes, net = costs, axes, costs.net
        self.options = np.array([len(node.options) for node in net.nodes], dtype=np.int64)
        rows = int((self.options ** len(axes)).max(initial=0))
        if rows > MOST_ROWS:
            raise InputError(
                "an operator can be split in more ways than can be weighed at once",
                got=f"{rows:,} on {len(axes)} axes of the mesh",
                need=f"at most {MOST_ROWS:,}",
                hint="a mesh with fewer levels",
            )
        self.rows = _Rows(costs, axes, self.options)
        rules = [(number, costs.rule(number)) for number in range(len(net.links))]
        self.activations = _Links(costs, [(number, rule) for number, rule in rules if isinstance(rule, Activation)])
        weights = [(number, rule) for number, rule in rules if isinstance(rule, Weight)]
        self.weights = _Weights(costs, weights, self.rows)
        sizes = [int(self.options[link.producer] * self.options[link.consumer]) for link in net.links]
        self.shapes = [(len(net.nodes[a.producer].options), len(net.nodes[a.consumer].options)) for a in net.links]
        self.choices = [np.arange(many) for many in self.options.tolist()]
        ends = list(accumulate(sizes, initial=0))
        self.of_link = [slice(*both) for both in pairwise(ends)]
        order = [number for number, _ in (*self.activations.numbers, *weights)]
        # where the entries of activations and then of weights go, so that links are in their own order
        self.place = np.concatenate([np.arange(ends[n], ends[n + 1]) for n in order] or [np.zeros(0, np.int64)])
        self.order = np.array(order, dtype=np.int64)
        starts = list(accumulate(self.options.tolist(), initial=0))
        self.of_node = [slice(*both) for both in pairwise(starts)]

    def of_nodes(self, values: Array) -> list[Array]:
        """Split an array over the options of all nodes into one array per node."""
        return [values[part] for part in self.of_node]

    def of_links(self, values: Array) -> list[Array]:
        """Split an array over the option pairs of all links into tables: [producer's options, consumer's options]."""
        return [values[part].reshape(shape) for part, shape in zip(self.of_link, self.shapes, strict=True)]

    def along(self, axis: int, rows: Rows) -> Line:
        """Return the costs of every node's rows that differ from the given ones, [nodes, axes], in this axis only.

        Also those of every link's option pairs along this axis. An infinite cost marks an option that is not allowed.
        """
        at = self.rows.along(axis, rows)
        cost, memory = self._links(self.activations.along(axis, rows), self.weights.along(axis, rows, at), self.place)
        own = self.rows
        return Line(own.costs(axis, at), own.memory[at], own.transient[at], own.relative[at], cost, memory)

    def at(self, rows: Rows) -> Line:
        """Return the costs of one strategy: [nodes] and [links]. rows: [nodes, axes]."""
        at, own = self.rows.at(rows), self.rows
        cost, memory = self._links(self.activations.at(rows), self.weights.at(rows, at), self.order)
        return Line(own.cost[at], own.memory[at], own.transient[at], own.relative[at], cost, memory)

    def _links(self, activations: tuple[Array, Array], weights: Array, place: Ints) -> tuple[Array, Array]:
        cost, memory = np.empty(len(place)), np.zeros(len(place))
        cost[place] = np.concatenate([activations[0], weights])
        memory[place[: len(activations[1])]] = activations[1]
        return cost, memory


class _Rows:
    """Tables of all rows of all nodes, one node after the other; a row's number has a digit of its base for each axis.

    allowed: as far as the divisors of dims say. shared: of an objective that does not see it, the parts that each row
    cuts its products into.
    """

    def __init__(self, costs: Costs, axes: tuple[Axis, ...], options: Ints) -> None:
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
            some = np.arange(sizes[index])[:, None] // self.powers[index] % options[index]
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
        """Return the table indices of the rows that differ in one axis: [options of all nodes]."""
        power = self.powers[:, axis]
        base = self.at(rows) - rows[:, axis] * power
        result: Ints = base[self.owner] + self.option * power[self.owner]
        return result

    def costs(self, axis: int, at: Ints) -> Array:
        """Return the costs at these table indices: [options of all nodes].

        With the objective symtensor, which has no computation cost, a row is infinite if it repeats products on several
        ranks and another row does not. axis is not used.
        """
        cost: Array = self.cost[at]
        if self.shared is None:
            return cost
        parts = np.where(np.isfinite(cost), self.shared[at], 0.0)
        most = np.maximum.reduceat(parts, self.starts)
        return np.where(parts == most[self.owner], cost, np.inf)


def _allowed_rows(costs: Costs, node: Node, rows: Rows, axes: Sequence[Axis]) -> NDArray[np.bool_]:
    able = allowed(costs.net, node, rows, axes)
    if not costs.flat:
        able = able & ~np.array([option.zero > 0 for option in node.options])[rows].any(axis=1)
    return able


class _Digits:
    """Digits of pairs of options, [options x options] of one link after the other, and the numbers that they make."""

    def __init__(self, tables: Sequence[Ints], ends: Sequence[tuple[int, int]], axes: int) -> None:
        self.powers = BASE ** np.arange(axes, dtype=np.int64)
        self.flat = np.concatenate([table.ravel() for table in tables] or [np.zeros(0, np.int64)])
        self.scaled = self.flat * self.powers[:, None]
        sizes = [table.size for table in tables]
        self.owner = np.repeat(np.arange(len(tables)), sizes)
        self.first = np.concatenate([[0], np.cumsum(sizes)])[:-1].astype(np.int64)
        self.width = np.array([table.shape[1] for table in tables], dtype=np.int64)
        self.ends = np.array(ends, dtype=np.int64).reshape(-1, 2)

    def places(self, rows: Rows) -> Ints:
        """Return the index in `flat` of each link's pair of options: [links, axes]."""
        given, taken = rows[self.ends[:, 0]], rows[self.ends[:, 1]]
        result: Ints = self.first[:, None] + given * self.width[:, None] + taken
        return result

    def at(self, places: Ints) -> Ints:
        """Return the code number of each link's pairs over all axes: [links]."""
        result: Ints = (self.flat[places] * self.powers).sum(axis=1)
        return result

    def along(self, axis: int, places: Ints) -> Ints:
        """Return the code numbers with every option pair on one axis: [options x options of all links]."""
        here = self.flat[places]
        base = (here * self.powers).sum(axis=1) - here[:, axis] * self.powers[axis]
        result: Ints = base[self.owner] + self.scaled[axis]
        return result


class _Joined:
    """Tables by number, each once, in one array. first: of each link."""

    def __init__(self, tables: Sequence[Array]) -> None:
        known = {id(table): table for table in tables}
        ends = dict(zip(known, accumulate((len(table) for table in known.values()), initial=0), strict=False))
        self.values: Array = np.concatenate(list(known.values()) or [np.zeros(0)])
        self.first = np.array([ends[id(table)] for table in tables], dtype=np.int64)


class _Links:
    """Links of activations."""

    def __init__(self, costs: Costs, numbers: Sequence[tuple[int, Activation]]) -> None:
        self.numbers, table, links = numbers, every(costs.rates), costs.net.links
        ends = [(links[number].producer, links[number].consumer) for number, _ in numbers]
        rules = [rule for _, rule in numbers]
        self.there = _Digits([rule.there for rule in rules], ends, len(costs.rates))
        self.back = _Digits([rule.back for rule in rules], ends, len(costs.rates))
        self.costs = _Joined([rule.there_cost(table) for rule in rules])
        self.back_costs = _Joined([rule.back_cost(table) for rule in rules])
        self.memory = _Joined([rule.memory(table) for rule in rules])

    def along(self, axis: int, rows: Rows) -> tuple[Array, Array]:
        places, owner = self.there.places(rows), self.there.owner
        return self._read(self.there.along(axis, places), self.back.along(axis, places), owner)

    def at(self, rows: Rows) -> tuple[Array, Array]:
        places = self.there.places(rows)
        return self._read(self.there.at(places), self.back.at(places), slice(None))

    def _read(self, there: Ints, back: Ints, owner: Any) -> tuple[Array, Array]:
        cost = self.costs.values[self.costs.first[owner] + there]
        cost = cost + self.back_costs.values[self.back_costs.first[owner] + back]
        return cost, self.memory.values[self.memory.first[owner] + there]


class _Weights:
    """Links of parameters."""

    def __init__(self, costs: Costs, numbers: Sequence[tuple[int, Weight]], nodes: _Rows) -> None:
        table, links = every(costs.rates), costs.net.links
        ends = [(links[number].producer, links[number].consumer) for number, _ in numbers]
        rules = [rule for _, rule in numbers]
        transfers = list(zip(*(rule.transfers for rule in rules), strict=True))
        self.digits = [_Digits([at for at, _ in some], ends, len(costs.rates)) for some in transfers]
        self.costs = [_Joined([table.cost(amount) for _, amount in some]) for some in transfers]
        self.nodes, self.hide = nodes, costs.training.hide
        self.consumer = np.array([consumer for _, consumer in ends], dtype=np.int64)
        self.regathers, self.trainable = (
            np.array([getattr(rule, name) for rule in rules], dtype=bool) for name in ("regathers", "trainable")
        )
        self.turns, self.times = (
            np.array([getattr(rule, name) for rule in rules], dtype=np.float64) for name in ("turns", "times")
        )
        if rules:
            # of each entry the place of the consumer's option among those of all nodes
            first = self.digits[0]
            option = (np.arange(len(first.flat)) - first.first[first.owner]) % first.width[first.owner]
            self.taken = nodes.starts[self.consumer][first.owner] + option

    def along(self, axis: int, rows: Rows, at: Ints) -> Array:
        """Return the links' costs with every option pair on one axis; empty without links.

        at: index in the nodes' tables of every option of all nodes.
        """
        if not self.digits:
            return np.zeros(0)
        places, owner = self.digits[0].places(rows), self.digits[0].owner
        return self._read([digits.along(axis, places) for digits in self.digits], at[self.taken], owner)

    def at(self, rows: Rows, at: Ints) -> Array:
        if not self.digits:
            return np.zeros(0)
        places = self.digits[0].places(rows)
        return self._read([digits.at(places) for digits in self.digits], at[self.consumer], slice(None))

    def _read(self, numbers: Sequence[Ints], consumers: Ints, owner: Any) -> Array:
        """Return the exposed communication cost, given the consumers' computation that can overlap it."""
        moved = [of.values[of.first[owner] + number] for of, number in zip(self.costs, numbers, strict=True)]
        ahead, behind = (self.hide * work[consumers] for work in (self.nodes.forward, self.nodes.backward))
        once = shown(
            moved,
            ahead,
            behind,
            regathers=self.regathers[owner],
            trainable=self.trainable[owner],
            turns=self.turns[owner],
        )
        result: Array = self.times[owner] * once
        return result
