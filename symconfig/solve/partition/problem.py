"""The partition problem as arrays: choices for every node, costs of nodes and of pairs, one limit of memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


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
    """[choices of u, choices of v]: cost and bytes held of a pair. Several edges may join the same two nodes."""

    u: int
    v: int
    cost: Array
    memory: Array


@dataclass(frozen=True, slots=True)
class Problem:
    """minimise  sum of costs   subject to   sum of memory + largest transient <= memory_limit (bytes)."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    memory_limit: float = float("inf")

    def cost(self, choice: Sequence[int]) -> float:
        nodes = sum(float(node.cost[c]) for node, c in zip(self.nodes, choice, strict=True))
        return nodes + sum(float(edge.cost[choice[edge.u], choice[edge.v]]) for edge in self.edges)

    def memory(self, choice: Sequence[int]) -> float:
        """Bytes at the peak."""
        held = sum(float(node.memory[c]) for node, c in zip(self.nodes, choice, strict=True))
        held += sum(float(edge.memory[choice[edge.u], choice[edge.v]]) for edge in self.edges)
        return held + max(float(node.transient[c]) for node, c in zip(self.nodes, choice, strict=True))

    def fits(self, choice: Sequence[int]) -> bool:
        return self.memory(choice) <= self.memory_limit


@dataclass(frozen=True, slots=True)
class Solution:
    """choice: of every node, or None where nothing fits (proved if `optimal`) or nothing was found.

    bound: no choice that fits costs less. optimal: proved, to a relative 1e-9. steps: what the solver counts (choices
    tried, nodes of a tree), for people.
    """

    solver: str
    choice: tuple[int, ...] | None
    cost: float
    bound: float
    optimal: bool
    steps: int = 0

    @property
    def gap(self) -> float:
        """(cost - bound) / cost; infinite without a choice."""
        if self.choice is None:
            return float("inf")
        return max(0.0, self.cost - self.bound) / self.cost if self.cost > 0 else 0.0
