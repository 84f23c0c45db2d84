"""Lower bounds by messages along pairs: sequential tree-reweighted message passing, for one price of a byte.

Each pair moves part of the cost to the choices of its two nodes and keeps no less than zero, so that the sum of all
nodes' least is a bound; a sweep visits the nodes in order and hands on what each has gathered, and no bound gets worse.
On trees two sweeps are exact. Kolmogorov, Convergent Tree-Reweighted Message Passing, PAMI 2006.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from symconfig.solve.partition.problem import Array
from symconfig.solve.partition.reduce import Bools, Space, restrict


@dataclass(slots=True)
class Messages:
    """Messages that each pair has moved to its first and second node, [choices]. Changed by sweeps; a bound at every
    price.
    """

    first: list[Array]
    second: list[Array]

    def to(self, space: Space, pair: int, v: int) -> Array:
        return self.first[pair] if space.pairs[pair].u == v else self.second[pair]

    def put(self, space: Space, pair: int, v: int, message: Array) -> None:
        (self.first if space.pairs[pair].u == v else self.second)[pair] = message


@dataclass(frozen=True, slots=True)
class Swept:
    """bound: of the sum. choice: one good assignment. bounds: with each choice of each node, true after another sweep
    the other way only."""

    bound: float
    choice: tuple[int, ...]
    bounds: tuple[Array, ...]


def silent(space: Space) -> Messages:
    return Messages(
        [np.zeros(len(space.kept[p.u])) for p in space.pairs], [np.zeros(len(space.kept[p.v])) for p in space.pairs]
    )


@dataclass(frozen=True, slots=True)
class Priced:
    """A space with one number for every choice and pair: cost + price x memory, or (price None) memory alone. Tables
    are made when they are asked for: all of them at once are as large as the problem."""

    space: Space
    unary: tuple[Array, ...]
    price: float | None

    def table(self, number: int) -> Array:
        """Return the table of a pair, as the pair has it."""
        pair = self.space.pairs[number]
        return self._of(pair.cost, pair.memory)

    def line(self, number: int, v: int, other: int) -> Array:
        """Return what the pair adds to each choice of v beside a choice of the other node."""
        pair = self.space.pairs[number]
        memory = None if pair.memory is None else pair.line(pair.memory, v, other)
        return self._of(pair.line(pair.cost, v, other), memory)

    def _of(self, cost: Array, memory: Array | None) -> Array:
        if self.price is None:
            return np.where(np.isfinite(cost), 0.0 if memory is None else memory, np.inf)
        return cost if memory is None or self.price == 0 else cost + self.price * memory


def priced(space: Space, price: float) -> Priced:
    unary = tuple(c + price * m if price else c for c, m in zip(space.cost, space.memory, strict=True))
    return Priced(space, unary, price)


def weighed(space: Space) -> Priced:
    """Return the space with memory as the cost."""
    return Priced(space, space.memory, None)


def sweep(of: Priced, messages: Messages, forward: bool) -> Swept:
    """Visit each node once."""
    space, count = of.space, len(of.unary)
    total = [of.unary[v].copy() for v in range(count)]
    for v in range(count):
        for p, _ in space.around[v]:
            total[v] += messages.to(space, p, v)
    least = [float(t.min()) for t in total]
    bounds = list(total)
    choice = [0] * count
    for v in range(count) if forward else range(count - 1, -1, -1):
        ahead = [(p, w) for p, w in space.around[v] if (w > v) == forward]
        behind = [(p, w) for p, w in space.around[v] if (w > v) != forward]
        choice[v] = _choose(of, messages, v, ahead, behind, choice)
        bounds[v] = total[v] + (sum(least) - least[v])
        share = total[v] / max(len(ahead), len(behind), 1)
        for p, w in ahead:
            total[v] = total[v] - share
            total[w] = total[w] + _send(of, messages, p, v, w, share)
            least[w] = float(total[w].min())
        least[v] = float(total[v].min())
    return Swept(sum(least), tuple(choice), tuple(bounds))


def _send(of: Priced, messages: Messages, p: int, v: int, w: int, share: Array) -> Array:
    """Move a share of v into the pair, and all that the pair can spare to w. Returns how much w has gained."""
    mine, old = messages.to(of.space, p, v) - share, messages.to(of.space, p, w)
    table, pair = of.table(p), of.space.pairs[p]
    there, here = (pair.rows, pair.columns) if pair.u == v else (pair.columns, pair.rows)
    most = np.full(table.shape[0 if pair.u == v else 1], -np.inf)
    np.maximum.at(most, there, mine)  # of choices that the pair cannot tell apart the one that has moved most
    new: Array = (table - most[:, None]).min(axis=0) if pair.u == v else (table - most).min(axis=1)
    new = new.take(here)
    messages.put(of.space, p, v, mine)
    messages.put(of.space, p, w, new)
    return new - old


def _choose(
    of: Priced,
    messages: Messages,
    v: int,
    ahead: Sequence[tuple[int, int]],
    behind: Sequence[tuple[int, int]],
    choice: Sequence[int],
) -> int:
    """Choose the best beside what has been chosen behind, by the messages from ahead."""
    score = of.unary[v].copy()
    for p, _ in ahead:
        score += messages.to(of.space, p, v)
    for p, w in behind:
        score += of.line(p, v, choice[w])
    return int(np.argmin(score))


def narrowed(space: Space, messages: Messages, keep: Sequence[Bools]) -> tuple[Space, Messages] | None:
    """Return the space with the choices to keep (and that their neighbours support), and its messages; None: nothing
    left.
    """
    left = restrict(space, keep)
    if left is None:
        return None
    if left.sizes == space.sizes:
        return left, messages
    at = [np.searchsorted(old, new) for old, new in zip(space.kept, left.kept, strict=True)]
    return left, Messages(
        [m[at[p.u]] for m, p in zip(messages.first, space.pairs, strict=True)],
        [m[at[p.v]] for m, p in zip(messages.second, space.pairs, strict=True)],
    )
