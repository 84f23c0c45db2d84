"""The objective `symtensor`: gamma trades memory against communication and is adapted until the plan fits.

For every gamma on a grid the lowest relative cost of all partitions is known, and the best partitions that fit. A
large gamma asks for communication only; it is lowered, so that memory counts for more, until the best partition fits.
Where that happens at no gamma (d_i / s_i is no measure of bytes), the gamma is taken at which fitting costs least.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from symconfig.cost.lattice import Array
from symconfig.solve.prospect import Prospect

GRID = tuple(2.0**power for power in range(30, -31, -1))


@dataclass(slots=True)
class Gammas:
    """The lowest cost of each gamma, and its `top` partitions that fit, as (cost, order of adding, candidate)."""

    top: int
    lowest: list[float] = field(default_factory=lambda: [float("inf")] * len(GRID))
    best: list[list[tuple[float, int, Prospect]]] = field(default_factory=lambda: [[] for _ in GRID])
    seen: int = 0

    def wanted(self, memory: Array, communication: Array, fits: Array) -> list[tuple[int, int, float]]:
        """Return (gamma's index, point, cost) of the points that are among the best so far; updates the lowest costs.

        memory, communication, fits: [n]; points that do not fit count for the lowest cost only.
        """
        result = []
        for index, gamma in enumerate(GRID):
            costs = memory / gamma + communication
            self.lowest[index] = min(self.lowest[index], float(costs.min()))
            costs = np.where(fits, costs, np.inf)
            limit = self.best[index][-1][0] if len(self.best[index]) >= self.top else np.inf
            for point in np.argsort(costs, kind="stable")[: self.top]:
                if costs[point] < limit:
                    result.append((index, int(point), float(costs[point])))
        return result

    def add(self, index: int, cost: float, prospect: Prospect) -> None:
        self.seen += 1
        row = self.best[index]
        row.append((cost, self.seen, prospect))
        row.sort(key=lambda item: item[:2])
        del row[self.top :]

    def chosen(self) -> tuple[float, list[Prospect]] | None:
        """Return (gamma, its partitions that fit, cheapest first); None if nothing fits.

        The gamma is the one with the least ratio of its best cost to the lowest; of equal ones the largest.
        """
        rows = [index for index, row in enumerate(self.best) if row]
        if not rows:
            return None
        # Ratio of the best cost that fits to the lowest cost; ties go to the larger gamma, which comes first.
        loss = {index: self.best[index][0][0] / self.lowest[index] if self.lowest[index] > 0 else 1.0 for index in rows}
        index = min(rows, key=lambda row: (round(loss[row], 9), row))
        return GRID[index], [prospect for _, _, prospect in self.best[index]]
