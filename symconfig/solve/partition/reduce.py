"""What is left of a problem: choices that may still be part of an optimum, at most one pair between two nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from symconfig.solve.partition.problem import Array, Problem

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Pair:
    """[choices of u, choices of v], u < v. cost: infinite where they exclude each other. memory: None if all zero."""

    u: int
    v: int
    cost: Array
    memory: Array | None

    def priced(self, price: float) -> Array:
        """In the units of cost, at a price of a byte."""
        return self.cost if self.memory is None or price == 0 else self.cost + price * self.memory


@dataclass(frozen=True, slots=True)
class Space:
    """The choices that are left; all numbers finite but costs of pairs.

    kept: for each node the numbers of its choices in the problem. around: for each node its (pair, other node).
    raised: the largest transient is at least so many bytes, whatever the choices say.
    """

    kept: tuple[Ints, ...]
    cost: tuple[Array, ...]
    memory: tuple[Array, ...]
    transient: tuple[Array, ...]
    pairs: tuple[Pair, ...]
    around: tuple[tuple[tuple[int, int], ...], ...]
    limit: float
    raised: float = 0.0

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(map(len, self.kept))

    @property
    def floor(self) -> float:
        """Bytes that the largest transient has at least."""
        return max(self.raised, *(float(t.min()) for t in self.transient))

    @property
    def room(self) -> float:
        """Bytes that may be held beside the largest transient."""
        return self.limit - self.floor

    def original(self, choice: Sequence[int]) -> tuple[int, ...]:
        return tuple(int(kept[c]) for kept, c in zip(self.kept, choice, strict=True))

    def local(self, choice: Sequence[int]) -> tuple[int, ...] | None:
        """The inverse of `original`; None where a choice is gone."""
        at = [int(np.searchsorted(kept, c)) for kept, c in zip(self.kept, choice, strict=True)]
        present = all(i < len(k) and k[i] == c for i, k, c in zip(at, self.kept, choice, strict=True))
        return tuple(at) if present else None


def space(problem: Problem) -> Space | None:
    """All choices that are not forbidden by an infinite number, alone or with their neighbours; None: none is left."""
    cost = [node.cost.astype(np.float64) for node in problem.nodes]
    memory = [node.memory.astype(np.float64) for node in problem.nodes]
    joined: dict[tuple[int, int], tuple[Array, Array]] = {}
    for edge in problem.edges:
        if edge.u == edge.v:
            cost[edge.u] = cost[edge.u] + np.diagonal(edge.cost)
            memory[edge.u] = memory[edge.u] + np.diagonal(edge.memory)
            continue
        tables = (edge.cost, edge.memory) if edge.u < edge.v else (edge.cost.T, edge.memory.T)
        key = (min(edge.u, edge.v), max(edge.u, edge.v))
        known = joined.get(key)
        joined[key] = (tables[0] + known[0], tables[1] + known[1]) if known else tables
    made = (_pair(u, v, *tables) for (u, v), tables in joined.items())
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
    """With the choices to keep, less those that no choice of a neighbour goes with; None: a node has none left."""
    keep = _supported(old, keep)
    if not all(mask.any() for mask in keep):
        return None
    return old if all(mask.all() for mask in keep) else _cut(old, keep)


def _cut(old: Space, keep: Sequence[Bools]) -> Space:
    def cut(arrays: tuple[Array, ...]) -> tuple[Array, ...]:
        return tuple(array[mask] for array, mask in zip(arrays, keep, strict=True))

    def table(of: Array, pair: Pair) -> Array:
        for axis, mask in enumerate((keep[pair.u], keep[pair.v])):
            of = of if mask.all() else of.take(np.flatnonzero(mask), axis=axis)
        return of

    pairs = tuple(Pair(p.u, p.v, table(p.cost, p), None if p.memory is None else table(p.memory, p)) for p in old.pairs)
    kept = tuple(k[mask] for k, mask in zip(old.kept, keep, strict=True))
    return replace(
        old, kept=kept, cost=cut(old.cost), memory=cut(old.memory), transient=cut(old.transient), pairs=pairs
    )


def _supported(now: Space, keep: Sequence[Bools]) -> list[Bools]:
    """Of the choices to keep those that go with one of every neighbour's: until none goes, before any table is cut."""
    keep = [mask.copy() for mask in keep]
    possible = [np.isfinite(pair.cost) for pair in now.pairs]
    limits = {index for index, table in enumerate(possible) if not table.all()}
    open_ = dict.fromkeys(limits)
    while open_:
        index, _ = open_.popitem()
        pair, table = now.pairs[index], possible[index]
        for node, there in ((pair.u, (table & keep[pair.v]).any(axis=1)), (pair.v, table[keep[pair.u]].any(axis=0))):
            left = keep[node] & there
            if (left != keep[node]).any():
                keep[node] = left
                open_ |= dict.fromkeys(other for other, _ in now.around[node] if other in limits)
    return keep


def _pair(u: int, v: int, cost: Array, memory: Array) -> Pair:
    """An infinite memory is an infinite cost."""
    if not any(memory.strides) and not memory.any():  # one zero for all pairs
        return Pair(u, v, np.ascontiguousarray(cost, dtype=np.float64), None)
    memory = memory.astype(np.float64, copy=False)
    if np.isfinite(memory).all():
        return Pair(u, v, np.ascontiguousarray(cost, dtype=np.float64), memory if memory.any() else None)
    finite = np.isfinite(memory)
    return Pair(u, v, np.where(finite, cost, np.inf), np.where(finite, memory, 0.0))


def undominated(now: Space) -> Space:
    """Without choices that another one of the node replaces in any assignment, at no more cost, memory or transient.

    Node by node, so that of two that replace each other one stays. An order of choices^2 x neighbours' choices.
    """
    for v in range(len(now.kept)):
        keep = _undominated(now, v)
        if not keep.all():
            masks = [np.ones(size, dtype=bool) for size in now.sizes]
            masks[v] = keep
            now = _cut(now, masks)
    return now


def _undominated(now: Space, v: int) -> Bools:
    """A choice goes where one that stays is at most as dear beside every choice of every neighbour."""
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
            cost = cost + _excess(costs, rivals, c)
            memory = memory + (0.0 if memories is None else (memories[rivals] - memories[c]).max(axis=1))
        keep[c] = not bool(np.any((cost <= 0) & (memory <= 0)))
    return keep


def _excess(costs: Array, rivals: Ints, c: int) -> Array:
    """The most that each rival costs more than c beside one choice of the neighbour; where c cannot stand, nothing."""
    possible = np.isfinite(costs[c])
    excess: Array = (costs[rivals][:, possible] - costs[c][possible]).max(axis=1)
    return excess


def side(pair: Pair, v: int) -> tuple[Array, Array | None]:
    """Cost and memory with the choices of v as rows."""
    if pair.u == v:
        return pair.cost, pair.memory
    return pair.cost.T, None if pair.memory is None else pair.memory.T
