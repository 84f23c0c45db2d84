"""The stage problem as an integer program: a 0/1 variable for each column. The only user of PuLP and of its solvers."""

from __future__ import annotations

import importlib.util
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from symconfig import install
from symconfig.errors import FailedError
from symconfig.solve.cbc import in_time, lower_bound
from symconfig.solve.stages.columns import Column, columns
from symconfig.solve.stages.content import Mode, Scale, content
from symconfig.solve.stages.judge import assignment
from symconfig.solve.stages.problem import Assignment, Scope, Solver


@dataclass(frozen=True, slots=True)
class Answer:
    """assignment: the best one known, if any. bound: none is better, in seconds (bytes); proved: it is the best."""

    assignment: Assignment | None
    bound: float
    proved: bool


def available(solver: Solver) -> None:
    """Raise FailedError if the solver is not installed."""
    if solver == "highs" and importlib.util.find_spec("highspy") is None:
        raise FailedError("the solver HiGHS is not installed", hint=install.HIGHS)


def fastest_program(
    scale: Scale, mode: Mode | None, bound_s: float, most_s: float, solver: Solver, limit_s: float
) -> Answer:
    """Return the assignment with the least slowest stage, to the solvers' own tolerance of a ten-millionth.

    bound_s: none is faster; most_s: only what is not slower is of interest.
    """
    model = _Model(scale, mode, columns(scale, mode, most_s))
    if not model.columns:
        return Answer(None, most_s, True)
    return model.fastest(bound_s, most_s, solver, limit_s)


def leanest_program(scale: Scale, mode: Mode | None, solver: Solver, limit_s: float) -> Answer:
    """Return the assignment with the least largest excess over the limit."""
    model = _Model(scale, mode, columns(scale, mode, float("inf")))
    return model.leanest(solver, limit_s) if model.columns else Answer(None, 0.0, True)


