"""The least memory that a problem can do with, whatever it costs: what a limit has to reach."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from symconfig.solve.partition.exact import best
from symconfig.solve.partition.price import Known, opened
from symconfig.solve.partition.problem import Array, Problem
from symconfig.solve.partition.reduce import Space, restrict, space
from symconfig.solve.stages.clock import spent_s


@dataclass(frozen=True, slots=True)
class Least:
    """choice: that holds least at the peak, or None where every one is forbidden. bound: none holds less, in bytes;
    the choice's own bytes where it is proved to be the least.
    """

    bound: float
    choice: tuple[int, ...] | None


def least_memory(problem: Problem, limit_s: float | None = None) -> Least:
    """Return the least memory of all choices of finite cost, to a relative 1e-9. Whether the problem's limit is reached
    does not matter.

    What is held beside a largest transient of at most so many bytes is least in a problem without a limit, and the more
    the fewer bytes that are. So one such problem says for a range of transients which of them are worth a look.
    """
    end = np.inf if limit_s is None else spent_s() + limit_s
    held = _held(problem)
    whole = space(held)
    if whole is None:
        return Least(np.inf, None)
    values = np.unique(np.concatenate(whole.transient))
    return _Peaks(replace(problem, memory_limit=np.inf), held, whole, values[values >= whole.floor], end).least()


@dataclass(slots=True)
class _Peaks:
    """values: what the largest transient may be, rising."""

    problem: Problem
    held: Problem
    whole: Space
    values: Array
    end: float
    choice: tuple[int, ...] | None = None
    peak: float = np.inf

    def least(self) -> Least:
        """Return the least. A range (first, past) of values is open as long as what is held at `past` leaves room for
        its first.
        """
        last = len(self.values) - 1
        held, place = self._with_transients(last, 0)
        unsettled, open_ = np.inf, [(0, place, held)]
        while open_:
            first, past, held = open_.pop()
            past = min(past, int(np.searchsorted(self.values, self.peak - held)))
            if first >= past:
                continue
            if spent_s() > self.end:
                unsettled = min(unsettled, held + float(self.values[first]))
                continue
            middle = (first + past) // 2
            least, place = self._with_transients(middle, first)
            open_ += [(middle + 1, past, held), (first, place, least)]
        return Least(min(unsettled, self.peak), self.choice)

    def _with_transients(self, most: int, first: int) -> tuple[float, int]:
        """Return the least held with transients up to a value; from which value on that is so. What comes up is
        offered.

        first: the least value that is asked for; what is held is told exactly where it may matter there.
        """
        part = restrict(self.whole, [t <= self.values[most] for t in self.whole.transient])
        if part is None:
            return np.inf, first
        known = Known(self.held, cost=self.peak - float(self.values[first]), end=self.end)
        bound = best(opened(part), known)
        if known.choice is not None:
            peak = self.problem.memory(known.choice)
            if peak < self.peak and np.isfinite(self.problem.cost(known.choice)):
                self.choice, self.peak = tuple(known.choice), peak
        if bound < known.target:  # out of time
            return bound, most + 1
        if known.choice is None:
            return known.cost, first
        largest = max(float(node.transient[c]) for node, c in zip(self.problem.nodes, known.choice, strict=True))
        return known.cost, int(np.searchsorted(self.values, largest))


def _held(problem: Problem) -> Problem:
    """Return the problem with what is held as the cost, without a limit."""

    def table(cost: Array, memory: Array) -> Array:
        return np.where(np.isfinite(cost), memory, np.inf)

    nodes = tuple(
        replace(node, cost=table(node.cost, node.memory), memory=np.zeros_like(node.memory)) for node in problem.nodes
    )
    edges = tuple(replace(e, cost=table(e.cost, e.memory), memory=np.zeros_like(e.memory)) for e in problem.edges)
    return Problem(nodes, edges)
