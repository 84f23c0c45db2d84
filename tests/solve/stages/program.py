"""The stage problem as an integer program: a 0/1 variable for each way to fill a chunk; CBC proves what is the least.

The model is a row of runs of equal blocks. A chunk starts and ends at a border between runs or inside a run; inside,
only how many blocks it takes is known, not which: equal blocks need no number, and counting them keeps columns few.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pulp

from symconfig.solve.stages.content import Content, Mode, Scale, Weight, content, modes
from symconfig.solve.stages.cuts import allowed, longest_chunk
from symconfig.solve.stages.problem import StageProblem

Place = tuple[int, bool]  # before run r, or (True) inside it


@dataclass(frozen=True, slots=True)
class Column:
    """One way to fill one chunk. taken: numbers of runs, with how many of their blocks."""

    chunk: int
    start: Place
    end: Place
    weight: Weight
    taken: tuple[tuple[int, int], ...]


def least_s(problem: StageProblem, most_s: float, low_s: float = 0.0) -> float:
    """The slowest stage's seconds in the fastest assignment, to CBC's own tolerance of a ten-millionth. low_s, most_s:
    what is faster or slower is not looked for."""
    return min(_least_s(problem, mode, most_s, low_s) for mode in modes(problem, longest_chunk(problem)))


def _least_s(problem: StageProblem, mode: Mode, most_s: float, low_s: float) -> float:
    even_s = sum(problem.seconds[kind][mode.choice] for kind in problem.sequence) / problem.pp
    if mode.first == 0 and even_s > most_s:
        return float("inf")
    columns = _that_arrive(list(_columns(Scale(problem), mode, most_s)), (len(content(problem.sequence)), False))
    program = pulp.LpProblem("stages", pulp.LpMinimize)
    taken = [program.add_variable(f"x{n}", cat=pulp.LpBinary) for n in range(len(columns))]
    slowest, working = program.add_variable("slowest", lowBound=low_s / even_s), {}
    if most_s < float("inf"):
        slowest.upBound = most_s / even_s

    def total(terms: Iterable[tuple[int, float]]) -> Any:
        return pulp.LpAffineExpression([(taken[n], factor) for n, factor in terms if factor])

    ends: dict[tuple[int, Place], list[tuple[int, float]]] = defaultdict(list)
    runs: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for n, column in enumerate(columns):
        ends[column.chunk, column.start].append((n, 1.0))
        ends[column.chunk + 1, column.end].append((n, -1.0))
        for run, count in column.taken:
            runs[run].append((n, float(count)))
    for (chunk, _), terms in ends.items():  # each chunk starts where the one before it ends
        if chunk < problem.pp * problem.vpp:
            program.addConstraint(total(terms) == (1 if chunk == 0 else 0))
    for run, (_, count) in enumerate(content(problem.sequence)):
        if count > 1:
            program.addConstraint(total(runs[run]) == count)
    for stage in range(problem.pp):
        mine = [(n, column) for n, column in enumerate(columns) if column.chunk % problem.pp == stage]
        program.addConstraint(total((n, column.weight.seconds / even_s) for n, column in mine) <= slowest)
        working[stage] = program.add_variable(f"w{stage}", lowBound=0)
        for k in range(problem.vpp):
            of_chunk = [(n, column) for n, column in mine if column.chunk == stage + k * problem.pp]
            largest = total((n, column.weight.transient_bytes / problem.limit_bytes) for n, column in of_chunk)
            program.addConstraint(largest <= working[stage])
        for held in problem.held[stage]:
            terms = []
            for n, column in mine:
                kept = float(held[column.chunk // problem.pp]) * column.weight.kept_bytes
                terms.append((n, (column.weight.once_bytes + kept) / problem.limit_bytes))
            own = problem.stage_bytes[stage] / problem.limit_bytes
            program.addConstraint(total(terms) + working[stage] + own <= 1.0)
    program.setObjective(pulp.lpSum([slowest]))
    program.solve(pulp.PULP_CBC_CMD(msg=False, threads=1, gapRel=0.0, timeLimit=60))
    if program.sol_status != pulp.LpSolutionOptimal:
        assert program.status == pulp.LpStatusInfeasible
        return float("inf")
    return float(pulp.value(program.objective)) * even_s


def _columns(scale: Scale, mode: Mode, most_s: float) -> Iterator[Column]:
    """Every column whose chunk takes at most most_s, from where the chunks before can end."""
    problem, runs = scale.problem, content(scale.problem.sequence)
    reached: set[Place] = {(0, False)}
    for chunk in range(problem.pp * problem.vpp):
        after: set[Place] = set()
        for start in sorted(reached):
            for end, held, taken in _spans(runs, start, start, (), ()):
                weight = scale.option(held, mode).weight
                if weight.seconds <= most_s and allowed(problem, chunk, held):
                    if chunk == problem.pp * problem.vpp - 1 and end != (len(runs), False):
                        continue
                    after.add(end)
                    yield Column(chunk, start, end, weight, taken)
        reached = after


def _that_arrive(columns: list[Column], end: Place) -> list[Column]:
    """The columns from which the later chunks can reach the end of the model."""
    arriving, kept = {columns[-1].chunk + 1 if columns else 0: {end}}, list[Column]()
    for column in reversed(columns):
        if column.end in arriving.get(column.chunk + 1, ()):
            arriving.setdefault(column.chunk, set()).add(column.start)
            kept.append(column)
    return kept[::-1]


def _spans(
    runs: Content, start: Place, place: Place, held: Content, taken: tuple[tuple[int, int], ...]
) -> Iterator[tuple[Place, Content, tuple[tuple[int, int], ...]]]:
    """Every content of a chunk that starts there: where it ends, what it holds, and what it takes of which run."""
    yield place, held, taken
    run, inside = place
    if run == len(runs):
        return
    kind, count = runs[run]
    for part in range(1, count + (not inside)):
        more = (*held, (kind, part)), (*taken, (run, part))
        if part < count - inside:  # leaves some of the run to later chunks
            yield (run, True), *more
        if inside or part == count:  # takes what is left of the run
            yield from _spans(runs, start, (run + 1, False), *more)
