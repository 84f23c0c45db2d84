"""The queue of a best-first search: what is most hopeful comes first, and what came at once is made one by one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Generic, TypeVar

import numpy as np

from symconfig.cost.lattice import Array

Node = TypeVar("Node")


@dataclass(slots=True)
class _Together(Generic[Node]):
    """Candidates that came at once, in the order of the queue; each is made when it is its turn.

    count, hope_s, least_s: as of the queue. left_s: the least of `least_s` from there on. at: the next one.
    """

    count: list[int]
    hope_s: list[float]
    least_s: list[float]
    left_s: list[float]
    order: list[int]
    make: Callable[[int], Node]
    at: int = 0


class Queue(Generic[Node]):
    """Candidates that are left, the most hopeful first; of equally hopeful ones, what came first."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, float, Node | _Together[Node]]] = []
        self._count = 0

    def put(self, hope_s: float, least_s: float, node: Node) -> None:
        self._count += 1
        heappush(self._heap, (hope_s, self._count, least_s, node))

    def put_all(self, hope_s: Array, least_s: Array, make: Callable[[int], Node]) -> None:
        """Put candidates in turn; make: returns one of them."""
        if not hope_s.size:
            return
        order = np.argsort(hope_s, kind="stable")
        least = least_s[order]
        left = np.minimum.accumulate(least[::-1])[::-1]
        count = self._count + 1 + order
        self._count += order.size
        hope = hope_s[order]
        self._push(_Together(count.tolist(), hope.tolist(), least.tolist(), left.tolist(), order.tolist(), make))

    def _push(self, some: _Together[Node]) -> None:
        heappush(self._heap, (some.hope_s[some.at], some.count[some.at], some.left_s[some.at], some))

    def get(self, below_s: float) -> Node | None:
        """Return the next candidate that may be below a step time; None: there is none."""
        while self._heap:
            _, _, least_s, node = heappop(self._heap)
            if least_s >= below_s:
                continue
            if not isinstance(node, _Together):
                return node
            at = node.at
            node.at += 1
            if node.at < len(node.order):
                self._push(node)
            if node.least_s[at] < below_s:
                return node.make(node.order[at])
        return None

    @property
    def least_s(self) -> float:
        """Return seconds that nothing left is below."""
        return min((least_s for _, _, least_s, _ in self._heap), default=np.inf)
