"""Better assignments near a given one: every node in turn takes what is best beside the others, until nothing moves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from symconfig.solve.partition.problem import Array
from symconfig.solve.partition.reduce import Pair, Space

ROUNDS = 50  # of all nodes; a descent ends long before
ROUNDING = 1e-12  # relative: sums of the same costs in another order
SHARE = 0.01  # of a node's own transient that counts where another one is as large: else neither would move
COMBINATIONS = 50_000  # of all pairs: up to there, both nodes of a pair move at once


def cost(space: Space, choice: Sequence[int]) -> float:
    nodes = sum(float(c[i]) for c, i in zip(space.cost, choice, strict=True))
    return nodes + sum(float(pair.cost[_place(pair, choice)]) for pair in space.pairs)


def held(space: Space, choice: Sequence[int]) -> float:
    nodes = sum(float(m[i]) for m, i in zip(space.memory, choice, strict=True))
    return nodes + sum(float(p.memory[_place(p, choice)]) for p in space.pairs if p.memory is not None)


def _place(pair: Pair, choice: Sequence[int]) -> tuple[int, int]:
    return int(pair.rows[choice[pair.u]]), int(pair.columns[choice[pair.v]])


def peak(space: Space, choice: Sequence[int]) -> float:
    return held(space, choice) + transient(space, choice)


def transient(space: Space, choice: Sequence[int]) -> float:
    return max(float(t[i]) for t, i in zip(space.transient, choice, strict=True))


def descended(space: Space, choice: Sequence[int], price: float) -> tuple[int, ...]:
    """Descend by cost + price x memory, whatever fits."""
    at = _Place(space, list(choice))
    for _ in range(ROUNDS):
        before = list(at.now)
        for v in range(len(at.now)):
            at.improve(v, at.costs[v] + price * at.memories[v])
        if at.now == before:
            break
    return tuple(at.now)


def fitted(space: Space, choice: Sequence[int]) -> tuple[int, ...] | None:
    """Descend by cost among what fits, after moves that save most bytes for their cost. None: nothing came up that
    fits.
    """
    at = _Place(space, list(choice))
    while peak(space, at.now) > space.limit:
        v, c = _saving(at)
        if c < 0:
            return None
        at.move(v, c)
    jointly = sum(pair.size for pair in space.pairs) <= COMBINATIONS
    for _ in range(ROUNDS):
        before = list(at.now)
        for v in range(len(at.now)):
            at.improve(v, np.where(at.peaks(v) <= space.limit, at.costs[v], np.inf))
        if at.now == before and jointly:
            for pair in space.pairs:
                _move_both(at, pair)
        if at.now == before:
            break
    now = tuple(at.now)
    return now if peak(space, now) <= space.limit and np.isfinite(cost(space, now)) else None


@dataclass(slots=True)
class _Place:
    """An assignment that moves. costs, memories: for each node of its choices, beside the others as they are."""

    space: Space
    now: list[int]
    held: float = 0.0
    transients: Array = field(init=False)
    costs: list[Array] = field(init=False)
    memories: list[Array] = field(init=False)

    def __post_init__(self) -> None:
        self.held = held(self.space, self.now)
        self.transients = np.array([float(t[i]) for t, i in zip(self.space.transient, self.now, strict=True)])
        every = [with_pairs(self.space, self.now, v) for v in range(len(self.now))]
        self.costs, self.memories = [costs for costs, _ in every], [memories for _, memories in every]

    def move(self, v: int, c: int) -> None:
        self.held += float(self.memories[v][c] - self.memories[v][self.now[v]])
        self.now[v] = c
        self.transients[v] = self.space.transient[v][c]
        for _, w in self.space.around[v]:
            self.costs[w], self.memories[w] = with_pairs(self.space, self.now, w)

    def improve(self, v: int, score: Array) -> None:
        best = int(np.argmin(score))
        if score[best] < score[self.now[v]]:
            self.move(v, best)

    def others(self, *nodes: int) -> float:
        """Return the largest transient of all other nodes."""
        transients = self.transients.copy()
        transients[list(nodes)] = 0.0
        return float(transients.max())

    def peaks(self, v: int) -> Array:
        """Return the bytes at the peak with each choice of v."""
        rest = self.held - float(self.memories[v][self.now[v]])
        largest: Array = np.maximum(self.others(v), self.space.transient[v])
        return rest + self.memories[v] + largest


def _saving(at: _Place) -> tuple[int, int]:
    """Return node and choice of the move that costs least for a byte of those in excess; choice -1: none saves any."""
    best, move = np.inf, (0, -1)
    for v, c in enumerate(at.now):
        peaks, costs = at.peaks(v), at.costs[v]
        excess, weighed = peaks[c] - at.space.limit, peaks + SHARE * at.space.transient[v]
        saved = np.minimum(weighed[c] - weighed, excess)
        extra = costs - costs[c] if np.isfinite(costs[c]) else costs
        useful = (saved > 0) & np.isfinite(extra)
        if useful.any():
            rate = np.full(len(costs), np.inf)
            np.divide(extra, saved, out=rate, where=useful)
            most = int(np.argmin(rate))
            if rate[most] < best:
                best, move = float(rate[most]), (v, most)
    return move


def _move_both(at: _Place, pair: Pair) -> None:
    """Move the two nodes of a pair to their best fitting combination, if it costs less."""
    u, v, space, now = pair.u, pair.v, at.space, at.now
    (costs_u, memories_u), (costs_v, memories_v) = with_pairs(space, now, u, v), with_pairs(space, now, v, u)
    costs = costs_u[:, None] + costs_v + pair.full(pair.cost)
    memories = memories_u[:, None] + memories_v + (0.0 if pair.memory is None else pair.full(pair.memory))
    largest = np.maximum(np.maximum.outer(space.transient[u], space.transient[v]), at.others(u, v))
    rest = at.held - memories[now[u], now[v]]
    score = np.where(rest + memories + largest <= space.limit, costs, np.inf)
    best = np.unravel_index(int(np.argmin(score)), score.shape)
    if score[best] < score[now[u], now[v]] - ROUNDING * abs(score[now[u], now[v]]):
        at.move(u, int(best[0]))
        at.move(v, int(best[1]))


def with_pairs(space: Space, now: Sequence[int], v: int, without: int = -1) -> tuple[Array, Array]:
    """Return cost and bytes held of each choice of v, with its pairs but the one with a node left out."""
    costs, memories = space.cost[v].copy(), space.memory[v].copy()
    for p, w in space.around[v]:
        if w != without:
            pair = space.pairs[p]
            costs += pair.line(pair.cost, v, now[w])
            if pair.memory is not None:
                memories += pair.line(pair.memory, v, now[w])
    return costs, memories
