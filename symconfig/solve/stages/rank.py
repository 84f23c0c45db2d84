"""Which of the assignments found a schedule is likely to run fastest."""

from __future__ import annotations

from collections.abc import Iterable

from symconfig.solve.stages.judge import chunk_seconds, stage_peaks, stage_seconds
from symconfig.solve.stages.problem import Assignment, StageProblem

DIGITS = 9  # significant ones of seconds and bytes that are compared


def ranked(problem: StageProblem, assignments: Iterable[Assignment]) -> list[Assignment]:
    """Rank assignments without doubles, the fastest slowest stage first; of equal ones the shortest rounds, then those
    whose longest is shortest, then the least work and peak. Slower ones only where their rounds are shorter than all
    before.

    That is what the simulated interleaved schedule asks for: chunks that differ within a round make it wait more than
    a slower stage does.
    """
    keys = {one: _key(problem, one) for one in dict.fromkeys(assignments)}
    result: list[Assignment] = []
    for one in sorted(keys, key=lambda one: (*keys[one], one.chunks, one.choices)):
        slowest_s, rounds_s = keys[one][:2]
        first = keys[result[0]][0] if result else slowest_s
        if slowest_s == first or rounds_s < min(keys[other][1] for other in result):
            result.append(one)
    return result


def _key(problem: StageProblem, one: Assignment) -> tuple[float, ...]:
    seconds = chunk_seconds(problem, one)
    # A round is over when the slowest of its chunks is: chunks k pp to k pp + pp - 1.
    rounds = [max(seconds[start : start + problem.pp]) for start in range(0, len(seconds), problem.pp)]
    slowest = max(stage_seconds(problem, one))
    figures = (slowest, sum(rounds), max(rounds), sum(seconds), max(stage_peaks(problem, one)))
    return tuple(float(f"{figure:.{DIGITS}g}") for figure in figures)
