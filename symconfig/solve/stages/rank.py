"""Which of the assignments with the same slowest stage a schedule is likely to run fastest."""

from __future__ import annotations

from collections.abc import Iterable

from symconfig.solve.stages.judge import chunk_seconds, stage_peaks
from symconfig.solve.stages.problem import Assignment, StageProblem

DIGITS = 9  # significant ones of seconds and bytes that are compared


def ranked(problem: StageProblem, found: Iterable[Assignment]) -> list[Assignment]:
    """Without doubles: shortest rounds first, then those whose longest is shortest, then the least work and peak.

    That order and the early chunks for what is left over are what the simulated interleaved schedule is fastest with.
    """
    return sorted(dict.fromkeys(found), key=lambda one: _key(problem, one))


def _key(problem: StageProblem, one: Assignment) -> tuple[object, ...]:
    seconds = chunk_seconds(problem, one)
    # A round is over when the slowest of its chunks is: chunks k pp to k pp + pp - 1.
    rounds = [max(seconds[start : start + problem.pp]) for start in range(0, len(seconds), problem.pp)]
    figures = (sum(rounds), max(rounds), sum(seconds), max(stage_peaks(problem, one)))
    return (*(float(f"{figure:.{DIGITS}g}") for figure in figures), one.chunks, one.choices)
