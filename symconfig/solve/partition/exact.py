"""The optimum of a partition problem, proved, or the incumbent with a true lower bound.

The mixed-integer programme of a whole problem has a million variables for pairs, and nearly all of them cost more than
the incumbent. So a lower bound of every choice comes first: the Lagrangian relaxation of the memory limit, by
sequential tree-reweighted message passing (Kolmogorov, Convergent Tree-Reweighted Message Passing, PAMI 2006). Choices
whose bound is not below a ceiling are pruned, dominated ones dropped, and the programme of the rest is small
(`symconfig.solve.partition.milp`). Its optimum is the problem's if it is below the ceiling; else the ceiling is a lower
bound, and rises, at last to the incumbent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from symconfig.solve.partition import milp
from symconfig.solve.partition.milp import spent_s
from symconfig.solve.partition.problem import Array, Bools, Problem, Solution, restrict, simplified, undominated

CLOSE = 5e-10  # relative: no more than this may be saved where nothing better is said to exist
CEILINGS = (0.0002, 0.001, 0.005, 0.03, 0.2, np.inf)  # of the lower bound: how far above it they are
ENTRIES = 150_000  # of all tables of a programme: it takes the solvers some seconds
ROUNDS = 40  # of two sweeps each
GAIN = 0.02  # of the gap: less than that twice, and more sweeps are not worth their time
GUESS = 0.01  # of the bound: the first price, of all bytes held
LOWEST = 1e-4  # of the bound: a price of all bytes held below which no price is looked for
HIGHEST = 1e4  # of the bound: a price of all bytes held above which no price is looked for: sums would lose digits
CLOSED = 1.2  # quotient of two prices, between which none is looked for


def solve(
    problem: Problem, start: Sequence[int] | None = None, limit_s: float | None = None, below: float = np.inf
) -> Solution:
    """Return the optimum of a problem, or the best choice found (the incumbent) with a lower bound of the cost.

    It is not proved if `limit_s` CPU seconds run out (None: no limit) or the reduced problem is too large. Only choices
    that cost less than `below` are searched; if none is found, choice is None, the cost infinite, the bound at most
    `below`, and `optimal` says that none is feasible below it. The bound is infinite if a node has no finite choice.
    start: an initial choice, ignored if it does not fit.
    """
    whole = simplified(problem)
    if whole is None:
        return Solution(None, np.inf, np.inf, True)
    known = _Incumbent(problem, below, np.inf if limit_s is None else spent_s() + limit_s)
    if start is not None:
        known.offer(start)
    bound = _search(_Relaxation(whole), known)
    proved = bound >= known.target
    if known.choice is None:
        return Solution(None, np.inf, min(bound, below), proved)
    return Solution(known.choice, known.cost, known.cost if proved else min(bound, known.cost), proved)


@dataclass(slots=True)
class _Incumbent:
    """The cheapest feasible choice, or without one the cost to be below. end: time limit as a value of `spent_s`."""

    problem: Problem
    cost: float
    end: float
    choice: tuple[int, ...] | None = None

    @property
    def target(self) -> float:
        """Return the cost below which a choice improves the incumbent by more than CLOSE; infinite without one."""
        return self.cost - CLOSE * abs(self.cost) if self.cost < np.inf else np.inf

    @property
    def left_s(self) -> float:
        return self.end - spent_s()

    def offer(self, choice: Sequence[int]) -> float:
        """Make a choice the incumbent if it fits and costs less. Return its cost, infinite if it does not fit."""
        cost = self.problem.cost(choice) if self.problem.fits(choice) else np.inf
        if cost < self.cost:
            self.choice, self.cost = tuple(choice), cost
        return cost


def _search(relaxed: _Relaxation, known: _Incumbent) -> float:
    """Return a lower bound on any choice's cost, infinite if none below `known.target` is left; may improve `known`.

    Ceilings rise from one to the next: choices whose bound reaches the ceiling are pruned, and the mixed-integer
    programme of the rest solved. Returns early with the bound so far at the time limit, if the programme has more than
    ENTRIES pairs of choices, or if its solver does not finish.
    """
    whole = relaxed.problem
    costs = [*(node.cost for node in whole.nodes), *(edge.cost for edge in whole.edges)]
    dearest = sum(float(cost.max(where=np.isfinite(cost), initial=0.0)) for cost in costs)
    # where nothing fits, the bound rises with the price above what any choice costs
    if not relaxed.raise_bound(min(known.target, 2 * dearest + 1.0), known):
        return np.inf
    base = bound = relaxed.bound
    for share in CEILINGS:
        ceiling = min(known.target, base + share * abs(base) if share < np.inf else np.inf)
        part = relaxed.copy()
        if known.left_s <= 0:
            return bound
        if part.raise_bound(ceiling, known):
            left = undominated(part.problem)
            if sum(edge.size for edge in left.edges) > ENTRIES:
                return bound
            answer = milp.solve(left, known.left_s)
            cost = known.offer(left.original(answer.choice)) if answer.choice is not None else np.inf
            if not answer.proved:
                return bound
            if cost < ceiling:
                return np.inf
        bound = max(bound, ceiling)
        if bound >= known.target:
            return np.inf
    return bound


@dataclass(slots=True)
class _Relaxation:
    """A problem with a price on bytes held in place of the memory limit.

    messages: of each pair, the cost that it has moved to the choices of its first and of its second node. bound: no
    choice that fits costs less. price: at which the bound was found. low, high: prices at which the best choice holds
    too much, and at which it fits.
    """

    problem: Problem
    messages: list[list[Array]] = field(default_factory=list)
    price: float = 0.0
    bound: float = -np.inf
    low: float = 0.0
    high: float = np.inf

    def __post_init__(self) -> None:
        if not self.messages:
            sizes = self.problem.sizes
            self.messages = [[np.zeros(sizes[pair.u]), np.zeros(sizes[pair.v])] for pair in self.problem.edges]

    def copy(self) -> _Relaxation:
        return replace(self, messages=[list(both) for both in self.messages])

    def raise_bound(self, ceiling: float, known: _Incumbent) -> bool:
        """Raise the lower bound and prune choices whose bound reaches `ceiling`; return False if none is left below it.

        Each round sweeps both ways at one price of bytes held, then raises or lowers the price by whether the sweep's
        choice fits. Stops after ROUNDS, when two rounds gain little, when one choice per node is left, at too high a
        price or at the time limit. Changes the problem, messages and prices, and offers each sweep's choice to the
        incumbent `known`.
        """
        stalled, price = 0, self.price
        for _ in range(ROUNDS):
            before, sizes, spare = (
                self.bound,
                sum(self.problem.sizes),
                self.problem.memory_limit - self.problem.least_transient,
            )
            self._sweep(price, True)
            least, choice, bounds = self._sweep(price, False)
            known.offer(self.problem.original(choice))
            bound = least - (price * spare if price else 0.0)
            if bound > self.bound:
                self.bound, self.price = bound, price
            if price:
                larger = [np.maximum(self.problem.least_transient, node.transient) for node in self.problem.nodes]
                bounds = [b - price * (self.problem.memory_limit - t) for b, t in zip(bounds, larger, strict=True)]
            held = self.problem.held(choice)
            if self.bound >= ceiling or not self._narrow([each < ceiling for each in bounds]):
                return False
            if max(self.problem.sizes) == 1 or price * held > HIGHEST * abs(self.bound) or known.left_s <= 0:
                break
            if held > spare:
                self.low = max(self.low, price)
            else:
                self.high = min(self.high, price)
            if self.high == np.inf:
                price = price * 4 or GUESS * abs(bound) / held
            elif self.low == 0 < self.high and self.high * held > LOWEST * abs(bound):
                price = self.high / 4
            elif self.low > 0 and self.high > CLOSED * self.low:
                price = (self.low * self.high) ** 0.5
            else:
                gap = min(ceiling, known.cost, (1 + GAIN) * abs(self.bound)) - self.bound
                few = self.bound - before < GAIN * gap and sum(self.problem.sizes) > 0.9 * sizes
                stalled, price = stalled + few, self.price
                if stalled == 2:
                    break
        return True

    def _narrow(self, keep: Sequence[Bools]) -> bool:
        """Keep only the marked choices, [choices] of each node, that have a compatible one at every neighbour.

        Return False, with the problem unchanged, if a node would have none left; else True, also if all stay. The
        problem and the messages are replaced.
        """
        left = restrict(self.problem, keep)
        if left is None:
            return False
        if left is not self.problem:
            at = [np.searchsorted(old, new) for old, new in zip(self.problem.kept, left.kept, strict=True)]
            for pair, both in zip(left.edges, self.messages, strict=True):
                both[:] = both[0][at[pair.u]], both[1][at[pair.v]]
            self.problem = left
        return True

    def _sweep(self, price: float, forward: bool) -> tuple[float, tuple[int, ...], list[Array]]:
        """Pass messages through all nodes once, in rising order if `forward`, else falling; changes the messages.

        Return a lower bound of cost + price x bytes held, a greedy choice of every node (index in the problem), and for
        each node a lower bound of each choice, [choices], valid if the preceding sweep was in the opposite direction at
        this price.
        """
        problem, order = self.problem, range(len(self.problem.nodes))
        own = [node.cost + price * node.memory if price else node.cost for node in problem.nodes]
        gathered = [sum(self.messages[p][problem.edges[p].u != v] for p, _ in problem.around[v]) for v in order]
        total = [cost + more for cost, more in zip(own, gathered, strict=True)]
        least = [float(t.min()) for t in total]
        bounds, chosen = list(total), [0] * len(total)
        for v in order if forward else reversed(order):
            ahead = [(p, w) for p, w in problem.around[v] if (w > v) == forward]
            score = own[v].copy()
            for p, w in problem.around[v]:
                if (w > v) == forward:
                    score += self.messages[p][problem.edges[p].u != v]
                else:
                    score += problem.edges[p].line(v, chosen[w], price)
            chosen[v] = int(np.argmin(score))
            bounds[v] = total[v] + (sum(least) - least[v])
            share = total[v] / max(len(ahead), len(problem.around[v]) - len(ahead), 1)
            for p, w in ahead:
                total[v] = total[v] - share
                total[w] = total[w] + self._send(p, v, share, price)
                least[w] = float(total[w].min())
            least[v] = float(total[v].min())
        return sum(least), tuple(chosen), bounds

    def _send(self, p: int, v: int, share: Array, price: float) -> Array:
        """Move a share of node v's cost, [choices of v], into pair p, and as much of it as possible to its other node.

        Changes both messages of the pair. Return what each choice of the other node gains: [choices].
        """
        pair, table, at = self.problem.edges[p], self.problem.edges[p].priced(price), int(self.problem.edges[p].u != v)
        mine, old = self.messages[p][at] - share, self.messages[p][1 - at]
        there, here = (pair.columns, pair.rows) if at else (pair.rows, pair.columns)
        table = table if at else table.T  # [choices of the other, of v]
        most = np.full(table.shape[1], -np.inf)
        np.maximum.at(most, there, mine)  # of choices that the pair cannot tell apart the one that has moved most
        new: Array = (table - most).min(axis=1).take(here)
        self.messages[p][at], self.messages[p][1 - at] = mine, new
        return new - old
