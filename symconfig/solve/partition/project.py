"""From the rows of a solved partition to Megatron's and DeepSpeed's parameters, or to what they cannot express."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from symconfig.cost.partition.work import Rows
from symconfig.descriptor.job import Backend
from symconfig.descriptor.mesh import Axis
from symconfig.format import general
from symconfig.frameworks.constraint import failing
from symconfig.frameworks.facts import Fixed
from symconfig.frameworks.known import BACKENDS
from symconfig.frameworks.tables import constraints
from symconfig.graph.operator import Work
from symconfig.graph.program.net import Net, Node
from symconfig.graph.program.program import Program
from symconfig.plans.columns import Columns
from symconfig.solve.partition.degrees import Way, lacking, laid, settled, way
from symconfig.solve.partition.expressible import expressible
from symconfig.solve.partition.problem import Array


@dataclass(frozen=True, slots=True)
class Departure:
    """At one level of the mesh: what the plan does, and what the nearest degrees would do, as `heads/4, batch/2`."""

    level: str
    does: str
    would: str


@dataclass(frozen=True, slots=True)
class Difference:
    """Nodes that depart alike. name: of one of them, layers' numbers as *; times: operators, or parameters, in all;
    share: of the program's work, or of its parameters' elements."""

    name: str
    parameter: bool
    times: int
    share: float
    departures: tuple[Departure, ...]

    def __str__(self) -> str:
        what = "weight " if self.parameter else ""
        sentence = "; ".join(f"{d.does} instead of {d.would} over {d.level}" for d in self.departures)
        return f"{what}{self.name}{f' (x {self.times})' if self.times > 1 else ''}: {sentence}"


@dataclass(frozen=True, slots=True)
class Projection:
    """The nearest way. axes: in the order in which the framework's ranks have them, innermost first.

    rows: [nodes, axes] of this way, on the axes as they were given, equal ones as the plan has them. differences:
    none where the plan is exactly this. refused: why the framework's own strategy does not go with the program, where
    it does not.
    """

    way: Way
    axes: tuple[Axis, ...]
    rows: Rows
    differences: tuple[Difference, ...]
    agreement: float  # share of the operators' work on axes that do the same
    refused: str = ""

    @property
    def exact(self) -> bool:
        return not self.differences and not self.refused


def project(net: Net, axes: Sequence[Axis], rows: Rows) -> Projection:
    """Project rows, [nodes, axes] of the plan, axes innermost first. Copies are left out: they follow from their
    neighbours.
    """
    zero = _zero(net, rows)
    where = expressible(net, axes, lambda ways: np.array([way.zero == zero for way in ways], dtype=bool))
    weights = np.array([weight(net.program, node) if node.operator is not None else 0.0 for node in net.nodes])
    if where.ways:
        work = np.array([_agreeing(axes, made, rows, weights) for made in where.rows])
        at = int(np.argmax(work >= work.max() * (1 - 1e-12)))  # the plainest of equals is first
        nearest, order, made, refused = where.ways[at], where.orders[at], where.rows[at], ""
    else:  # not even the batch can be split over all ranks
        nearest, order = way(dp=prod(axis.size for axis in axes), zero=zero), tuple(range(len(axes)))
        along = laid(axes, nearest)
        assert not isinstance(along, str), along
        made = settled(net, axes, along, zero)
        refused = lacking(net, axes, along, made)
    made, total = aligned(net, axes, made, rows), float(weights.sum()) * max(len(axes), 1)
    agreement = _agreeing(axes, made, rows, weights) / total if total else 1.0
    ordered = tuple(axes[index] for index in order)
    return Projection(nearest, ordered, made, tuple(differences(net, axes, rows, made)), agreement, refused)


def _kinds(axes: Sequence[Axis]) -> list[list[int]]:
    """Group axes that are interchangeable: those alike in level and size."""
    kinds: dict[tuple[str, int], list[int]] = {}
    for index, axis in enumerate(axes):
        kinds.setdefault((axis.level, axis.size), []).append(index)
    return list(kinds.values())


def _agreeing(axes: Sequence[Axis], made: Rows, rows: Rows, weights: Array) -> float:
    """Sum the work on axes that do the same; a node on which half of the axes of a kind agree counts half. What counts
    of axes of a kind is how many of them a node gives each option.
    """
    total = 0.0
    for mine in _kinds(axes):
        left = rows[:, mine]
        for column in made[:, mine].T:
            alike = left == column[:, None]
            some = alike.any(axis=1)
            left[some, alike.argmax(axis=1)[some]] = -1  # each axis of the plan is met once
            total += float(weights[some].sum())
    return total


def weight(program: Program, node: Node) -> float:
    """Return the FLOPs of all that an operator's node stands for, or the elements that it moves, or those of a
    parameter.
    """
    op = node.operator
    elements = sum(port.elements for port in node.ports)
    if op is None or op.work is Work.MEMORY:
        return float(node.times * elements)
    if op.work is Work.ATTENTION:
        return node.times * 2.0 * op.attended * op.channels * prod(program.sizes[loop] for loop in op.queries)
    return node.times * 2.0 * prod(program.sizes[loop] for loop in {*op.inputs[0].loops, *op.inputs[1].loops})


def aligned(net: Net, axes: Sequence[Axis], made: Rows, rows: Rows) -> Rows:
    """Return the rows with equal axes of one level in the order that agrees with `rows` on most: all nodes in
    the same.
    """
    weights = np.array([0.0 if node.copy else weight(net.program, node) for node in net.nodes])
    result = made.copy()
    for mine in _kinds(axes):
        left = list(mine)
        for place in mine:
            alike = {other: float(weights @ (made[:, other] == rows[:, place])) for other in left}
            best = max(left, key=alike.__getitem__)
            result[:, place] = made[:, best]
            left.remove(best)
    return result


def _zero(net: Net, rows: Rows) -> int:
    """Return the stage in which most of the trainable parameters' elements lie; what is split along all axes lies in
    none.
    """
    elements = [0.0] * 4
    for index, node in enumerate(net.nodes):
        if node.parameter is not None and node.parameter.trainable:
            options = [node.options[option] for option in rows[index]]
            if any(not option.parts for option in options):
                elements[max(option.zero for option in options)] += weight(net.program, node)
    return max(range(4), key=lambda stage: (elements[stage], -stage))


def differences(net: Net, axes: Sequence[Axis], rows: Rows, other: Rows) -> list[Difference]:
    """Return what `rows` does otherwise than `other`; most work first."""
    by_departure: dict[tuple[str, bool, tuple[Departure, ...]], list[float]] = {}
    totals = [0.0, 0.0]
    for index, node in enumerate(net.nodes):
        if node.copy:
            continue
        parameter, amount = node.parameter is not None, weight(net.program, node)
        totals[parameter] += amount
        if np.array_equal(rows[index], other[index]):
            continue
        key = (general(node.name), parameter, tuple(_departures(node, axes, rows[index], other[index])))
        sums = by_departure.setdefault(key, [0, 0.0])
        sums[0] += node.times
        sums[1] += amount
    every = [
        Difference(name, parameter, int(times), amount / totals[parameter], departures)
        for (name, parameter, departures), (times, amount) in by_departure.items()
    ]
    return sorted(every, key=lambda what: (what.parameter, -what.share, what.name))


def _departures(node: Node, axes: Sequence[Axis], row: Rows, other: Rows) -> list[Departure]:
    result = []
    for level in dict.fromkeys(axis.level for axis in axes):
        mine = [index for index, axis in enumerate(axes) if axis.level == level]
        if not np.array_equal(row[mine], other[mine]):
            does, would = (in_words(node, some[mine], [axes[index] for index in mine]) for some in (row, other))
            result.append(Departure(level, does, would if would != does else f"{would} along other axes"))
    return result


def in_words(node: Node, row: Rows, axes: Sequence[Axis]) -> str:
    """Say what a node does along some axes: `intermediate_size/4, batch/2`."""
    parts: dict[int, int] = {}
    for option, axis in zip(row, axes, strict=True):
        parts[int(option)] = parts.get(int(option), 1) * axis.size
    return ", ".join(f"{node.options[option].name}/{parts[option]}" for option in sorted(parts) if option) or "whole"


def pins(way: Way, batch: int, backend: Backend = "megatron") -> dict[str, str]:
    """Return what makes the planner choose these degrees (`symconfig plan --pin …`, `api.plan(pins=…)`): no pipeline,
    since a partition does not split layers. batch: examples of one microbatch over all ranks.
    """
    degrees = way.degrees
    numbers = {name: getattr(degrees, name) for name in ("tp", "pp", "cp", "ep", "etp", "dp")} | {"zero": way.zero}
    values = {name: str(number) for name, number in numbers.items()}
    if batch % degrees.dp == 0:
        values["mbs"] = str(batch // degrees.dp)
    table = constraints(backend, BACKENDS[backend].releases.pinned)
    if degrees.tp > 1 and not failing(table, Fixed(), Columns(sequence_parallel=True)):
        values["sp"] = "on" if way.sequence_parallel else "off"
    if degrees.cp > 1:
        values["cp_comm"] = "a2a" if way.cp_comm == "a2a" else "p2p"
    return values
