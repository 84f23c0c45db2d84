"""The stage problem by trying everything, written from its definition alone."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import combinations_with_replacement, pairwise
from operator import mul

from symconfig.solve.stages.problem import Chunks, Scope, StageProblem

ENDS = {"embedding", "mtp", "head"}
Choices = tuple[tuple[int, ...], ...]


def best(problem: StageProblem) -> float | None:
    """The least slowest stage of all that fits; None if nothing does."""
    found = (slowest for slowest, peak in everything(problem) if peak <= problem.limit_bytes)
    return min(found, default=None)


def least_peak(problem: StageProblem) -> float | None:
    return min((peak for _, peak in everything(problem)), default=None)


def everything(problem: StageProblem) -> Iterator[tuple[float, float]]:
    """(slowest stage, largest peak) of every cut and choice. A stage with the same chunks is in many cuts: it is priced
    once."""

    @cache
    def priced(index: int, mine: Chunks, choices: Choices) -> tuple[float, float]:
        return stage(problem, index, mine, choices)

    for chunks in cuts(problem):
        for choices in shared(problem, chunks):
            yield worst([priced(i, chunks[i :: problem.pp], choices[i :: problem.pp]) for i in range(problem.pp)])


def worst(stages: list[tuple[float, float]]) -> tuple[float, float]:
    return max(s for s, _ in stages), max(b for _, b in stages)


def cuts(problem: StageProblem) -> Iterator[Chunks]:
    total, chunks = len(problem.sequence), problem.pp * problem.vpp
    for borders in combinations_with_replacement(range(total + 1), chunks - 1):
        ends = (0, *borders, total)
        cut = tuple(problem.sequence[a:b] for a, b in pairwise(ends))
        if all(legal(problem, number, chunk, chunks) for number, chunk in enumerate(cut)) and even_enough(problem, cut):
            yield cut


def even_enough(problem: StageProblem, cut: Chunks) -> bool:
    if problem.vpp == 1 or problem.layouts.uneven:
        return True
    first, *inside, last = (sum(kind not in ENDS for kind in chunk) for chunk in cut)
    return inside == [inside[0]] * len(inside) and first <= inside[0] + 1 and last <= inside[0] + 1


def legal(problem: StageProblem, number: int, chunk: tuple[str, ...], chunks: int) -> bool:
    rules = problem.layouts
    if "embedding" in chunk and number != 0:
        return False
    if "head" in chunk and number != chunks - 1:
        return False
    if rules.mtp_with_head and "mtp" in chunk and number != chunks - 1:
        return False
    if set(chunk) - ENDS:
        return True
    return rules.empty_ends if chunk else rules.empty


def shared(problem: StageProblem, chunks: Chunks) -> Iterator[Choices]:
    if problem.scope is Scope.MODEL:
        for choice in range(problem.choices):
            yield tuple((choice,) * len(chunk) for chunk in chunks)
        return
    for first in range(len(problem.sequence)):
        result = []
        for chunk in chunks:
            layers = 0
            mine = []
            for kind in chunk:
                layers += kind not in ENDS
                mine.append(1 if kind not in ENDS and layers <= first else 0)
            result.append(tuple(mine))
        yield tuple(result)


def stage(problem: StageProblem, index: int, mine: Chunks, choices: Choices) -> tuple[float, float]:
    """(seconds, peak bytes) of stage `index`, which has the chunks `mine`."""
    seconds, once, working = 0.0, problem.stage_bytes[index], 0.0
    kept = []
    for chunk, chosen in zip(mine, choices, strict=True):
        kept.append(0.0)
        for kind, choice in zip(chunk, chosen, strict=True):
            seconds += problem.seconds[kind][choice]
            once += problem.state_bytes[kind] + problem.once_bytes[kind][choice]
            working = max(working, problem.transient_bytes[kind][choice])
            kept[-1] += problem.kept_bytes[kind][choice]
    moments = [sum(map(mul, row, kept)) for row in problem.held[index].tolist()]
    return seconds, once + working + max(moments)
