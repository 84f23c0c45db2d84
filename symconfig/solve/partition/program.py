"""The partition problem as an integer program: a 0/1 variable for each choice, what its pairs cost linearised.

For each pair a share of every combination, whose sums over one side are the variables of the other side. Choices that a
pair cannot tell apart have their shares in common.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from symconfig.solve.cbc import in_time, lower_bound, spent_s
from symconfig.solve.partition import local
from symconfig.solve.partition.problem import Array, Ints, Problem, Solution
from symconfig.solve.partition.reduce import Pair, Space, side, space

UNIT = 1e6  # of what is minimised and of what is limited: the solver's tolerances of 1e-7 are 1e-13 of them
CLOSE = 1e-9  # relative: proved


@dataclass(frozen=True, slots=True)
class Answer:
    """choice: the best one known below the cutoff, if any. bound: no better one costs less. proved: none is better."""

    choice: tuple[int, ...] | None
    bound: float
    proved: bool


def solve(problem: Problem, limit_s: float | None = None) -> Solution:
    """Solve the program alone, without what `exact` does before. limit_s: of the processor."""
    whole = space(problem)
    if whole is None:
        return Solution("program", None, np.inf, np.inf, True)
    answer = best(whole, np.inf, limit_s)
    if answer.choice is None:
        bound = np.inf if answer.proved else answer.bound
        return Solution("program", None, np.inf, bound, answer.proved)
    choice = whole.original(answer.choice)
    cost = problem.cost(choice)
    return Solution("program", choice, cost, min(answer.bound, cost), answer.proved)


def best(of: Space, cutoff: float, limit_s: float | None) -> Answer:
    """Return the cheapest that fits and costs less than the cutoff."""
    end = np.inf if limit_s is None else spent_s() + limit_s
    model = _Model(of)
    while True:
        answer = model.solved(cutoff, max(end - spent_s(), 0.01))
        if answer.choice is None:
            return Answer(None, min(answer.bound, cutoff), answer.proved)
        if local.peak(of, answer.choice) <= of.limit:
            cost = local.cost(of, answer.choice)
            proved = answer.proved and answer.bound >= cost - CLOSE * abs(cost)
            return Answer(answer.choice, min(answer.bound, cost), proved)
        model.forbid(answer.choice)  # above the limit by less than the solver sees


@dataclass(slots=True)
class _Model:
    space: Space
    pulp: Any = field(init=False)
    program: Any = field(init=False)
    taken: list[list[Any]] = field(init=False)
    scale: float = field(init=False)
    fixed: float = 0.0  # cost that every assignment has

    def __post_init__(self) -> None:
        import pulp

        self.pulp, self.program = pulp, pulp.LpProblem("partition", pulp.LpMinimize)
        self.taken = [
            [self.program.add_variable(f"x{v}_{c}", cat=pulp.LpBinary) for c in range(size)]
            for v, size in enumerate(self.space.sizes)
        ]
        for variables in self.taken:
            self._add(pulp.lpSum(variables) == 1)
        self.fixed = sum(float(c.min()) for c in self.space.cost)
        self.fixed += sum(float(pair.cost.min()) for pair in self.space.pairs)
        self.scale = UNIT / (self._range() or 1.0)
        price: list[tuple[Any, float]] = []
        bytes_: list[tuple[Any, float]] = []
        for v, variables in enumerate(self.taken):
            price += zip(variables, self.space.cost[v] - self.space.cost[v].min(), strict=True)
            bytes_ += zip(variables, self.space.memory[v], strict=True)
        for number, pair in enumerate(self.space.pairs):
            costs, memories = self._shares(number, pair)
            price += costs
            bytes_ += memories
        self.program.setObjective(self._sum(price, self.scale))
        if self.space.limit < np.inf:
            self._limit(bytes_)

    def _range(self) -> float:
        """Return about what separates the dearest choices from the cheapest."""
        ranges = [float(np.ptp(c)) for c in self.space.cost]
        ranges += [float(np.ptp(p.cost[np.isfinite(p.cost)])) for p in self.space.pairs]
        return max(ranges, default=0.0)

    def _add(self, row: Any) -> None:
        self.program.addConstraint(row)

    def _sum(self, terms: list[tuple[Any, float]], factor: float) -> Any:
        return self.pulp.LpAffineExpression([(variable, float(value) * factor) for variable, value in terms if value])

    def _shares(self, number: int, pair: Pair) -> tuple[list[tuple[Any, float]], list[tuple[Any, float]]]:
        """Return costs and bytes of the pair's shares, less its least cost, that `fixed` has."""
        rows, columns = _alike(pair, 0), _alike(pair, 1)
        costs, memories = [], []
        of_row: dict[int, list[Any]] = {}
        of_column: dict[int, list[Any]] = {}
        least = float(pair.cost.min())
        for i, row in enumerate(rows):
            for j, column in enumerate(columns):
                at = pair.rows[row[0]], pair.columns[column[0]]
                cost = pair.cost[at]
                if np.isfinite(cost):
                    share = self.program.add_variable(f"y{number}_{i}_{j}", lowBound=0)
                    of_row.setdefault(i, []).append(share)
                    of_column.setdefault(j, []).append(share)
                    costs.append((share, cost - least))
                    memories.append((share, 0.0 if pair.memory is None else float(pair.memory[at])))
        for v, groups, shares in ((pair.u, rows, of_row), (pair.v, columns, of_column)):
            for i, group in enumerate(groups):
                self._add(self.pulp.lpSum(shares[i]) == self.pulp.lpSum([self.taken[v][c] for c in group]))
        return costs, memories

    def _limit(self, bytes_: list[tuple[Any, float]]) -> None:
        """Limit held bytes and the largest transient, of which every node says how much it is at least."""
        unit = UNIT / max(abs(self.space.limit), 1.0)
        floor = self.space.floor
        largest = self.program.add_variable("largest", lowBound=floor * unit)
        for variables, transient in zip(self.taken, self.space.transient, strict=True):
            if (transient > floor).any():
                self._add(self._sum(list(zip(variables, transient, strict=True)), unit) <= largest)
        self._add(self._sum(bytes_, unit) + largest <= self.space.limit * unit)

    def forbid(self, choice: tuple[int, ...]) -> None:
        chosen = [variables[c] for variables, c in zip(self.taken, choice, strict=True)]
        self._add(self.pulp.lpSum(chosen) <= len(chosen) - 1)

    def solved(self, cutoff: float, limit_s: float) -> Answer:
        pulp = self.pulp
        options = ["integerTolerance 1e-9", "increment 1e-7"]
        if cutoff < np.inf:
            options.append(f"cutoff {(cutoff - self.fixed) * self.scale!r}")
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / "log"
            solver = pulp.COIN_CMD(
                path=pulp.PULP_CBC_CMD.pulp_cbc_path,
                logPath=str(log),
                msg=False,
                threads=1,
                timeLimit=limit_s if limit_s < np.inf else None,
                timeMode="cpu",
                gapRel=0.0,
                options=options,
            )
            try:
                self.program.solve(solver)
            except pulp.PulpSolverError:  # its process died: nothing is known, and nothing is lost but the proof
                return Answer(None, -np.inf, False)
            text = log.read_text(encoding="utf-8", errors="replace")
        return self._answer(text, limit_s)

    def _answer(self, text: str, limit_s: float) -> Answer:
        """Read the answer. PuLP's status says "Optimal" of an answer that the time limit cut off, too; that of the
        solution does not.
        """
        pulp, status = self.pulp, self.program.sol_status
        lower = lower_bound(text)
        bound = self.fixed + lower / self.scale if lower is not None else -np.inf
        if status == pulp.LpSolutionOptimal:
            value = self.fixed + (pulp.value(self.program.objective) or 0.0) / self.scale
            return Answer(self._chosen(), value, True)
        if status == pulp.LpSolutionIntegerFeasible:
            return Answer(self._chosen(), bound, False)
        infeasible = self.program.status == pulp.LpStatusInfeasible and in_time(text, limit_s)
        return Answer(None, bound, infeasible)

    def _chosen(self) -> tuple[int, ...]:
        return tuple(int(np.argmax([variable.value() or 0.0 for variable in variables])) for variables in self.taken)


def _alike(pair: Pair, axis: int) -> list[Ints]:
    """Group the choices of one side that the pair cannot tell apart."""
    cost, memory = side(pair, pair.u if axis == 0 else pair.v)
    table: Array = cost if memory is None else np.concatenate((cost, memory), axis=1)
    groups: dict[bytes, list[int]] = {}
    for c, row in enumerate(table):
        groups.setdefault(np.ascontiguousarray(row).tobytes(), []).append(c)
    return [np.array(group) for group in groups.values()]
