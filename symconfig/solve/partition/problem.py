"""The partition problem as arrays: choices for every node, costs of nodes and of pairs, one limit of memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from symconfig.cost.partition.costs import Costs
from symconfig.cost.partition.work import Rows

Array = NDArray[np.float64]
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
    """[choices of u, choices of v]: cost and bytes held of a pair. Several edges may join the same two nodes.

    rows, columns: of each choice the row or column of the tables, where choices that cost alike share one; None: each
    has its own.
    """

    u: int
    v: int
    cost: Array
    memory: Array
    rows: Ints | None = None
    columns: Ints | None = None

    @property
    def lines(self) -> tuple[Ints, Ints]:
        """Return the table row of each choice of u and the table column of each choice of v."""
        rows = np.arange(self.cost.shape[0]) if self.rows is None else self.rows
        return rows, np.arange(self.cost.shape[1]) if self.columns is None else self.columns

    def place(self, choice: Sequence[int]) -> tuple[int, int]:
        """Return the row and column of the edge's tables for an assignment of all nodes."""
        u, v = choice[self.u], choice[self.v]
        return (u if self.rows is None else int(self.rows[u])), (v if self.columns is None else int(self.columns[v]))

    def full(self, table: Array) -> Array:
        """Return a table expanded to one row and column per choice: [choices of u, choices of v]."""
        table = table if self.rows is None else table.take(self.rows, axis=0)
        return table if self.columns is None else table.take(self.columns, axis=1)


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
        """Return an assignment's bytes at the peak: all that is held plus the largest transient."""
        held = sum(float(node.memory[c]) for node, c in zip(self.nodes, choice, strict=True))
        held += sum(float(edge.memory[edge.place(choice)]) for edge in self.edges)
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
    """Return the problem of choosing one row per node. rows: of every node, [rows, axes].

    memory_limit: bytes of tensors that a GPU may hold at once. gamma: divides Cost_mem in the costs of nodes.
    """
    nodes = tuple(_node(costs, i, rows[i], gamma) for i in range(len(costs.net.nodes)))
    edges = (
        Edge(link.producer, link.consumer, *costs.grouped(i, rows[link.producer], rows[link.consumer]))
        for i, link in enumerate(costs.net.links)
    )
    return Problem(nodes, tuple(edges), memory_limit)


def _node(costs: Costs, index: int, rows: Rows, gamma: float) -> Node:
    cost, memory, transient, relative = costs.node(index, rows)
    return Node(costs.net.nodes[index].name, cost + relative / gamma, memory, transient)


def price(costs: Costs, rows: Rows, gamma: float = float("inf")) -> tuple[float, float]:
    """Return the cost and the bytes at the peak of one strategy. rows: [nodes, axes]."""
    problem, alone = assemble(costs, [row[None] for row in rows], float("inf"), gamma), (0,) * len(rows)
    return problem.cost(alone), problem.memory(alone)
