"""The partition problem as arrays: choices for every node, costs of nodes and of pairs, one limit of memory; and what
is left of it without choices that cannot be part of an optimum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

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
        """Return cost + price x memory for each choice of node v, given the other node's choice: [choices of v].

        v: one of the edge's two nodes, by number. other: index of the other node's choice. Without memory or with price
        0, the cost alone.
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


@dataclass(frozen=True)
class Problem:
    """minimise  sum of costs   subject to   sum of memory + largest transient <= memory_limit (bytes).

    kept: for each node the numbers that its choices have in the problem that this one was reduced from; empty: all.
    """

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    memory_limit: float = float("inf")
    kept: tuple[Ints, ...] = ()

    def cost(self, choice: Sequence[int]) -> float:
        nodes = sum(float(node.cost[c]) for node, c in zip(self.nodes, choice, strict=True))
        return nodes + sum(float(edge.cost[edge.place(choice)]) for edge in self.edges)

    def held(self, choice: Sequence[int]) -> float:
        """Return the bytes held by an assignment, transients excluded."""
        held = sum(float(node.memory[c]) for node, c in zip(self.nodes, choice, strict=True))
        return held + sum(float(edge.memory[edge.place(choice)]) for edge in self.edges if edge.memory is not None)

    def memory(self, choice: Sequence[int]) -> float:
        """Return an assignment's bytes at the peak: those held, plus the largest transient of a node."""
        transients = (float(node.transient[c]) for node, c in zip(self.nodes, choice, strict=True))
        return self.held(choice) + max(transients)

    def fits(self, choice: Sequence[int]) -> bool:
        return self.memory(choice) <= self.memory_limit

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Return the number of choices of each node."""
        return tuple(len(node.cost) for node in self.nodes)

    @cached_property
    def around(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """Return for each node its edges to other nodes, as (index of the edge, other node)."""
        result: list[list[tuple[int, int]]] = [[] for _ in self.nodes]
        for index, edge in enumerate(self.edges):
            result[edge.u].append((index, edge.v))
            result[edge.v].append((index, edge.u))
        return tuple(map(tuple, result))

    @cached_property
    def least_transient(self) -> float:
        """Return a lower bound in bytes of the largest transient: the maximum over nodes of their smallest."""
        return max(float(node.transient.min()) for node in self.nodes)

    def original(self, choice: Sequence[int]) -> tuple[int, ...]:
        """Return an assignment in the numbers of the problem that this one was reduced from."""
        return tuple(int(kept[c]) for kept, c in zip(self.kept, choice, strict=True))


@dataclass(frozen=True, slots=True)
class Solution:
    """choice: of every node, or None where nothing fits (proved if `optimal`) or nothing was found.

    bound: no choice that fits costs less. optimal: proved, to a relative 1e-9.
    """

    choice: tuple[int, ...] | None
    cost: float
    bound: float
    optimal: bool


def assemble(costs: Costs, rows: Sequence[Rows], memory_limit: float) -> Problem:
    """Return the problem of choosing one row per node: a node per node of the net, an edge per link.

    rows: of every node, [rows, axes]. memory_limit: bytes of tensors that a GPU may hold at once. An edge's tables have
    one line for rows that it cannot tell apart (`Edge.rows`, `columns`).
    """
    nodes = list[Node]()
    for node, some in zip(costs.net.nodes, rows, strict=True):
        nodes.append(Node(node.name, *costs.node(len(nodes), some)[:3]))
    edges = []
    for i, link in enumerate(costs.net.links):
        cost, memory, *lines = costs.grouped(i, rows[link.producer], rows[link.consumer])
        edges.append(Edge(link.producer, link.consumer, cost, memory if memory.any() else None, *lines))
    return Problem(tuple(nodes), tuple(edges), memory_limit)


def price(costs: Costs, rows: Rows) -> tuple[float, float]:
    """Return the cost (infinite if forbidden) and the bytes at the peak of one strategy, [nodes, axes]."""
    problem, alone = assemble(costs, [row[None] for row in rows], float("inf")), (0,) * len(rows)
    return problem.cost(alone), problem.memory(alone)


def simplified(problem: Problem) -> Problem | None:
    """Return the problem without the choices that infinite costs, memory or neighbours forbid.

    None if a node has none left. Edges between the same two nodes are summed to one with u < v, edges of a node with
    itself are added to its own cost and memory, and edges without cost and memory are dropped.
    """
    nodes = list(problem.nodes)
    joined: dict[tuple[int, int], Edge] = {}
    for edge in problem.edges:
        if edge.u == edge.v:
            node, at = nodes[edge.u], (edge.rows, edge.columns)
            memory = node.memory if edge.memory is None else node.memory + edge.memory[at]
            nodes[edge.u] = replace(node, cost=node.cost + edge.cost[at], memory=memory)
            continue
        held = None if edge.memory is None else edge.memory.T
        turned = edge if edge.u < edge.v else Edge(edge.v, edge.u, edge.cost.T, held, edge.columns, edge.rows)
        key = turned.u, turned.v
        joined[key] = _sum(joined[key], turned) if key in joined else turned
    edges = tuple(edge for edge in joined.values() if edge.memory is not None or edge.cost.any())
    kept = tuple(np.arange(len(node.cost)) for node in nodes)
    finite = [np.isfinite(node.cost) & np.isfinite(node.memory) & np.isfinite(node.transient) for node in nodes]
    return restrict(Problem(tuple(nodes), edges, problem.memory_limit, kept), finite)


def restrict(old: Problem, keep: Sequence[Bools]) -> Problem | None:
    """Return the problem with the choices in the masks that have a compatible choice at every neighbour, transitively.

    None if a node has no choice left; `old` itself if every choice stays. `old` and `keep` are not changed.
    """
    keep = _supported(old, keep)
    if not all(mask.any() for mask in keep):
        return None
    return old if all(mask.all() for mask in keep) else _masked(old, keep)


def _masked(old: Problem, keep: Sequence[Bools]) -> Problem:
    """Return a copy of the problem with only the choices in the masks; incompatible ones are not removed."""
    nodes = (
        Node(node.name, node.cost[mask], node.memory[mask], node.transient[mask])
        for node, mask in zip(old.nodes, keep, strict=True)
    )
    edges = tuple(edge.cut(keep[edge.u], keep[edge.v]) for edge in old.edges)
    kept = tuple(numbers[mask] for numbers, mask in zip(old.kept, keep, strict=True))
    return Problem(tuple(nodes), edges, old.memory_limit, kept)


def _supported(now: Problem, keep: Sequence[Bools]) -> list[Bools]:
    """Return the masks without choices that have no compatible kept choice at some neighbour (arc consistency).

    Removals are followed up until none is left. The masks given are not changed. A mask may end up all False.
    """
    keep = [mask.copy() for mask in keep]
    finite = ((index, np.isfinite(pair.cost)) for index, pair in enumerate(now.edges))
    limits = {index: table for index, table in finite if not table.all()}
    open_ = dict.fromkeys(limits)
    while open_:
        index, _ = open_.popitem()
        pair, table = now.edges[index], limits[index]
        of_u, of_v = np.zeros(table.shape[0], dtype=bool), np.zeros(table.shape[1], dtype=bool)
        of_u[pair.rows[keep[pair.u]]] = True
        of_v[pair.columns[keep[pair.v]]] = True
        of_u, of_v = of_u & (table & of_v).any(axis=1), of_v & table[of_u].any(axis=0)
        for node, there in ((pair.u, of_u[pair.rows]), (pair.v, of_v[pair.columns])):
            left = keep[node] & there
            if (left != keep[node]).any():
                keep[node] = left
                open_ |= dict.fromkeys(other for other, _ in now.around[node] if other in limits)
    return keep


def _sum(one: Edge, other: Edge) -> Edge:
    """Return the sum of two edges with the same u and the same v; its memory is None if both have none.

    Choices share a row or column of its tables if they do so in both edges.
    """
    (above, below), rows = _both(one.rows, other.rows)
    (left, right), columns = _both(one.columns, other.columns)

    def table(first: Array, second: Array) -> Array:
        both: Array = first.take(above, axis=0).take(left, axis=1) + second.take(below, axis=0).take(right, axis=1)
        return both

    kept = (np.zeros_like(edge.cost) if edge.memory is None else edge.memory for edge in (one, other))
    memory = None if one.memory is None and other.memory is None else table(*kept)
    return Edge(one.u, one.v, table(one.cost, other.cost), memory, rows, columns)


def _both(first: Ints, second: Ints) -> tuple[Ints, Ints]:
    """Return the distinct pairs of entries, [2, pairs], and for each position the index of its pair."""
    pairs, places = np.unique(np.stack((first, second)), axis=1, return_inverse=True)
    return pairs, places.reshape(-1)


def undominated(now: Problem) -> Problem:
    """Return the problem without dominated choices (see `_undominated`); `now` itself if there are none.

    Nodes are reduced one after the other, and of two equal choices one stays. Time: choices^2 x neighbours' choices.
    """
    for v in range(len(now.kept)):
        keep = _undominated(now, v)
        if not keep.all():
            masks = [np.ones(size, dtype=bool) for size in now.sizes]
            masks[v] = keep
            now = _masked(now, masks)
    return now


def _undominated(now: Problem, v: int) -> Bools:
    """Return a mask of the choices of node v that no other kept choice dominates: [choices].

    A rival dominates a choice if its transient is no larger, and its cost and its memory are no higher even with the
    largest differences that neighbours' choices (for costs: those that the dominated one is compatible with) can add.
    """
    columns = [side(now.edges[p], v) for p, _ in now.around[v]]
    size = len(now.kept[v])
    keep = np.ones(size, dtype=bool)
    order = np.lexsort(
        (np.arange(size), now.nodes[v].memory, now.nodes[v].cost + sum(c[0].min(axis=1) for c in columns))
    )
    for place, c in enumerate(order):
        rivals = order[:place][keep[order[:place]]]
        rivals = rivals[(now.nodes[v].transient[rivals] <= now.nodes[v].transient[c])]
        cost, memory = (
            now.nodes[v].cost[rivals] - now.nodes[v].cost[c],
            now.nodes[v].memory[rivals] - now.nodes[v].memory[c],
        )
        for costs, memories in columns:
            if not len(rivals):
                break
            possible = np.isfinite(costs[c])
            cost = cost + (costs[rivals][:, possible] - costs[c][possible]).max(axis=1)
            memory = memory + (0.0 if memories is None else (memories[rivals] - memories[c]).max(axis=1))
        keep[c] = not bool(np.any((cost <= 0) & (memory <= 0)))
    return keep


def side(pair: Edge, v: int) -> tuple[Array, Array | None]:
    """Return a pair's cost and memory, [choices of v, distinct choices of the other node]; memory None if all zero."""
    at_u = pair.u == v
    mine, others = (pair.rows, pair.columns) if at_u else (pair.columns, pair.rows)
    used = np.unique(others)

    def turned(table: Array) -> Array:
        return (table if at_u else table.T).take(mine, axis=0).take(used, axis=1)

    return turned(pair.cost), None if pair.memory is None else turned(pair.memory)