class _Model:
    """Variables and the rows that every question shares: a path through the model, chunk by chunk."""

    def __init__(self, scale: Scale, mode: Mode | None, columns: list[Column]) -> None:
        import pulp

        self.pulp, self.scale, self.mode, self.columns = pulp, scale, mode, columns
        self.problem = scale.problem
        self.program = pulp.LpProblem("stages", pulp.LpMinimize)
        self.taken = [self.program.add_variable(f"x{n}", cat=pulp.LpBinary) for n in range(len(columns))]
        self._path()
        self._runs()
        if mode is None and self.problem.scope is Scope.STAGE and self.problem.vpp > 1:
            self._one_choice()

    def fastest(self, bound_s: float, most_s: float, solver: Solver, limit_s: float) -> Answer:
        pulp, unit = self.pulp, bound_s or 1.0
        slowest = self.program.add_variable("slowest", lowBound=min(bound_s, most_s) / unit)
        if most_s < float("inf"):
            slowest.upBound = most_s / unit
        for stage in range(self.problem.pp):
            terms = ((n, self.columns[n].option.weight.seconds / unit) for n in self._of_stage(stage))
            self._add(self._sum(terms) <= slowest)
            if self.problem.vpp > 1:
                self._peaks(stage, 1.0)
        self.program.setObjective(pulp.lpSum([slowest]))
        return self._solve(solver, limit_s, unit)

    def leanest(self, solver: Solver, limit_s: float) -> Answer:
        peak = self.program.add_variable("peak", lowBound=0)
        for stage in range(self.problem.pp):
            self._peaks(stage, peak)
        self.program.setObjective(self.pulp.lpSum([peak]))
        return self._solve(solver, limit_s, self.problem.limit_bytes)

    def _add(self, row: Any) -> None:
        self.program.addConstraint(row)

    def _sum(self, terms: Iterable[tuple[int, float]]) -> Any:
        """Sum pairs of (column, factor)."""
        return self.pulp.LpAffineExpression([(self.taken[n], factor) for n, factor in terms if factor])

    def _of_stage(self, stage: int) -> list[int]:
        return [n for n, column in enumerate(self.columns) if column.chunk % self.problem.pp == stage]

    def _path(self) -> None:
        """Let each chunk start where the one before it ends; columns of the last one end where the model does."""
        starts: dict[tuple[int, Any], list[tuple[int, float]]] = defaultdict(list)
        for n, column in enumerate(self.columns):
            starts[column.chunk, column.span.start].append((n, 1.0))
            starts[column.chunk + 1, column.span.end].append((n, -1.0))
        last = self.problem.pp * self.problem.vpp
        for (chunk, _), terms in starts.items():
            if chunk < last:
                self._add(self._sum(terms) == (1 if chunk == 0 else 0))

    def _runs(self) -> None:
        """Take the blocks of a run once."""
        taken: dict[int, list[tuple[int, float]]] = defaultdict(list)
        for n, column in enumerate(self.columns):
            for run, count in column.span.taken:
                taken[run].append((n, float(count)))
        for run, (_, count) in enumerate(content(self.problem.sequence)):
            if count > 1:
                self._add(self._sum(taken[run]) == count)

    def _one_choice(self) -> None:
        """Give all chunks of a stage that hold blocks its choice."""
        for stage in range(self.problem.pp):
            of_choice: dict[tuple[int, int], list[tuple[int, float]]] = defaultdict(list)
            for n in self._of_stage(stage):
                column = self.columns[n]
                if column.option.choices:
                    of_choice[column.chunk, column.option.choices[0]].append((n, 1.0))
            chosen = [
                self.program.add_variable(f"c{stage}_{c}", cat=self.pulp.LpBinary) for c in range(self.problem.choices)
            ]
            self._add(self.pulp.lpSum(chosen) == 1)
            for (_, choice), terms in of_choice.items():
                self._add(self._sum(terms) <= chosen[choice])

    def _peaks(self, stage: int, most: Any) -> None:
        """Hold the stage's bytes at every moment, in units of the limit, to `most`."""
        problem, unit = self.problem, self.problem.limit_bytes
        mine = [(n, self.columns[n]) for n in self._of_stage(stage)]
        working = self.program.add_variable(f"w{stage}", lowBound=0)
        for k in range(problem.vpp):
            chunk = stage + k * problem.pp
            weights = ((n, c.option.weight.transient_bytes / unit) for n, c in mine if c.chunk == chunk)
            self._add(self._sum(weights) <= working)
        for held in problem.held[stage]:
            terms = []
            for n, column in mine:
                weight = column.option.weight
                kept = float(held[column.chunk // problem.pp]) * weight.kept_bytes
                terms.append((n, (weight.once_bytes + kept) / unit))
            self._add(self._sum(terms) + working + problem.stage_bytes[stage] / unit <= most)

    def _solve(self, name: Solver, limit_s: float, unit: float) -> Answer:
        pulp = self.pulp
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / "log"
            if name == "highs":
                solver = pulp.HiGHS(msg=False, timeLimit=limit_s, threads=1, gapRel=0.0)
            else:
                solver = pulp.COIN_CMD(
                    path=pulp.PULP_CBC_CMD.pulp_cbc_path,
                    logPath=str(log),
                    msg=False,
                    threads=1,
                    timeLimit=limit_s,
                    timeMode="cpu",
                    gapRel=0.0,
                )
            try:
                self.program.solve(solver)
            except pulp.PulpSolverError:  # its process died: nothing is known, and nothing is lost but the proof
                return Answer(None, 0.0, False)
            text = "" if name == "highs" else log.read_text(encoding="utf-8", errors="replace")
        highs = name == "highs"
        bound = float(self.program.solverModel.getInfo().mip_dual_bound) if highs else lower_bound(text) or 0.0
        # PuLP's status says "Optimal" of an answer that the time limit cut off, too.
        status = self.program.sol_status
        if status == pulp.LpSolutionOptimal:
            return Answer(self._assignment(), pulp.value(self.program.objective) * unit, True)
        if status == pulp.LpSolutionIntegerFeasible:
            return Answer(self._assignment(), bound * unit, False)
        infeasible = self.program.status == pulp.LpStatusInfeasible and (highs or in_time(text, limit_s))
        return Answer(None, bound * unit, infeasible)

    def _assignment(self) -> Assignment:
        mine = sorted(
            (column for n, column in enumerate(self.columns) if self.taken[n].value() > 0.5),
            key=lambda column: column.chunk,
        )
        chunks = tuple(tuple(kind for kind, count in column.span.content for _ in range(count)) for column in mine)
        first = self.mode.first if self.mode else 0
        return assignment(self.problem, chunks, tuple(column.option.choices for column in mine), first)
