"""A random walk over assignments, with Metropolis' rule: how FlexFlow searches, to compare solvers with.

A step proposes another choice for one node. What costs more is taken with probability exp(-increase / temperature);
bytes above the limit cost a penalty each. Jia et al., Beyond Data and Model Parallelism for DNNs, MLSys 2019, 6.2.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from symconfig.solve.partition import local
from symconfig.solve.partition.problem import Problem, Solution
from symconfig.solve.partition.reduce import Space, space

TEMPERATURE = 0.1, 1e-4  # of the cost of the start: at the first and at the last step
PENALTY = 10.0  # costs of the start, for as many bytes above the limit as the limit has


def solve(problem: Problem, seed: int, steps: int, start: Sequence[int] | None = None) -> Solution:
    """Return the cheapest assignment seen that fits; nothing is proved but that a problem without any choice has none.

    The same seed, steps and start give the same answer. start: default random.
    """
    of = space(problem)
    if of is None:
        return Solution("walk", None, np.inf, np.inf, True)
    random = np.random.default_rng(seed)
    here = of.local(start) if start is not None else None
    now = list(here) if here is not None else [int(random.integers(size)) for size in of.sizes]
    best, least = None, np.inf
    scale, cost = _scale(of, now), local.cost(of, now)
    energy = cost + _penalty(of, local.peak(of, now), scale)
    for step in range(steps + 1):
        if cost < least:
            chosen = of.original(now)
            if problem.fits(chosen):
                best, least = chosen, cost
        if step == steps:
            break
        heat = scale * TEMPERATURE[0] * (TEMPERATURE[1] / TEMPERATURE[0]) ** (step / steps)
        v = int(random.integers(len(now)))
        old, now[v] = now[v], int(random.integers(of.sizes[v]))
        proposed = local.cost(of, now)
        increase = proposed + _penalty(of, local.peak(of, now), scale) - energy
        taken = not increase > 0 or (np.isfinite(increase) and random.random() < np.exp(-increase / heat))
        if taken:
            cost, energy = proposed, proposed + _penalty(of, local.peak(of, now), scale)
        else:
            now[v] = old
    if best is None:
        return Solution("walk", None, np.inf, -np.inf, False, steps)
    return Solution("walk", best, problem.cost(best), -np.inf, False, steps)


def _scale(of: Space, choice: Sequence[int]) -> float:
    """Return the cost of a choice, or where it has none, of the dearest that stand alone."""
    cost = local.cost(of, choice)
    return abs(cost) if np.isfinite(cost) and cost else sum(float(np.abs(c).max()) for c in of.cost) or 1.0


def _penalty(of: Space, peak: float, scale: float) -> float:
    return PENALTY * scale * max(0.0, peak - of.limit) / max(of.limit, 1.0) if peak > of.limit else 0.0
