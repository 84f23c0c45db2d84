"""What is left of a problem: choices that may still be part of an optimum, at most one pair between two nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from symconfig.solve.partition.problem import Array, Bools, Edge, Ints, Problem


@dataclass(frozen=True, slots=True)
class Space:
    """The choices that are left; all numbers finite but costs of pairs.

    kept: for each node the numbers of its choices in the problem. around: for each node its (pair, other node).
    """

    kept: tuple[Ints, ...]
    cost: tuple[Array, ...]
    memory: tuple[Array, ...]
    transient: tuple[Array, ...]
    pairs: tuple[Edge, ...]
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

    Edges between the same two nodes are summed to one pair with u < v, edges of a node with itself are added to its own
    cost and memory, and pairs without cost and memory are dropped.
    """
    cost, memory = [node.cost for node in problem.nodes], [node.memory for node in problem.nodes]
    joined: dict[tuple[int, int], Edge] = {}
    for edge in problem.edges:
        if edge.u == edge.v:
            cost[edge.u] = cost[edge.u] + edge.cost[edge.rows, edge.columns]
            if edge.memory is not None:
                memory[edge.u] = memory[edge.u] + edge.memory[edge.rows, edge.columns]
            continue
        held = None if edge.memory is None else edge.memory.T
        turned = edge if edge.u < edge.v else Edge(edge.v, edge.u, edge.cost.T, held, edge.columns, edge.rows)
        key = turned.u, turned.v
        joined[key] = _sum(joined[key], turned) if key in joined else turned
    pairs = tuple(edge for edge in joined.values() if edge.memory is not None or edge.cost.any())
    around: list[list[tuple[int, int]]] = [[] for _ in cost]
    for index, pair in enumerate(pairs):
        around[pair.u].append((index, pair.v))
        around[pair.v].append((index, pair.u))
    transient = tuple(node.transient for node in problem.nodes)
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
    """Return the space with the choices in the masks that have a compatible choice at every neighbour, transitively.

    None if a node has no choice left; `old` itself if every choice stays. `old` and `keep` are not changed.
    """
    keep = _supported(old, keep)
    if not all(mask.any() for mask in keep):
        return None
    return old if all(mask.all() for mask in keep) else _masked(old, keep)


def _masked(old: Space, keep: Sequence[Bools]) -> Space:
    """Return a copy of the space with only the choices in the masks; incompatible ones are not removed."""

    def cut(arrays: tuple[Array, ...]) -> tuple[Array, ...]:
        return tuple(array[mask] for array, mask in zip(arrays, keep, strict=True))

    pairs = tuple(pair.cut(keep[pair.u], keep[pair.v]) for pair in old.pairs)
    kept = tuple(k[mask] for k, mask in zip(old.kept, keep, strict=True))
    return replace(
        old, kept=kept, cost=cut(old.cost), memory=cut(old.memory), transient=cut(old.transient), pairs=pairs
    )


def _supported(now: Space, keep: Sequence[Bools]) -> list[Bools]:
    """Return the masks without choices that are incompatible with every kept choice of a neighbour (arc consistency).

    The masks given are not changed. A mask may end up all False.
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
    """Return the sum of two edges with the same u and the same v. Choices share a row or column if they do so in both
    edges. The memory is None if both have none.
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


def undominated(now: Space) -> Space:
    """Return the space without dominated choices (see `_undominated`); `now` itself if there are none.

    Nodes are reduced one after the other, and of two equal choices one stays. Time: choices^2 x neighbours' choices.
    """
    for v in range(len(now.kept)):
        keep = _undominated(now, v)
        if not keep.all():
            masks = [np.ones(size, dtype=bool) for size in now.sizes]
            masks[v] = keep
            now = _masked(now, masks)
    return now


def _undominated(now: Space, v: int) -> Bools:
    """Return the mask of the choices of node v that no other kept choice dominates: [choices].

    A rival dominates a choice if its transient is no larger, and its cost and its memory are no higher even with the
    largest differences that neighbours' choices (for costs: those that the dominated one is compatible with) can add.
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


def side(pair: Edge, v: int) -> tuple[Array, Array | None]:
    """Return a pair's cost and memory, [choices of v, distinct choices of the other node]; memory None if all zero."""
    at_u = pair.u == v
    mine, others = (pair.rows, pair.columns) if at_u else (pair.columns, pair.rows)
    used = np.unique(others)

    def turned(table: Array) -> Array:
        return (table if at_u else table.T).take(mine, axis=0).take(used, axis=1)

    return turned(pair.cost), None if pair.memory is None else turned(pair.memory)
