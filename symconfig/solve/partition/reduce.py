"""What is left of a problem: choices that may still be part of an optimum, at most one pair between two nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from symconfig.solve.partition.problem import Array, Edge, Ints, Problem

Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Pair:
    """Tables of two nodes' choices, u < v; choices that the pair cannot tell apart may share a row or a column.

    cost: infinite where they exclude each other. memory: None if all zero. rows, columns: of each choice of u and of v.
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
        """Return the row and column of the pair's tables for an assignment of all nodes."""
        return int(self.rows[choice[self.u]]), int(self.columns[choice[self.v]])

    def priced(self, price: float) -> Array:
        """Return the table of cost + price x memory."""
        return self.cost if self.memory is None or price == 0 else self.cost + price * self.memory

    def line(self, v: int, other: int, price: float) -> Array:
        """Return cost + price x memory for each choice of v, given the index of the other node's choice."""
        at_u = v == self.u
        mine, line = (self.rows, np.s_[:, self.columns[other]]) if at_u else (self.columns, np.s_[self.rows[other]])
        cost = self.cost[line].take(mine)
        return cost if self.memory is None or price == 0 else cost + price * self.memory[line].take(mine)

    def cut(self, of_u: Bools, of_v: Bools) -> Pair:
        """Return the pair with only the choices in two masks; table lines that no remaining choice uses are removed."""
        rows, columns = self.rows[of_u], self.columns[of_v]
        (above, first), (left, second) = (np.unique(at, return_inverse=True) for at in (rows, columns))
        if len(above) * len(left) == self.cost.size:
            return replace(self, rows=rows, columns=columns)
        cost, memory = (
            None if of is None else of.take(above, axis=0).take(left, axis=1) for of in (self.cost, self.memory)
        )
        assert cost is not None
        return Pair(self.u, self.v, cost, memory, first.reshape(-1), second.reshape(-1))


@dataclass(frozen=True, slots=True)
class Space:
    """The choices that are left; all numbers finite but costs of pairs.

    kept: for each node the numbers of its choices in the problem. around: for each node its (pair, other node).
    """

    kept: tuple[Ints, ...]
    cost: tuple[Array, ...]
    memory: tuple[Array, ...]
    transient: tuple[Array, ...]
    pairs: tuple[Pair, ...]
    around: tuple[tuple[tuple[int, int], ...], ...]
    limit: float

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(map(len, self.kept))

    @property
    def entries(self) -> int:
        """Return the number of pairs of choices, summed over all pairs of nodes."""
        return sum(pair.size for pair in self.pairs)

    @property
    def least_transient(self) -> float:
        """Return a lower bound in bytes of the largest transient: the maximum over nodes of their smallest."""
        return max(float(t.min()) for t in self.transient)

    def held(self, choice: Sequence[int]) -> float:
        """Return the bytes held by an assignment, transients excluded."""
        nodes = sum(float(m[i]) for m, i in zip(self.memory, choice, strict=True))
        return nodes + sum(float(p.memory[p.place(choice)]) for p in self.pairs if p.memory is not None)

    def peak(self, choice: Sequence[int]) -> float:
        """Return the bytes at the peak: those held and the largest transient."""
        return self.held(choice) + max(float(t[i]) for t, i in zip(self.transient, choice, strict=True))

    def original(self, choice: Sequence[int]) -> tuple[int, ...]:
        return tuple(int(kept[c]) for kept, c in zip(self.kept, choice, strict=True))


def space(problem: Problem) -> Space | None:
    """Return the choices that no infinite cost, memory or neighbour forbids, or None if a node has none left.

    Edges between the same two nodes are summed to one pair, edges of a node with itself are added to its own costs, and
    pairs of zeros are dropped.
    """
    cost = [node.cost.astype(np.float64) for node in problem.nodes]
    memory = [node.memory.astype(np.float64) for node in problem.nodes]
    joined: dict[tuple[int, int], Edge] = {}
    for edge in problem.edges:
        if edge.u == edge.v:
            every = [edge.place((c,) * len(cost)) for c in range(len(cost[edge.u]))]
            cost[edge.u] = cost[edge.u] + np.array([edge.cost[at] for at in every])
            memory[edge.u] = memory[edge.u] + np.array([edge.memory[at] for at in every])
            continue
        turned = edge if edge.u < edge.v else Edge(edge.v, edge.u, edge.cost.T, edge.memory.T, edge.columns, edge.rows)
        key = turned.u, turned.v
        joined[key] = _sum(joined[key], turned) if key in joined else turned
    made = (_pair(edge) for edge in joined.values())
    pairs = tuple(pair for pair in made if pair.memory is not None or pair.cost.any())
    around: list[list[tuple[int, int]]] = [[] for _ in cost]
    for index, pair in enumerate(pairs):
        around[pair.u].append((index, pair.v))
        around[pair.v].append((index, pair.u))
    transient = tuple(node.transient.astype(np.float64) for node in problem.nodes)
    finite = [np.isfinite(c) & np.isfinite(m) & np.isfinite(t) for c, m, t in zip(cost, memory, transient, strict=True)]
    kept = tuple(np.arange(len(c)) for c in cost)
    whole = Space(
        kept=kept,
        cost=tuple(cost),
        memory=tuple(memory),
        transient=transient,
        pairs=pairs,
        around=tuple(map(tuple, around)),
        limit=problem.memory_limit,
    )
    return restrict(whole, finite)


