"""Columns of the integer program: what one chunk may hold, by where in the model it starts and ends.

The model is a row of runs of equal blocks. A chunk starts and ends at a border between runs or inside a run; inside,
only how many blocks it takes is known, not which: equal blocks need no number, and counting them keeps columns few.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from symconfig.solve.stages.content import Content, Mode, Option, Scale, content
from symconfig.solve.stages.cuts import allowed
from symconfig.solve.stages.judge import CLOSE
from symconfig.solve.stages.problem import Scope
from symconfig.solve.stages.stage import fastest

Place = tuple[int, bool]  # before run r, or (True) inside it
Taken = tuple[int, int]  # (number of a run, how many of its blocks)


@dataclass(frozen=True, slots=True)
class Span:
    """Content of a chunk and where it lies."""

    start: Place
    end: Place
    content: Content
    taken: tuple[Taken, ...]


@dataclass(frozen=True, slots=True)
class Column:
    """One way to fill and run one chunk."""

    chunk: int
    span: Span
    option: Option


def columns(scale: Scale, mode: Mode | None, most_s: float) -> list[Column]:
    """Return every column that may be part of an answer whose stages take at most most_s."""
    problem = scale.problem
    runs = content(problem.sequence)
    by_start: dict[Place, list[Span]] = {}
    quickest = {kind: min(problem.seconds[kind]) for kind in problem.seconds}

    def spans(start: Place) -> list[Span]:
        if start not in by_start:
            by_start[start] = list(_spans(runs, start, quickest, most_s))
        return by_start[start]

    reached: set[Place] = {(0, False)}
    by_chunk: list[list[Column]] = []
    for chunk in range(problem.pp * problem.vpp):
        mine = [
            Column(chunk, span, option)
            for start in sorted(reached)
            for span in spans(start)
            if allowed(problem, chunk, span.content)
            for option in options(scale, chunk, span.content, mode)
            if option.weight.seconds <= most_s * (1 + CLOSE)
        ]
        by_chunk.append(mine)
        reached = {column.span.end for column in mine}
    return _that_arrive(by_chunk, (len(runs), False))


def options(scale: Scale, chunk: int, held: Content, mode: Mode | None) -> list[Option]:
    """Return the ways to recompute in a chunk; where it is all that its stage has, only the best one, if it fits."""
    problem = scale.problem
    if problem.vpp == 1:
        one = fastest(scale, chunk, (held,), mode)
        return [] if one is None else [Option(scale.weight(held, one.choices[0]), one.choices[0])]
    if mode is not None:
        return [scale.option(held, mode)]
    if problem.scope is Scope.STAGE:
        return [scale.option(held, Mode(choice)) for choice in range(problem.choices)]
    return list(scale.mixes(held))


def _spans(runs: Content, start: Place, quickest: Mapping[str, float], most_s: float) -> Iterator[Span]:
    """Yield all contents of a chunk that starts there, none that takes longer than most_s at its quickest."""

    def onward(place: Place, held: Content, taken: tuple[Taken, ...], room_s: float) -> Iterator[Span]:
        yield Span(start, place, held, taken)
        run, inside = place
        if run == len(runs):
            return
        kind, count = runs[run]
        for part in range(1, count + (not inside)):
            left_s = room_s - part * quickest[kind]
            if left_s < 0:
                return
            more = (*held, (kind, part)), (*taken, (run, part))
            if part < count - inside:  # leaves some of the run to later chunks
                yield Span(start, (run, True), *more)
            if inside or part == count:  # takes what is left of the run
                yield from onward((run + 1, False), *more, left_s)

    yield from onward(start, (), (), most_s * (1 + CLOSE))


def _that_arrive(by_chunk: Sequence[Sequence[Column]], end: Place) -> list[Column]:
    """Return the contents from which the later chunks can reach the end of the model."""
    arriving = {end}
    kept: list[Column] = []
    for mine in reversed(by_chunk):
        useful = [column for column in mine if column.span.end in arriving]
        arriving = {column.span.start for column in useful}
        kept += useful
    return kept
