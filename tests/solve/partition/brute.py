"""Every assignment of a small problem: the oracle of the other solvers."""

from __future__ import annotations

from math import prod

import numpy as np

from symconfig.solve.partition.problem import Array, Problem, Solution

MOST = 2_000_000  # assignments; the arrays of all of them stay below 100 MB


def solve(problem: Problem) -> Solution:
    """Return the cheapest assignment that fits; of equal ones the first in the order of their tuples."""
    sizes = tuple(len(node.cost) for node in problem.nodes)
    count = prod(sizes)
    assert count <= MOST, f"{count:.3g} assignments are too many to try"
    free = tuple(v for v, size in enumerate(sizes) if size > 1)  # NumPy has no arrays of very many axes
    cost, memory = _all(problem, sizes, free)
    cost = np.where(memory <= problem.memory_limit, cost, np.inf)
    best = int(np.argmin(cost))
    least = float(cost.flat[best])
    if least == np.inf:
        return Solution(None, np.inf, np.inf, True)
    places = dict(zip(free, np.unravel_index(best, cost.shape), strict=True))
    choice = tuple(int(places.get(v, 0)) for v in range(len(sizes)))
    exact = problem.cost(choice)
    return Solution(choice, exact, exact, True)


def _all(problem: Problem, sizes: tuple[int, ...], free: tuple[int, ...]) -> tuple[Array, Array]:
    """Return cost and bytes at the peak, an axis for each node that has a choice."""
    whole = tuple(sizes[w] for w in free)
    cost, held, transient = np.zeros(whole), np.zeros(whole), np.full(whole, -np.inf)
    for v, node in enumerate(problem.nodes):
        shape = tuple(sizes[w] if w == v else 1 for w in free)
        cost += node.cost.reshape(shape)
        held += node.memory.reshape(shape)
        np.maximum(transient, node.transient.reshape(shape), out=transient)
    for edge in problem.edges:
        for total, table in ((cost, edge.cost), (held, edge.memory)):
            if table is not None:
                total += _spread(table[np.ix_(edge.rows, edge.columns)], edge.u, edge.v, sizes, free)
    return cost, held + transient


def _spread(table: Array, u: int, v: int, sizes: tuple[int, ...], free: tuple[int, ...]) -> Array:
    """Reshape [choices of u, choices of v] with an axis of one for each other node."""
    if u == v:
        table = np.diagonal(table)
    elif u > v:
        table = table.T
    return table.reshape(tuple(sizes[w] if w in (u, v) else 1 for w in free))
