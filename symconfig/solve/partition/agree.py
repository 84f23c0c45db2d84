"""Which degrees of Megatron and DeepSpeed are nearest to given rows: those that agree on most of the work.

Along an axis every degree asks one option of each operator. Equal axes of one level are interchangeable, so what counts
is how many of them a node gives each option.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod

import numpy as np
from numpy.typing import NDArray

from symconfig.cost.partition.work import Rows
from symconfig.descriptor.mesh import Axis
from symconfig.graph.operator import Work
from symconfig.graph.program.net import Net, Node
from symconfig.graph.program.program import Program
from symconfig.solve.partition.degrees import Along, Way, settled
from symconfig.solve.partition.every import dense, inside, orders, plainness
from symconfig.solve.partition.roles import Role, Roles

Kind = tuple[str, int]  # level and size: axes alike in both are interchangeable
_MOST = 24  # degrees outside, and inside the experts, that are looked at more closely


@dataclass(frozen=True, slots=True)
class Scored:
    """A way on axes in this order, innermost first. work: of the operators, what they agree with."""

    order: tuple[int, ...]
    way: Way
    work: float


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


@dataclass
class Agreement:
    """Rows [nodes, axes] held against the option that each role asks of each operator."""

    net: Net
    axes: Sequence[Axis]
    rows: Rows
    wishes: dict[tuple[Role, Kind], NDArray[np.int64]] = field(default_factory=dict)
    known: dict[tuple[bool, Kind, tuple[tuple[Role, int], ...]], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.roles, nodes = Roles(self.net), self.net.nodes
        self.experts = bool(self.roles.experts)
        self.within = np.array(self.roles.within)
        self.weights = np.array([weight(self.net.program, node) if node.operator else 0.0 for node in nodes])
        options = max(len(node.options) for node in nodes)
        # of each kind of axes [nodes, options]: how many of them take the option
        self.taken: dict[Kind, NDArray[np.int64]] = {}
        for column, axis in zip(self.rows.T, self.axes, strict=True):
            taken = self.taken.setdefault((axis.level, axis.size), np.zeros((len(nodes), options), np.int64))
            taken[np.arange(len(nodes)), column] += 1

    def ranked(self) -> list[Scored]:
        """Rank ways by how much they agree with, most first; of equals those with fewer degrees above 1."""
        scored_ways = [scored for order in orders(self.axes) for scored in self._on(order)]
        return sorted(scored_ways, key=lambda scored: (-scored.work, plainness(scored.way)))

    def _on(self, order: tuple[int, ...]) -> Iterator[Scored]:
        axes = [self.axes[index] for index in order]
        outside = self._best((self._score(axes, roles, False), way) for way, roles in dense(axes))
        within = self._best((self._score(axes, roles, True), way) for way, roles in inside(axes, self.experts))
        for (first, outer), (second, inner) in product(outside, within):
            yield Scored(order, outer.with_experts(inner), first + second)

    def _best(self, scored: Iterator[tuple[float, Way]]) -> list[tuple[float, Way]]:
        return sorted(scored, key=lambda pair: (-pair[0], plainness(pair[1])))[:_MOST]

    def _score(self, axes: Sequence[Axis], roles: Sequence[Role], within: bool) -> float:
        by_kind: dict[Kind, Counter[Role]] = {}
        for axis, role in zip(axes, roles, strict=True):
            by_kind.setdefault((axis.level, axis.size), Counter())[role] += 1
        return sum(self._kind(kind, tuple(sorted(kinds.items())), within) for kind, kinds in by_kind.items())

    def _kind(self, kind: Kind, roles: tuple[tuple[Role, int], ...], within: bool) -> float:
        """Work that agrees along the axes of one kind; a node on which half of the axes agree counts half."""
        key = (within, kind, roles)
        if key not in self.known:
            taken, every = self.taken[kind], np.arange(len(self.weights))
            wanted = np.zeros_like(taken)
            for role, times in roles:
                wanted[every, self._wished(role, kind)] += times
            alike = np.minimum(wanted, taken).sum(axis=1)
            self.known[key] = float((alike * self.weights)[self.within == within].sum())
        return self.known[key]

    def _wished(self, role: Role, kind: Kind) -> NDArray[np.int64]:
        """Return what each node is asked: [nodes]."""
        if (role, kind) not in self.wishes:
            along = Along(role, role) if role in (Role.ETP, Role.EP, Role.EDP) else Along(role, Role.EDP)
            self.wishes[role, kind] = settled(self.net, [Axis(kind[0], kind[1], 1)], [along], roles=self.roles)[:, 0]
        return self.wishes[role, kind]
