"""Better assignments near a given one: every node in turn takes what is best beside the others, until nothing moves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from symconfig.solve.partition.problem import Array
from symconfig.solve.partition.reduce import Pair, Space, side

ROUNDS = 50  # of all nodes; a descent ends long before
ROUNDING = 1e-12  # relative: sums of the same costs in another order
COMBINATIONS = 50_000  # of all pairs: up to there, both nodes of a pair move at once


def cost(space: Space, choice: Sequence[int]) -> float:
    nodes = sum(float(c[i]) for c, i in zip(space.cost, choice, strict=True))
    return nodes + sum(float(pair.cost[choice[pair.u], choice[pair.v]]) for pair in space.pairs)


def held(space: Space, choice: Sequence[int]) -> float:
    nodes = sum(float(m[i]) for m, i in zip(space.memory, choice, strict=True))
    return nodes + sum(float(p.memory[choice[p.u], choice[p.v]]) for p in space.pairs if p.memory is not None)


def peak(space: Space, choice: Sequence[int]) -> float:
    return held(space, choice) + transient(space, choice)


def transient(space: Space, choice: Sequence[int]) -> float:
    return max(float(t[i]) for t, i in zip(space.transient, choice, strict=True))


def descended(space: Space, choice: Sequence[int], price: float) -> tuple[int, ...]:
    """By cost + price x memory, whatever fits."""
    now = list(choice)
    for _ in range(ROUNDS):
        before = list(now)
        for v in range(len(now)):
            costs, memories = beside(space, now, v)
            score = costs + price * memories
            best = int(np.argmin(score))
            if score[best] < score[now[v]]:
                now[v] = best
        if now == before:
            break
    return tuple(now)


def fitted(space: Space, choice: Sequence[int]) -> tuple[int, ...] | None:
    """By cost among what fits, after moves that save most bytes for their cost. None: nothing was found to fit."""
    now = list(choice)
    while peak(space, now) > space.limit:
        v, c = _saving(space, now)
        if c < 0:
            return None
        now[v] = c
    jointly = sum(pair.cost.size for pair in space.pairs) <= COMBINATIONS
    for _ in range(ROUNDS):
        before = list(now)
        for v in range(len(now)):
            costs, peaks = _moves(space, now, v)
            score = np.where(peaks <= space.limit, costs, np.inf)
            best = int(np.argmin(score))
            if score[best] < score[now[v]]:
                now[v] = best
        if now == before and jointly:
            for pair in space.pairs:
                _move_both(space, now, pair)
        if now == before:
            break
    return tuple(now) if peak(space, now) <= space.limit and np.isfinite(cost(space, now)) else None


def _move_both(space: Space, now: list[int], pair: Pair) -> None:
    """The two nodes of a pair to their best fitting combination, if it costs less."""
    u, v = pair.u, pair.v
    (costs_u, memories_u), (costs_v, memories_v) = beside(space, now, u, v), beside(space, now, v, u)
    costs = costs_u[:, None] + costs_v + pair.cost
    memories = memories_u[:, None] + memories_v + (0.0 if pair.memory is None else pair.memory)
    others = [float(t[i]) for w, (t, i) in enumerate(zip(space.transient, now, strict=True)) if w not in (u, v)]
    largest = np.maximum(np.maximum.outer(space.transient[u], space.transient[v]), max(others, default=0.0))
    rest = held(space, now) - memories[now[u], now[v]]
    score = np.where(rest + memories + largest <= space.limit, costs, np.inf)
    best = np.unravel_index(int(np.argmin(score)), score.shape)
    if score[best] < score[now[u], now[v]] - ROUNDING * abs(score[now[u], now[v]]):
        now[u], now[v] = int(best[0]), int(best[1])


def _saving(space: Space, now: Sequence[int]) -> tuple[int, int]:
    """Node and choice of the move that costs least for a byte of those in excess; choice -1: none saves any."""
    best, move = np.inf, (0, -1)
    for v in range(len(now)):
        costs, peaks = _moves(space, now, v)
        excess = peaks[now[v]] - space.limit
        saved = np.minimum(peaks[now[v]] - peaks, excess)
        extra = costs - costs[now[v]] if np.isfinite(costs[now[v]]) else costs
        useful = (saved > 0) & np.isfinite(extra)
        if useful.any():
            rate = np.full(len(costs), np.inf)
            np.divide(extra, saved, out=rate, where=useful)
            c = int(np.argmin(rate))
            if rate[c] < best:
                best, move = float(rate[c]), (v, c)
    return move


def _moves(space: Space, now: Sequence[int], v: int) -> tuple[Array, Array]:
    """Cost beside the others and bytes at the peak of each choice of v."""
    costs, memories = beside(space, now, v)
    others = [float(t[i]) for w, (t, i) in enumerate(zip(space.transient, now, strict=True)) if w != v]
    rest = held(space, now) - memories[now[v]]
    return costs, rest + memories + np.maximum(max(others, default=0.0), space.transient[v])


def beside(space: Space, now: Sequence[int], v: int, without: int = -1) -> tuple[Array, Array]:
    """Cost and bytes held of each choice of v, with its pairs but the one with a node left out."""
    costs, memories = space.cost[v].copy(), space.memory[v].copy()
    for p, w in space.around[v]:
        if w != without:
            table, extra = side(space.pairs[p], v)
            costs += table[:, now[w]]
            if extra is not None:
                memories += extra[:, now[w]]
    return costs, memories
