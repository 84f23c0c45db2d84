"""Why each node is split as it is: the next best row, what it would cost, and what of that is work or communication.

One node alone is changed. Its parameters follow it, kept whole or flat as is best then, and copies beside it take the
place that it gives or asks; everything else stays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from symconfig.cost.partition.costs import Costs
from symconfig.cost.partition.rates import Array
from symconfig.cost.partition.work import Rows
from symconfig.descriptor.mesh import Axis
from symconfig.graph.program.net import Node, Place, Port
from symconfig.solve.partition.rows import allowed, as_fixed
from symconfig.solve.partition.strategy import alike

MOST = 1500  # rows of one node; where it has more, those that differ from the chosen one in few axes
# Of memory, in the partition's own cost per byte: at some of them the parameters beside a node are chosen so as to fit.
_PRICES = (0.0, 0.01, 0.1, 1.0, 10.0, 1e6)


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another row of a node. cost: of the whole partition with it. fits: within the memory limit.

    The others are differences to the current row, in the unit of the cost, memory in bytes. relative: Cost_mem over
    gamma, of the objective symtensor.
    """

    row: tuple[int, ...]
    cost: float
    computation: float
    communication: float
    relative: float
    memory: float
    fits: bool


@dataclass(frozen=True, slots=True)
class Reason:
    """Alternatives to a node's row. others: rows that fit, cheapest first.

    unfit: the cheapest row that does not fit but would cost less than the current one, or None.
    """

    node: int
    others: tuple[Alternative, ...]
    unfit: Alternative | None


@dataclass(frozen=True, slots=True)
class Solved:
    """A partition as arrays. cost: of the whole step. gamma: of the objective symtensor, else infinite."""

    costs: Costs
    axes: tuple[Axis, ...]
    rows: tuple[tuple[int, ...], ...]
    cost: float
    memory_limit: float
    gamma: float = float("inf")


def reasons(solved: Solved, top: int = 1) -> tuple[Reason, ...]:
    """Return for every operator's node the best alternative rows, at most `top`, and the cheaper row that does not fit.

    Copies and parameters have no entry: they follow the operators.
    """
    around = _Around(solved)
    return tuple(around.reason(v, top) for v, node in enumerate(solved.costs.net.nodes) if node.operator is not None)


@dataclass(slots=True)
class _Weighed:
    """Cost in the objective's unit and memory in bytes: [rows] or [ways, rows]."""

    cost: Array
    memory: Array


