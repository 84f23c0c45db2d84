"""A placement learned by policy gradients, as ColocRL learns one, against the optimum.

Mirhoseini et al., Device Placement Optimization with Reinforcement Learning, ICML 2017: a policy draws a placement of
every group of operators, is rewarded by the time that it takes, less a moving average of rewards, and is turned by
REINFORCE. Here it has a softmax for each operator of the network, a weight goes with the operator that reads it, and
the reward is the cost of the partition instead of a measured run.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from symconfig.descriptor.load import load_model
from symconfig.graph.program.of_model import program
from symconfig.solve.partition import exact
from symconfig.solve.partition.problem import Problem, assemble
from symconfig.solve.partition.rows import spaces
from symconfig.solve.partition.run import folded
from tests.solve.partition.solved import MESH, solved

DRAWS, RATE, DECAY = 4000, 1.0, 0.95


def of_model(name: str) -> Problem:
    """Return the problem of a step of one microbatch on eight GPUs."""
    costs, axes, _ = solved(folded(program(load_model(name), 8, 2048)), MESH)
    rows = spaces(costs, axes)
    assert rows is not None
    return assemble(costs, rows, np.inf)


def following(problem: Problem, choice: Sequence[int], of: Sequence[int]) -> list[int]:
    """Return the choice with the cheapest of each node in `of`, which have no edges among themselves."""
    made = list(choice)
    for v in of:
        cost = problem.nodes[v].cost.copy()
        for edge in problem.edges:
            if v in (edge.u, edge.v):
                cost += edge.line(v, made[edge.u + edge.v - v], 0.0)
        made[v] = int(np.argmin(cost))
    return made


def learned(problem: Problem, seed: int) -> tuple[float, float]:
    """Return the mean cost of the first hundred draws, of a policy that knows little yet, and the least of all."""
    random = np.random.default_rng(seed)
    weights = sorted({edge.u for edge in problem.edges if not np.isfinite(edge.cost).all()})
    scores = [np.zeros(node.cost.size) for node in problem.nodes]
    drawn, mean = list[float](), 0.0
    for _ in range(DRAWS):
        chances = [np.exp(each - each.max()) / np.exp(each - each.max()).sum() for each in scores]
        choice = following(problem, [int(random.choice(each.size, p=each)) for each in chances], weights)
        drawn.append(problem.cost(choice))
        mean = DECAY * (mean or drawn[0]) + (1 - DECAY) * drawn[-1]
        better = 1.0 - drawn[-1] / mean
        for v, (each, chance) in enumerate(zip(scores, chances, strict=True)):
            if v not in weights:
                each -= RATE * better * chance
                each[choice[v]] += RATE * better
    return float(np.mean(drawn[:100])), min(drawn)


def test_a_learned_placement_improves_and_is_never_below_the_optimum() -> None:
    problem = of_model("llama2-7b")
    best = exact.solve(problem)
    assert best.optimal
    untrained, found = learned(problem, 0)
    assert best.cost * (1 - 1e-9) <= found < 1.5 * best.cost < 2 * best.cost < untrained
