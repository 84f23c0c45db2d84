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
import re
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pulp

from symconfig.solve.partition.problem import Array, Edge, Ints, Problem, side

UNIT = 1e6  # the largest cost, and the memory limit, in the solvers' units: their tolerances of 1e-7 are 1e-13 of them
_LOWER = re.compile(r"Lower bound:\s+([-+.\de]+)")  # of CBC's log
_TOTAL = re.compile(r"Total time \(CPU seconds\):\s+([.\d]+)")  # in hundredths
_CBC = "-timeMode cpu -ratio 0 -integerTolerance 1e-9 -increment 1e-7 -cuts off -heuristics off -preprocess off"
Terms = list[tuple[Any, float]]


@dataclass(frozen=True, slots=True)
class Answer:
    """choice: the best found, or None. bound: no choice costs less. proved: whether the answer is exact."""

    choice: tuple[int, ...] | None
    bound: float
    proved: bool


def spent_s() -> float:
    """Return the CPU seconds of this process and of its finished child processes.

    Time limits are on CPU time, so that a busy machine does not change the answer.
    """
    children = os.times()
    return time.process_time() + children.children_user + children.children_system


def solve(problem: Problem, limit_s: float = np.inf) -> Answer:
    """Return the cheapest choice that fits, or the best found in `limit_s` CPU seconds, and a bound on the cost.

    choice is None if none fits (then the bound is infinite and `proved` is True) or if CBC finds none, fails or is
    killed (`proved` False). A choice that exceeds the memory limit by less than CBC's tolerance is excluded by a
    constraint, and CBC run again in the time that is left.
    """
    end = spent_s() + limit_s
    model, taken, fixed, scale = _programme(problem)
    while True:
        status, bound = _run(model, max(end - spent_s(), 0.01))
        if status == pulp.LpSolutionInfeasible:
            return Answer(None, np.inf, True)
        lower = fixed + bound / scale
        if status not in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible):
            return Answer(None, lower, False)
        choice = tuple(int(np.argmax([one.value() or 0.0 for one in variables])) for variables in taken)
        if problem.fits(choice):
            return Answer(choice, lower, status == pulp.LpSolutionOptimal)
        # above the limit by less than the solver's tolerance
        chosen = [variables[c] for variables, c in zip(taken, choice, strict=True)]
        model.addConstraint(pulp.lpSum(chosen) <= len(chosen) - 1)


def _programme(problem: Problem) -> tuple[Any, list[list[Any]], float, float]:
    """Return the PuLP model, its x variables by node and choice, the constant cost and the scale of the objective.

    The true cost is constant + objective / scale: costs are reduced by each node's and pair's minimum. Choices with
    equal lines in a pair's tables share its y variables; infinite entries have none. Without a finite memory limit the
    model has no constraint of memory.
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
    fixed = sum(float(one.cost.min()) for one in problem.nodes) + sum(float(one.cost.min()) for one in problem.edges)
    return model, taken, fixed, scale


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


def _run(model: Any, limit_s: float) -> tuple[int, float]:
    """Run CBC and assign its values to the model's variables; return (PuLP solution status, bound of the objective).

    Optimal: the bound is the objective. Infeasible (only if CBC ended before `limit_s`): infinite. IntegerFeasible, or
    NoSolutionFound: the lower bound in CBC's log, else -inf. NoSolutionFound and -inf, with no values assigned, if CBC
    fails, is killed after twice the limit, or leaves no readable solution.
    """
    with tempfile.TemporaryDirectory() as folder:
        given, solution = Path(folder) / "model.mps", Path(folder) / "solution"
        variables, names, rows, _ = model.writeMPS(str(given), rename=True)
        cbc = pulp.COIN_CMD(path=pulp.PULP_CBC_CMD.pulp_cbc_path)
        limit = ["-sec", str(limit_s)] if limit_s < np.inf else []
        command = [cbc.path, str(given), *limit, *_CBC.split(), "-solve", "-printingOptions", "all"]
        try:
            ran = subprocess.run(
                [*command, "-solution", str(solution)],
                capture_output=True,
                text=True,
                stdin=subprocess.DEVNULL,
                timeout=2 * limit_s + 1 if limit_s < np.inf else None,
                check=True,
            )
            status, values, *_, sol_status = cbc.readsol_MPS(str(solution), model, variables, names, rows)
        except (subprocess.SubprocessError, OSError, pulp.PulpSolverError):
            return pulp.LpSolutionNoSolutionFound, -np.inf
    model.assignVarsVals(values)
    lower, total = _LOWER.search(ran.stdout), _TOTAL.search(ran.stdout)
    if sol_status == pulp.LpSolutionOptimal:
        return sol_status, float(pulp.value(model.objective) or 0.0)
    # CBC says "infeasible" where its preprocessing runs out of time, too
    in_time = total is not None and float(total[1]) + 0.01 < limit_s
    if status == pulp.LpStatusInfeasible and in_time:
        return pulp.LpSolutionInfeasible, np.inf
    sol_status = sol_status if sol_status == pulp.LpSolutionIntegerFeasible else pulp.LpSolutionNoSolutionFound
    return sol_status, float(lower[1]) if lower else -np.inf
