"""What an assignment comes to, block by block: the seconds and the peak of every stage, and what is wrong with it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from symconfig.solve.stages.problem import Array, Assignment, StageProblem

CLOSE = 1e-9  # relative: seconds and bytes that differ by less are the same


def stage_seconds(problem: StageProblem, assignment: Assignment) -> tuple[float, ...]:
    """Return the seconds of one microbatch through all chunks of each stage."""
    result = [0.0] * problem.pp
    for j, seconds in enumerate(chunk_seconds(problem, assignment)):
        result[j % problem.pp] += seconds
    return tuple(result)


def chunk_seconds(problem: StageProblem, assignment: Assignment) -> tuple[float, ...]:
    """Return the seconds of each chunk in model order."""
    return tuple(
        sum(problem.seconds[kind][choice] for kind, choice in zip(chunk, choices, strict=True))
        for chunk, choices in zip(assignment.chunks, assignment.choices, strict=True)
    )


def stage_peaks(problem: StageProblem, assignment: Assignment) -> tuple[float, ...]:
    """Return the bytes of every stage at its worst moment."""
    result = []
    for stage in range(problem.pp):
        held = problem.held[stage]
        once, working, kept = problem.stage_bytes[stage], 0.0, [0.0] * problem.vpp
        for k in range(problem.vpp):
            j = stage + k * problem.pp
            for kind, choice in zip(assignment.chunks[j], assignment.choices[j], strict=True):
                once += problem.state_bytes[kind] + problem.once_bytes[kind][choice]
                working = max(working, problem.transient_bytes[kind][choice])
                kept[k] += problem.kept_bytes[kind][choice]
        result.append(once + working + float((held @ kept).max()))
    return tuple(result)


def without_collinear(problem: StageProblem) -> StageProblem:
    """Return the moments without those on the line from the one before to the one after: bytes are linear in what is
    held.
    """
    return replace(problem, held=tuple(map(_corners, problem.held)))


def _corners(held: Array) -> Array:
    steps = np.diff(held, axis=0)
    turns = (steps[1:] != steps[:-1]).any(axis=1)
    return held[np.concatenate(([True], turns, [True]))] if len(held) > 2 else held


def fits(problem: StageProblem, peak_bytes: float) -> bool:
    return peak_bytes <= problem.limit_bytes * (1 + CLOSE)
