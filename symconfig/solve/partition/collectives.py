"""The collectives of a solved partition by name: what moves over which level, how often, what shows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from symconfig.cost.partition.change import Move
from symconfig.cost.partition.costs import Costs, Keep
from symconfig.cost.partition.exchange import Collective, listed
from symconfig.cost.partition.work import exchanged
from symconfig.descriptor.mesh import Axis
from symconfig.graph.layout import Kind
from symconfig.graph.sharding import Phase

Rows = Sequence[Sequence[int]]  # of every node


@dataclass(frozen=True, slots=True)
class Moved:
    """A collective over one level of the mesh, possibly over several axes of it.

    amount: of the larger buffer on a rank, per call, in bytes (elements with the objective symtensor). times: calls per
    step. cost, shown: per step; shown is the exposed part of the cost, which no computation overlaps. link: index in
    the net, or -1 for a collective within the operator `producer`.
    """

    tensor: str
    producer: str
    consumer: str
    link: int
    phase: Phase
    kind: Kind
    level: str
    ranks: int
    amount: float
    times: float
    cost: float
    shown: float


def collectives(costs: Costs, axes: Sequence[Axis], rows: Rows) -> tuple[Moved, ...]:
    """Return all collectives of a step: first those on links between nodes, then those within operators.

    The sum of their `shown` is the communication in the partition's cost.
    """
    return (*_between(costs, axes, rows), *_within(costs, axes, rows))


def _between(costs: Costs, axes: Sequence[Axis], rows: Rows) -> Iterator[Moved]:
    """Yield the collectives on each link of the net."""
    for number, link in enumerate(costs.net.links):
        source, sink = costs.net.nodes[link.producer], costs.net.nodes[link.consumer]
        given, taken = (np.array([rows[end]], dtype=np.int64) for end in (link.producer, link.consumer))
        exchanges = listed(costs.exchanges(number, given, taken), link.times)
        names = (source.ports[link.given].tensor.name, source.name, sink.name)
        yield from _by_level(exchanges, axes, names, number)


def _within(costs: Costs, axes: Sequence[Axis], rows: Rows) -> Iterator[Moved]:
    """Yield collectives within operators: sums and exchanges with neighbours, in each phase that runs the operator.

    Includes the recomputed forward of repeated layers if only borders are kept; parameters and copies have none.
    """
    for node, row in zip(costs.net.nodes, rows, strict=True):
        if node.operator is None:
            continue
        name = node.operator.outputs[0].name
        phases = [Phase.FORWARD]
        if costs.training.keep is Keep.BORDERS and node.run >= 0:
            phases.append(Phase.RECOMPUTED)
        some = np.array([row], dtype=np.int64)
        every = list(exchanged(costs.net.program, node, some, costs.rates, per_element=not costs.timed))
        for phase in (*phases, Phase.BACKWARD):
            inner = [
                _inner(phase, move, float(costs.training.turns * node.times * repeats))
                for move, repeats, returns in every
                if np.all(move.happens) and (returns or phase is not Phase.BACKWARD)
            ]
            yield from _by_level(inner, axes, (name, node.name, node.name), -1)


def _inner(phase: Phase, move: Move, times: float) -> Collective:
    """Return an exchange within an operator as a collective whose whole cost is exposed."""
    amount, cost = float(np.max(move.amount)), float(np.max(move.cost))
    return Collective(phase=phase, kind=move.kind, axis=move.axis, amount=amount, times=times, cost=cost, shown=cost)


def _by_level(
    moved: Iterable[Collective], axes: Sequence[Axis], names: tuple[str, str, str], link: int
) -> Iterator[Moved]:
    """Yield collectives merged over consecutive axes of one level.

    Only neighbours in the sequence with equal phase, kind, number of calls and transfer are merged: ranks are
    multiplied, costs added, and the largest amount kept.
    """
    for (phase, kind, level, times, _), same in groupby(
        moved, key=lambda one: (one.phase, one.kind, axes[one.axis].level, one.times, one.transfer)
    ):
        whole = Moved(*names, link, phase, kind, level, 1, 0.0, times, 0.0, 0.0)
        for one in same:
            whole = replace(
                whole,
                ranks=whole.ranks * axes[one.axis].size,
                amount=max(whole.amount, one.amount),
                cost=whole.cost + times * one.cost,
                shown=whole.shown + times * one.shown,
            )
        yield whole
