"""The least memory that a problem can do with, whatever it costs: what a limit has to reach."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from symconfig.solve.partition.exact import best
from symconfig.solve.partition.price import Known, opened
from symconfig.solve.partition.problem import Array, Edge, Problem
from symconfig.solve.partition.reduce import Space, restrict, space
from symconfig.solve.stages.clock import spent_s


@dataclass(frozen=True, slots=True)
class Least:
    """choice: that holds least at the peak, or None where every one is forbidden. bound: none holds less, in bytes;
    the choice's own bytes where it is proved to be the least.
    """

    bound: float
    choice: tuple[int, ...] | None


def least_memory(problem: Problem, start: Sequence[int] | None = None, limit_s: float | None = None) -> Least:
    """Of all choices of finite cost. Whether the limit of the problem is reached does not matter.

    The largest transient lies between two numbers; the least that is held beside it is the optimum of a problem without
    a limit, and says which half of the numbers is worth a look.
    """
    end = np.inf if limit_s is None else spent_s() + limit_s
    held = _held(problem)
    whole = space(held)
    if whole is None:
        return Least(np.inf, None)
    search = _Peaks(replace(problem, memory_limit=np.inf), held, end)
    if start is not None:
        search.offer(start)
    values = np.unique(np.concatenate(whole.transient))
    values = values[values >= whole.floor]
    return search.least(whole, values)


@dataclass(slots=True)
class _Peaks:
    problem: Problem
    held: Problem
    end: float
    choice: tuple[int, ...] | None = None
    peak: float = np.inf

    def offer(self, choice: Sequence[int]) -> None:
        peak = self.problem.memory(choice)
        if peak < self.peak and np.isfinite(self.problem.cost(choice)):
            self.choice, self.peak = tuple(choice), peak

    def least(self, whole: Space, values: Array) -> Least:
        """values: what the largest transient may be, rising."""
        unsettled = np.inf
        open_ = [(0, len(values))]
        while open_:
            first, last = open_.pop()
            part = restrict(whole, [t <= values[last - 1] for t in whole.transient])
            if part is None:
                continue
            bound = self._bound(part, float(values[first]))
            if bound >= self.peak:
                continue
            if last - first == 1 or spent_s() > self.end:
                unsettled = min(unsettled, bound)
                continue
            middle = (first + last) // 2
            open_ += [(first, middle), (middle, last)]
        return Least(min(unsettled, self.peak), self.choice)

    def _bound(self, part: Space, floor: float) -> float:
        """Of the peak in the part, where the largest transient is at least the floor; what is found is offered."""
        known = Known(self.held)
        bound = best(opened(part), known, self.end)
        if known.choice is None:
            return bound + floor
        self.offer(known.choice)
        return min(bound, known.cost) + floor


def _held(problem: Problem) -> Problem:
    """What is held as the cost, without a limit."""

    def table(cost: Array, memory: Array) -> Array:
        return np.where(np.isfinite(cost), memory, np.inf)

    nodes = tuple(
        replace(node, cost=table(node.cost, node.memory), memory=np.zeros_like(node.memory)) for node in problem.nodes
    )
    edges = tuple(Edge(e.u, e.v, table(e.cost, e.memory), np.zeros_like(e.memory)) for e in problem.edges)
    return Problem(nodes, edges)
