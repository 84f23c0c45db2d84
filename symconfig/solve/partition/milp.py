"""The partition problem as a mixed-integer programme, made with PuLP and solved by its CBC.

Variables
    x[v, c]    binary: node v takes choice c
    y[p, i, j] >= 0: pair p is in row i and column j of its tables; choices that a pair cannot tell apart share a line
    largest    the largest transient of all nodes

Objective
    sum over v, c of cost[v, c] x[v, c]  +  sum over p, i, j of cost[p, i, j] y[p, i, j]

Constraints
    1. every node takes one choice: sum_c x[v, c] = 1
    2. a row, or column, of a pair is taken as often as its choices: sum_j y[p, i, j] = sum_{c in row i} x[v, c]
    3. largest >= sum_c transient[v, c] x[v, c] for every node
    4. sum of bytes held by choices and pairs + largest <= the memory limit

The linear relaxation is tight but for 4, so that CBC's cuts, heuristics and preprocessing cost more than they gain.
HiGHS takes two to six times as long on these programmes.
"""

from __future__ import annotations

import os
import time
from typing import Any, NamedTuple

import numpy as np
import pulp

from symconfig.solve.partition.problem import Array, Edge, Ints, Problem, side

UNIT = 1e6  # the largest cost, and the memory limit, in the solvers' units: their tolerances of 1e-7 are 1e-13 of them
_CBC = ["ratio 0", "integerTolerance 1e-9", "increment 1e-7", "cuts off", "heuristics off", "preprocess off"]
Terms = list[tuple[Any, float]]


class Answer(NamedTuple):
    """choice: the cheapest found, or None. proved: whether no other is cheaper, or none fits."""

    choice: tuple[int, ...] | None
    proved: bool


def spent_s() -> float:
    """Return the CPU seconds of this process and of its finished child processes.

    Time limits are on CPU time, so that a busy machine does not change the answer.
    """
    children = os.times()
    return time.process_time() + children.children_user + children.children_system


def solve(problem: Problem, limit_s: float = np.inf) -> Answer:
    """Return the cheapest choice that fits, or the best found in `limit_s` CPU seconds; None if none is or CBC fails.

    A choice that exceeds the memory limit by less than CBC's tolerance is excluded by a constraint, and CBC run again
    in the time that is left.
    """
    end = spent_s() + limit_s
    model, taken = _programme(problem)
    while True:
        left_s = max(end - spent_s(), 0.01) if limit_s < np.inf else None
        try:
            path = pulp.PULP_CBC_CMD.pulp_cbc_path
            model.solve(pulp.COIN_CMD(path=path, msg=False, timeLimit=left_s, timeMode="cpu", options=_CBC))
        except pulp.PulpSolverError:
            return Answer(None, False)
        if model.sol_status not in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible):
            # CBC says "infeasible" where it runs out of time, too
            return Answer(None, model.status == pulp.LpStatusInfeasible and spent_s() < end)
        choice = tuple(int(np.argmax([one.value() or 0.0 for one in variables])) for variables in taken)
        if problem.fits(choice):
            return Answer(choice, model.sol_status == pulp.LpSolutionOptimal)
        # above the limit by less than the solver's tolerance
        chosen = [variables[c] for variables, c in zip(taken, choice, strict=True)]
        model.addConstraint(pulp.lpSum(chosen) <= len(chosen) - 1)


def _programme(problem: Problem) -> tuple[Any, list[list[Any]]]:
    """Return the PuLP model and its x variables by node and choice.

    Costs are less each node's and pair's minimum, and scaled. Choices with equal lines in a pair's tables share its y
    variables; infinite entries have none. Without a finite memory limit the model has no constraint of memory.
    """
    model = pulp.LpProblem("partition", pulp.LpMinimize)
    taken = [
        [model.add_variable(f"x{v}_{c}", cat=pulp.LpBinary) for c in range(size)]
        for v, size in enumerate(problem.sizes)
    ]
    price, held = list[tuple[Any, float]](), list[tuple[Any, float]]()
    for variables, node in zip(taken, problem.nodes, strict=True):
        model.addConstraint(pulp.lpSum(variables) == 1)
        price += zip(variables, (node.cost - node.cost.min()).tolist(), strict=True)
        held += zip(variables, node.memory.tolist(), strict=True)
    for number, pair in enumerate(problem.edges):
        rows, columns = _equal_choices(pair, pair.u), _equal_choices(pair, pair.v)
        lines = np.ix_(pair.rows[[row[0] for row in rows]], pair.columns[[column[0] for column in columns]])
        table = pair.cost[lines]
        bytes_ = np.zeros_like(table) if pair.memory is None else pair.memory[lines]
        shares: list[tuple[list[Any], ...]] = [tuple([] for _ in rows), tuple([] for _ in columns)]
        for i, j in np.argwhere(np.isfinite(table)).tolist():
            share = model.add_variable(f"y{number}_{i}_{j}", lowBound=0)
            shares[0][i].append(share)
            shares[1][j].append(share)
            price.append((share, float(table[i, j] - pair.cost.min())))
            held.append((share, float(bytes_[i, j])))
        for v, groups, sums in ((pair.u, rows, shares[0]), (pair.v, columns, shares[1])):
            for group, some in zip(groups, sums, strict=True):
                model.addConstraint(pulp.lpSum(some) == pulp.lpSum([taken[v][c] for c in group]))
    scale = UNIT / (max((cost for _, cost in price), default=0.0) or 1.0)
    model.setObjective(_sum(price, scale))
    if problem.memory_limit < np.inf:
        byte, least = UNIT / max(abs(problem.memory_limit), 1.0), problem.least_transient
        largest = model.add_variable("largest", lowBound=least * byte)
        for variables, node in zip(taken, problem.nodes, strict=True):
            if (node.transient > least).any():
                model.addConstraint(_sum(list(zip(variables, node.transient.tolist(), strict=True)), byte) <= largest)
        model.addConstraint(_sum(held, byte) + largest <= problem.memory_limit * byte)
    return model, taken


def _sum(terms: Terms, factor: float) -> Any:
    return pulp.LpAffineExpression([(variable, value * factor) for variable, value in terms if value])


def _equal_choices(pair: Edge, v: int) -> list[Ints]:
    """Return the choices of node v in groups (index arrays) with equal cost and memory lines in the pair's tables."""
    cost, memory = side(pair, v)
    table: Array = cost if memory is None else np.concatenate((cost, memory), axis=1)
    groups: dict[bytes, list[int]] = {}
    for c, row in enumerate(table):
        groups.setdefault(np.ascontiguousarray(row).tobytes(), []).append(c)
    return [np.array(group) for group in groups.values()]
