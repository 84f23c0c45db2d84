"""All strategies that degrees of Megatron and DeepSpeed give a net, as rows side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from symconfig.cost.partition.work import Rows
from symconfig.descriptor.mesh import Axis
from symconfig.graph.program.net import Net
from symconfig.solve.partition.degrees import Along, Way, due, extend
from symconfig.solve.partition.every import complexity, dense, inside, orders
from symconfig.solve.partition.follow import Settling
from symconfig.solve.partition.roles import Roles

STAGES = (0, 1, 2, 3)
Settled = tuple[Along, int, bytes]  # what an axis of a size asks of nodes, and which options they have left
Runs = Callable[[Sequence[Way]], NDArray[np.bool_]]  # which of some ways are of interest


@dataclass(frozen=True, slots=True)
class Expressible:
    """rows: [ways, nodes, axes], on the axes as they were given; order: of each, the axes innermost first."""

    ways: tuple[Way, ...]
    orders: tuple[tuple[int, ...], ...]
    rows: Rows


def expressible(net: Net, axes: Sequence[Axis], runs: Runs) -> Expressible:
    """Find every way that the program can be split by and that runs, each once, the plainest first."""
    ways: dict[Way, tuple[tuple[int, ...], Rows]] = {}
    roles, known = Roles(net), dict[Settled, Rows]()
    for order in orders(axes):
        ordered = [axes[index] for index in order]
        missing = [(way, along) for way, along in _questions(roles, ordered) if way not in ways]
        chosen = [pair for pair, may in zip(missing, runs([way for way, _ in missing]), strict=True) if may]
        made = {} if not chosen else _made(roles, ordered, dict.fromkeys(along for _, along in chosen), known)
        places = np.argsort(order)
        for way, along in chosen:
            if along in made:
                ways[way] = (order, made[along][way.zero][:, places])
    ranked = sorted(ways, key=lambda way: (complexity(way), way.zero))
    shape = (len(ranked), len(net.nodes), len(axes))
    rows = np.array([ways[way][1] for way in ranked], dtype=np.int64).reshape(shape)
    return Expressible(tuple(ranked), tuple(ways[way][0] for way in ranked), rows)


def _questions(roles: Roles, axes: Sequence[Axis]) -> Iterator[tuple[Way, tuple[Along, ...]]]:
    every = product(dense(axes), inside(axes, bool(roles.experts)))
    for (outer, outside), (inner, within) in every:
        along = tuple(Along(*pair) for pair in zip(outside, within, strict=True))
        way = outer.with_experts(inner)
        yield from ((replace(way, zero=zero), along) for zero in STAGES)


def _made(
    roles: Roles, axes: Sequence[Axis], wanted: Iterable[tuple[Along, ...]], known: dict[Settled, Rows]
) -> dict[tuple[Along, ...], Rows]:
    """Return rows [stages, nodes, axes] of the ways that split all that they have to; what begins alike is settled
    once, and so is what an axis asks of nodes that can do the same. known: what was.
    """
    net = roles.net
    every = list(wanted)
    taken = {role for along in every for what in along for role in (what.dense, what.expert)}
    needs = {role: due(roles, role) for role in taken}
    grown: dict[tuple[Along, ...], Settling] = {(): Settling(net, axes)}
    for number in range(len(axes)):
        longer: dict[tuple[Along, ...], Settling] = {}
        for start in dict.fromkeys(along[: number + 1] for along in every):
            if start[:-1] in grown:
                making = grown[start[:-1]].forked()
                key = (start[-1], axes[number].size, making.able(number).tobytes())
                if key in known:
                    making.put(number, known[key])
                else:
                    extend(roles, making, number, start[-1], STAGES[-1])
                    known[key] = making.rows[:, number].copy()
                row = making.rows[:, number].tolist()
                due_here = (needs[start[-1].dense], needs[start[-1].expert])
                if all(need is None or (need and all(row[v] in able for v, able in need)) for need in due_here):
                    longer[start] = making
        grown = longer
    stages = _stages(net)
    nodes = np.arange(len(net.nodes))[:, None]
    return {along: stages[:, nodes, making.rows] for along, making in grown.items()}


def _stages(net: Net) -> Rows:
    """Return what an option becomes at another stage of ZeRO, [stages, nodes, options]: nothing else hangs on the
    stage.
    """
    most = max(len(node.options) for node in net.nodes)
    result = np.tile(np.arange(most), (len(STAGES), len(net.nodes), 1))
    for index, node in enumerate(net.nodes):
        flat = {option.zero: number for number, option in enumerate(node.options) if option.zero}
        for stage in STAGES:
            result[stage, index, list(flat.values())] = flat.get(stage, 0)
    return result
