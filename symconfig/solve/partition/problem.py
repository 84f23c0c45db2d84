"""The partition problem as arrays: choices for every node, costs of nodes and of pairs, one limit of memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from symconfig.cost.partition.costs import Costs
from symconfig.cost.partition.work import Rows

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Node:
    """[choices]: cost (of the objective), bytes held, and bytes that are alive only while the node runs.

    An infinite cost forbids a choice. At least one is finite.
    """

    name: str
    cost: Array
    memory: Array
    transient: Array


@dataclass(frozen=True, slots=True)
class Edge:
    """Tables of two nodes' choices; choices that the pair cannot tell apart may share a row or a column.

    cost: infinite where they exclude each other. memory: bytes held; None if all zero. rows, columns: of each choice of
    u and of v. Several edges may join the same two nodes.
    """

    u: int
    v: int
    cost: Array
    memory: Array | None
    rows: Ints
    columns: Ints

    @staticmethod
    def of(u: int, v: int, cost: Array, memory: Array | None = None) -> Edge:
        """Return an edge whose tables have a row for each choice of u and a column for each choice of v."""
        rows, columns = map(np.arange, cost.shape)
        return Edge(u, v, cost, memory if memory is not None and memory.any() else None, rows, columns)

    @property
    def size(self) -> int:
        return len(self.rows) * len(self.columns)

    def place(self, choice: Sequence[int]) -> tuple[int, int]:
        """Return the row and column of the tables for an assignment of all nodes."""
        return int(self.rows[choice[self.u]]), int(self.columns[choice[self.v]])

    def priced(self, price: float) -> Array:
        """Return the table of cost + price x memory."""
        return self.cost if self.memory is None or price == 0 else self.cost + price * self.memory

    def line(self, v: int, other: int, price: float) -> Array:
        """Return cost + price x memory for each choice of node v, given the choice `other` (an index) of the edge's
        other node.

        v: one of the edge's two nodes, by number. Without memory or with price 0, the cost.
        """
        at_u = v == self.u
        mine, line = (self.rows, np.s_[:, self.columns[other]]) if at_u else (self.columns, np.s_[self.rows[other]])
        cost = self.cost[line].take(mine)
        return cost if self.memory is None or price == 0 else cost + price * self.memory[line].take(mine)

    def cut(self, of_u: Bools, of_v: Bools) -> Edge:
        """Return the edge with only the choices marked in two masks, [choices] of u and of v.

        Rows and columns of the tables that no remaining choice uses are removed, and the others renumbered.
        """
        rows, columns = self.rows[of_u], self.columns[of_v]
        (above, first), (left, second) = (np.unique(at, return_inverse=True) for at in (rows, columns))
        if len(above) * len(left) == self.cost.size:
            return replace(self, rows=rows, columns=columns)
        cost, memory = (
            None if of is None else of.take(above, axis=0).take(left, axis=1) for of in (self.cost, self.memory)
        )
        assert cost is not None
        return Edge(self.u, self.v, cost, memory, first.reshape(-1), second.reshape(-1))


@dataclass(frozen=True, slots=True)
class Problem:
    """minimise  sum of costs   subject to   sum of memory + largest transient <= memory_limit (bytes)."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    memory_limit: float = float("inf")

    def cost(self, choice: Sequence[int]) -> float:
        nodes = sum(float(node.cost[c]) for node, c in zip(self.nodes, choice, strict=True))
        return nodes + sum(float(edge.cost[edge.place(choice)]) for edge in self.edges)

    def memory(self, choice: Sequence[int]) -> float:
        """Return an assignment's bytes at the peak: all bytes held by nodes and edges, plus the largest transient of a
        node.
        """
        held = sum(float(node.memory[c]) for node, c in zip(self.nodes, choice, strict=True))
        held += sum(float(edge.memory[edge.place(choice)]) for edge in self.edges if edge.memory is not None)
        return held + max(float(node.transient[c]) for node, c in zip(self.nodes, choice, strict=True))

    def fits(self, choice: Sequence[int]) -> bool:
        return self.memory(choice) <= self.memory_limit


@dataclass(frozen=True, slots=True)
class Solution:
    """choice: of every node, or None where nothing fits (proved if `optimal`) or nothing was found.

    bound: no choice that fits costs less. optimal: proved, to a relative 1e-9.
    """

    solver: str
    choice: tuple[int, ...] | None
    cost: float
    bound: float
    optimal: bool


def assemble(costs: Costs, rows: Sequence[Rows], memory_limit: float, gamma: float = float("inf")) -> Problem:
    """Return the problem of choosing one row per node: a node per node of the net, an edge per link.

    rows: of every node, [rows, axes]. memory_limit: bytes of tensors that a GPU may hold at once. gamma: Cost_mem /
    gamma is added to the costs of nodes (inf: nothing). An edge's memory is None if it is zero everywhere.
    """
    nodes = tuple(_node(costs, i, rows[i], gamma) for i in range(len(costs.net.nodes)))
    edges = []
    for i, link in enumerate(costs.net.links):
        cost, memory, *lines = costs.grouped(i, rows[link.producer], rows[link.consumer])
        edges.append(Edge(link.producer, link.consumer, cost, memory if memory.any() else None, *lines))
    return Problem(nodes, tuple(edges), memory_limit)


def _node(costs: Costs, index: int, rows: Rows, gamma: float) -> Node:
    cost, memory, transient, relative = costs.node(index, rows)
    return Node(costs.net.nodes[index].name, cost + relative / gamma, memory, transient)


def price(costs: Costs, rows: Rows, gamma: float = float("inf")) -> tuple[float, float]:
    """Return the cost (with Cost_mem / gamma; infinite if forbidden) and peak bytes of one strategy, [nodes, axes]."""
    problem, alone = assemble(costs, [row[None] for row in rows], float("inf"), gamma), (0,) * len(rows)
    return problem.cost(alone), problem.memory(alone)