def restrict(old: Space, keep: Sequence[Bools]) -> Space | None:
    """Return the space with the choices in the masks that have a compatible choice at every neighbour.

    None if a node has no choice left; `old` itself if every choice stays.
    """
    keep = _supported(old, keep)
    if not all(mask.any() for mask in keep):
        return None
    return old if all(mask.all() for mask in keep) else _cut(old, keep)


def _cut(old: Space, keep: Sequence[Bools]) -> Space:
    """Return the space with only the choices in the masks, whether or not neighbours support them."""

    def cut(arrays: tuple[Array, ...]) -> tuple[Array, ...]:
        return tuple(array[mask] for array, mask in zip(arrays, keep, strict=True))

    pairs = tuple(pair.cut(keep[pair.u], keep[pair.v]) for pair in old.pairs)
    kept = tuple(k[mask] for k, mask in zip(old.kept, keep, strict=True))
    return replace(
        old, kept=kept, cost=cut(old.cost), memory=cut(old.memory), transient=cut(old.transient), pairs=pairs
    )


def _supported(now: Space, keep: Sequence[Bools]) -> list[Bools]:
    """Return the masks without choices that are incompatible with every choice of a neighbour (arc consistency).

    The masks given are not changed.
    """
    keep = [mask.copy() for mask in keep]
    finite = ((index, np.isfinite(pair.cost)) for index, pair in enumerate(now.pairs))
    limits = {index: table for index, table in finite if not table.all()}
    open_ = dict.fromkeys(limits)
    while open_:
        index, _ = open_.popitem()
        pair, table = now.pairs[index], limits[index]
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
    """Return the sum of two edges between the same nodes; choices share a line if they do so in both edges."""
    (above, below), rows = _both(one.lines[0], other.lines[0])
    (left, right), columns = _both(one.lines[1], other.lines[1])

    def table(first: Array, second: Array) -> Array:
        both: Array = first.take(above, axis=0).take(left, axis=1) + second.take(below, axis=0).take(right, axis=1)
        return both

    return Edge(one.u, one.v, table(one.cost, other.cost), table(one.memory, other.memory), rows, columns)


def _both(first: Ints, second: Ints) -> tuple[Ints, Ints]:
    """Return the distinct pairs of entries, [2, pairs], and for each position the index of its pair."""
    pairs, places = np.unique(np.stack((first, second)), axis=1, return_inverse=True)
    return pairs, places.reshape(-1)


def _pair(edge: Edge) -> Pair:
    """Return an edge as a pair: infinite memory becomes infinite cost, and a memory table of zeros None."""
    cost, memory = np.ascontiguousarray(edge.cost, dtype=np.float64), edge.memory.astype(np.float64, copy=False)
    finite = np.isfinite(memory)
    if not finite.all():
        cost, memory = np.where(finite, cost, np.inf), np.where(finite, memory, 0.0)
    return Pair(edge.u, edge.v, cost, memory if memory.any() else None, *edge.lines)


def undominated(now: Space) -> Space:
    """Return the space without dominated choices: another choice of the node costs and holds no more in any assignment.

    Nodes are reduced one after the other, so one of two equal choices stays. Time: choices^2 x neighbours' choices.
    """
    for v in range(len(now.kept)):
        keep = _undominated(now, v)
        if not keep.all():
            masks = [np.ones(size, dtype=bool) for size in now.sizes]
            masks[v] = keep
            now = _cut(now, masks)
    return now


def _undominated(now: Space, v: int) -> Bools:
    """Return the mask of a node's choices that no remaining choice dominates.

    A choice dominates if, summed over neighbours' worst cases, it has no higher cost or memory, and no larger
    transient.
    """
    columns = [side(now.pairs[p], v) for p, _ in now.around[v]]
    size = len(now.kept[v])
    keep = np.ones(size, dtype=bool)
    order = np.lexsort((np.arange(size), now.memory[v], now.cost[v] + sum(c[0].min(axis=1) for c in columns)))
    for place, c in enumerate(order):
        rivals = order[:place][keep[order[:place]]]
        rivals = rivals[(now.transient[v][rivals] <= now.transient[v][c])]
        cost, memory = now.cost[v][rivals] - now.cost[v][c], now.memory[v][rivals] - now.memory[v][c]
        for costs, memories in columns:
            if not len(rivals):
                break
            possible = np.isfinite(costs[c])
            cost = cost + (costs[rivals][:, possible] - costs[c][possible]).max(axis=1)
            memory = memory + (0.0 if memories is None else (memories[rivals] - memories[c]).max(axis=1))
        keep[c] = not bool(np.any((cost <= 0) & (memory <= 0)))
    return keep


def side(pair: Pair, v: int) -> tuple[Array, Array | None]:
    """Return a pair's cost and memory, [choices of v, distinct choices of the other node]; memory None if all zero."""
    at_u = pair.u == v
    mine, others = (pair.rows, pair.columns) if at_u else (pair.columns, pair.rows)
    used = np.unique(others)

    def turned(table: Array) -> Array:
        return (table if at_u else table.T).take(mine, axis=0).take(used, axis=1)

    return turned(pair.cost), None if pair.memory is None else turned(pair.memory)
