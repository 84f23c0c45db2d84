"""How much memory a problem without an answer lacks: the assignment whose largest peak is the least."""

from __future__ import annotations

from collections.abc import Iterator

from symconfig.solve.stages.chain import leanest_chain
from symconfig.solve.stages.clock import spent_s
from symconfig.solve.stages.content import Mode, Scale, modes
from symconfig.solve.stages.cuts import every, longest_chunk
from symconfig.solve.stages.judge import assignment, cornered, stage_peaks
from symconfig.solve.stages.problem import Lean, Solver, StageProblem
from symconfig.solve.stages.program import Answer, leanest_program
from symconfig.solve.stages.stage import leanest_of_cut


def leanest(problem: StageProblem, *, time_limit_s: float = 10.0, solver: Solver = "cbc") -> Lean | None:
    """Return the leanest assignment. None: no cut at all that the target can say. time_limit_s: of the processor."""
    until = spent_s() + time_limit_s
    problem = cornered(problem)
    scale = Scale(problem)
    answers = [answer for mode in _modes(problem) for answer in _answers(scale, mode, solver, until)]
    assignments = [answer.assignment for answer in answers if answer.assignment is not None]
    if not assignments:
        return None
    best = min(assignments, key=lambda one: (max(stage_peaks(problem, one)), one.chunks, one.choices))
    peaks = stage_peaks(problem, best)
    return Lean(best, peaks.index(max(peaks)), peaks, problem.limit_bytes, all(answer.proved for answer in answers))


def _modes(problem: StageProblem) -> tuple[Mode | None, ...]:
    """Return all modes, but of recomputed first layers only the most where recomputing never takes more bytes."""
    every = modes(problem, longest_chunk(problem))
    per_block = (problem.kept_bytes, problem.once_bytes, problem.transient_bytes)
    saves = all(of_kind[min(1, len(of_kind) - 1)] <= of_kind[0] for part in per_block for of_kind in part.values())
    return (every[-1:] if every[-1:] and every[-1].first and saves else every) or (None,)


def _answers(scale: Scale, mode: Mode | None, solver: Solver, until: float) -> Iterator[Answer]:
    problem = scale.problem
    if problem.fixed is not None or not problem.layouts.free(problem.vpp):
        for chunks in every(problem):
            yield Answer(leanest_of_cut(scale, chunks, mode), 0.0, True)
    elif problem.vpp == 1:
        chain = leanest_chain(scale, mode)
        if chain is not None:
            yield Answer(assignment(problem, chain.chunks, chain.choices, mode.first if mode else 0), 0.0, True)
    else:
        yield leanest_program(scale, mode, solver, max(until - spent_s(), 0.1))