class _Around:
    """A solved partition, and what does not depend on the changed node: bytes held and each node's transient."""

    def __init__(self, solved: Solved) -> None:
        self.solved, self.net = solved, solved.costs.net
        self.rows = [np.array([row], dtype=np.int64) for row in solved.rows]
        alone = [solved.costs.node(index, row) for index, row in enumerate(self.rows)]
        links = [
            solved.costs.link(i, self.rows[link.producer], self.rows[link.consumer])
            for i, link in enumerate(self.net.links)
        ]
        self.held = sum(float(one.memory[0]) for one in alone) + sum(float(link.memory[0, 0]) for link in links)
        self.transient = np.array([float(one.transient[0]) for one in alone])
        self.unit = solved.cost / max(self.held, 1.0)

    def reason(self, v: int, top: int) -> Reason:
        """Return the node's cheapest feasible alternatives and the first infeasible one that would cost less, if any.

        Rows that differ only in the order of a level's axes count as one.
        """
        rows = candidates(self.solved, v)
        changed = self._changed(v, rows)
        transient = self.solved.costs.node(v, rows).transient
        others = max((t for w, t in enumerate(self.transient) if w != v), default=0.0)
        peak = self.held + changed.memory + np.maximum(transient, others)
        fits = peak <= self.solved.memory_limit * (1 + 1e-12)
        order = np.lexsort((np.arange(len(rows)), changed.cost))
        own = alike(self.solved.rows[v], self.solved.axes)
        seen, chosen, unfit = {own}, list[int](), None
        for index in order[np.isfinite(changed.cost[order])]:
            look = alike(rows[index].tolist(), self.solved.axes)
            if look in seen:
                continue
            if fits[index]:
                chosen.append(int(index))
                seen.add(look)
            elif unfit is None and changed.cost[index] < 0:
                unfit = int(index)
            if len(chosen) == top:
                break
        sentences = self._alternatives(v, rows, [*chosen, *([unfit] if unfit is not None else [])], changed, fits)
        return Reason(v, tuple(sentences[: len(chosen)]), sentences[-1] if unfit is not None else None)

    def _alternatives(
        self, v: int, rows: Rows, chosen: Sequence[int], changed: _Weighed, fits: NDArray[np.bool_]
    ) -> list[Alternative]:
        """Return the rows at the indices `chosen` as alternatives, with differences to the current row."""
        work, relative = self._own(v, np.concatenate([self.rows[v], rows[list(chosen)]]))
        return [
            Alternative(
                row=tuple(rows[index].tolist()),
                cost=self.solved.cost + float(changed.cost[index]),
                computation=float(work[at] - work[0]),
                communication=float(changed.cost[index] - (work[at] - work[0]) - (relative[at] - relative[0])),
                relative=float(relative[at] - relative[0]),
                memory=float(changed.memory[index]),
                fits=bool(fits[index]),
            )
            for at, index in enumerate(chosen, 1)
        ]

    def _own(self, v: int, rows: Rows) -> tuple[Array, Array]:
        """Return the node's computation in a step, and its Cost_mem over gamma: [rows], in the objective's unit."""
        costs, node = self.solved.costs, self.net.nodes[v]
        passes = costs.passes(node, rows)
        often = float(costs.training.turns * node.times)
        work = often * (costs.forwards(node) * passes.forward + passes.backward)
        return work, costs.node(v, rows).relative / self.solved.gamma

    def _changed(self, v: int, rows: Rows) -> _Weighed:
        """Return the changes of cost and of bytes held if the node takes each row: [rows].

        Adjacent parameters and copies follow with their best option, at memory prices that rise until the result fits;
        all other nodes keep their rows. The first row is the current one.
        """
        net, costs = self.net, self.solved.costs
        others = {self._other(link, v) for link in net.links_of[v]}
        free = [w for w in sorted(others) if w != v and net.nodes[w].operator is None]
        alone = costs.node(v, rows)
        cost, memory = alone.cost + alone.relative / self.solved.gamma, alone.memory
        for number in net.links_of[v]:
            link = net.links[number]
            if self._other(number, v) not in free:
                link_costs = self._link(
                    number, rows if link.producer == v else None, rows if link.consumer == v else None
                )
                cost, memory = cost + link_costs.cost, memory + link_costs.memory
        choices = [self._with_other(w, v, rows) for w in free]
        # Chosen as they are, beside the chosen row, which is the first: what the differences are taken from.
        base_cost = float(cost[0]) + sum(float(choice.cost[0, 0]) for choice in choices)
        base_memory = float(memory[0]) + sum(float(choice.memory[0, 0]) for choice in choices)
        best = _Weighed(np.full(len(rows), np.inf), np.full(len(rows), np.inf))
        room = self.solved.memory_limit - self.held + base_memory - float(self.transient.max())
        for price in _PRICES:
            tried = _Weighed(cost.copy(), memory.copy())
            for choice in choices:
                at = np.argmin(choice.cost + price * self.unit * choice.memory, axis=0), np.arange(len(rows))
                tried.cost, tried.memory = tried.cost + choice.cost[at], tried.memory + choice.memory[at]
            # Cheaper and fitting, or the first that fits; else whatever is cheapest.
            fits, fitted = tried.memory <= room, best.memory <= room
            better = np.where(fits == fitted, tried.cost < best.cost, fits)
            best.cost, best.memory = (
                np.where(better, tried.cost, best.cost),
                np.where(better, tried.memory, best.memory),
            )
        return _Weighed(best.cost - base_cost, best.memory - base_memory)

    def _other(self, number: int, v: int) -> int:
        link = self.net.links[number]
        return link.consumer if link.producer == v else link.producer

    def _link(self, number: int, given: Rows | None, taken: Rows | None) -> _Weighed:
        """Return a link's cost and memory, [rows]; an end that is None keeps its current row."""
        link, costs = self.net.links[number], self.solved.costs
        if given is not None and taken is not None:
            return _Weighed(*costs.pairwise(number, given, taken))
        here, there = (
            given if given is not None else self.rows[link.producer],
            taken if taken is not None else self.rows[link.consumer],
        )
        cost = costs.link(number, here, there)
        return _Weighed(cost.cost.reshape(-1), cost.memory.reshape(-1))

    def _with_other(self, w: int, v: int, rows: Rows) -> _Weighed:
        """Return cost and memory of a parameter or copy w and its links if v takes each row: [ways, rows].

        Each way is one option row of w; the first is its current one. Ways that violate a pin cost infinity.
        """
        ways = np.stack([np.broadcast_to(self.rows[w], rows.shape), *self._follower_rows(w, v, rows)])
        flat, own = np.concatenate(list(ways)), np.tile(rows, (len(ways), 1))
        costs = self.solved.costs
        alone = costs.node(w, flat)
        fits = as_fixed(self.net.nodes[w], flat, self.solved.axes)
        cost, memory = np.where(fits, alone.cost + alone.relative / self.solved.gamma, np.inf), alone.memory
        for number in self.net.links_of[w]:
            link = self.net.links[number]
            ends = [flat if end == w else own if end == v else None for end in (link.producer, link.consumer)]
            moved = self._link(number, *ends)
            cost, memory = cost + moved.cost, memory + moved.memory
        shape = (len(ways), len(rows))
        return _Weighed(cost.reshape(shape), memory.reshape(shape))

    def _follower_rows(self, w: int, v: int, rows: Rows) -> Iterator[Rows]:
        """Yield the rows that w may take for each row of v: [rows, axes].

        A copy takes the place of v's port; a parameter is split as v reads it (see `_stored`).
        """
        node = self.net.nodes[w]
        for number in self.net.links_of[w]:
            link = self.net.links[number]
            if v not in (link.producer, link.consumer):
                continue
            port = self.net.nodes[v].ports[link.taken if link.consumer == v else link.given]
            if node.copy:
                at: dict[Place, int] = {
                    place: option for option, place in reversed(list(enumerate(node.ports[0].places)))
                }
                yield np.array([at.get(place, 0) for place in port.places], dtype=np.int64)[rows]
            else:
                yield from _stored(node, port, rows, self.solved.axes)


