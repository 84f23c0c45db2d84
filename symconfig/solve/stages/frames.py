"""Where the blocks beside the longest run of equal layers may lie: the few before it, the few after it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby, takewhile

from symconfig.graph.parts import place_of
from symconfig.solve.stages.content import Content, content, layers
from symconfig.solve.stages.cuts import allowed
from symconfig.solve.stages.problem import StageProblem


@dataclass(frozen=True, slots=True)
class Frame:
    """Places of all but the run: kinds before and after it in each chunk, and whether the chunk may hold of it."""

    before: tuple[Content, ...]
    after: tuple[Content, ...]
    open: tuple[bool, ...]
    kind: str  # of the run
    count: int

    def chunk(self, number: int, of_run: int) -> Content:
        """Return what a chunk holds, with so many blocks of the run."""
        return (*self.before[number], *(((self.kind, of_run),) if of_run else ()), *self.after[number])


def frames(problem: StageProblem) -> Iterator[Frame]:
    """Yield every way to place what lies before and after the longest run, without empty chunks between; none where the
    run is less than half of the model.
    """
    sequence, chunks = problem.sequence, problem.pp * problem.vpp
    start, count = _longest(sequence)
    if 2 * count < len(sequence) - max(_staying(sequence) - 1, 0):
        return
    before, after = sequence[:start], sequence[start + count :]
    for stem in _placed(before, chunks):
        for tail in _placed(after[::-1], chunks):
            if len(stem) + len(tail) > chunks + 1:
                continue
            fore = [*map(content, stem), *[()] * (chunks - len(stem))]
            back = [*[()] * (chunks - len(tail)), *(content(part[::-1]) for part in reversed(tail))]
            within = tuple(len(stem) - 1 <= chunk <= chunks - len(tail) for chunk in range(chunks))
            frame = Frame(tuple(fore), tuple(back), within, sequence[start], count)
            if all(allowed(problem, chunk, frame.chunk(chunk, int(within[chunk]))) for chunk in range(chunks)):
                yield frame


def excess_s(problem: StageProblem, frame: Frame) -> float:
    """Return the seconds by which chunks are longer than an even share before they hold any of the run."""
    share_s = sum(min(problem.seconds[kind]) for kind in problem.sequence) / (problem.pp * problem.vpp)
    fixed = ((*before, *after) for before, after in zip(frame.before, frame.after, strict=True) if before or after)
    each = (sum(count * min(problem.seconds[kind]) for kind, count in chunk) for chunk in fixed)
    return sum(max(seconds - share_s, 0.0) for seconds in each)


def _longest(sequence: tuple[str, ...]) -> tuple[int, int]:
    """Start and length of the longest run of equal layers."""
    best, start = (0, 0), 0
    for kind, group in groupby(sequence):
        count = len(list(group))
        if layers((kind,)) and count > best[1]:
            best = (start, count)
        start += count
    return best


def _placed(blocks: tuple[str, ...], chunks: int) -> Iterator[tuple[tuple[str, ...], ...]]:
    """Yield the places of blocks from an end of the model inwards over the first so many chunks there, none empty but
    perhaps the first, in which the embedding and the head stay. Fewest chunks first.
    """
    if not blocks:
        yield ((),)
        return
    for parts in range(1, min(len(blocks) + 1, chunks) + 1):
        yield from _parted(blocks, parts, _staying(blocks))


def _staying(blocks: tuple[str, ...]) -> int:
    """Count the blocks at an end of the model that stay in its chunk."""
    places = map(place_of, blocks)
    return sum(1 for _ in takewhile(lambda place: place.begins or place.outermost, places))


def _parted(blocks: tuple[str, ...], parts: int, least: int) -> Iterator[tuple[tuple[str, ...], ...]]:
    if parts == 1:
        if len(blocks) >= least:
            yield (blocks,)
        return
    for size in range(len(blocks) - parts + 1, least - 1, -1):
        for rest in _parted(blocks[size:], parts - 1, 1):
            yield (blocks[:size], *rest)