def _stored(parameter: Node, port: Port, rows: Rows, axes: Sequence[Axis]) -> Iterator[Rows]:
    """Yield the rows of a parameter that is split where the node reads it split.

    Along the other axes it takes one unsplit option (whole or flat) per level; every combination is yielded.
    """
    dims = {place.forward: n for n, place in enumerate(parameter.ports[0].places) if parameter.options[n].parts}
    used = np.array([dims.get(place.forward, -1) for place in port.places], dtype=np.int64)[rows]
    free = [number for number, option in enumerate(parameter.options) if not option.parts]
    levels = list(dict.fromkeys(axis.level for axis in axes))
    for choice in product(free, repeat=len(levels)):
        given = dict(zip(levels, choice, strict=True))
        yield np.where(used < 0, np.array([given[axis.level] for axis in axes], dtype=np.int64), used)


def candidates(solved: Solved, v: int) -> Rows:
    """Return the current row first, then the other rows that divisors and pins allow: [rows, axes].

    With more than MOST rows, only those that differ in two axes, or uniformly in levels.
    """
    net, axes, row = solved.costs.net, solved.axes, np.array(solved.rows[v], dtype=np.int64)
    options = range(len(net.nodes[v].options))
    if len(options) ** len(axes) <= MOST:
        every = np.array(list(product(options, repeat=len(axes))), dtype=np.int64)
    else:
        every = np.unique(np.array(list(_neighbours(row, axes, len(options))), dtype=np.int64), axis=0)
    node = net.nodes[v]
    every = every[allowed(net, node, every, axes) & as_fixed(node, every, axes) & (every != row).any(axis=1)]
    return np.concatenate([row[None], every])


def _neighbours(row: NDArray[np.int64], axes: Sequence[Axis], options: int) -> Iterator[NDArray[np.int64]]:
    """Yield rows that differ from the given one in at most two axes, or in whole levels with one option each."""
    for first, second in product(range(len(axes)), repeat=2):
        for a, b in product(range(options), repeat=2) if first < second else ():
            other = row.copy()
            other[first], other[second] = a, b
            yield other
    levels = list(dict.fromkeys(axis.level for axis in axes))
    for choice in product(range(-1, options), repeat=len(levels)):
        given = dict(zip(levels, choice, strict=True))
        yield np.array([now if given[a.level] < 0 else given[a.level] for now, a in zip(row, axes, strict=True)])
