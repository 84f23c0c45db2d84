"""The best recompute of one stage whose chunks are known."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from symconfig.solve.stages.content import Content, Mode, Option, Scale, content, peak_bytes
from symconfig.solve.stages.judge import CLOSE, assignment, fits
from symconfig.solve.stages.problem import Assignment, Chunks, Scope


class Staffed(NamedTuple):
    """A stage with the choices of all of its blocks, chunk by chunk."""

    seconds: float
    peak_bytes: float
    choices: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class _Part:
    """Some chunks of a stage. amounts: seconds, bytes once, working set, then kept bytes at every moment."""

    amounts: tuple[float, ...]
    choices: tuple[tuple[int, ...], ...]


def staffed(scale: Scale, stage: int, chunks: Sequence[Content], mode: Mode | None) -> Iterator[Staffed]:
    """Yield every way to recompute in a stage that may be the best one. mode: of all chunks; None: the scope's own."""
    for options in _ways(scale, stage, chunks, mode):
        weights = [option.weight for option in options]
        seconds = sum(weight.seconds for weight in weights)
        yield Staffed(seconds, peak_bytes(scale.problem, stage, weights), tuple(option.choices for option in options))


def fastest(scale: Scale, stage: int, chunks: Sequence[Content], mode: Mode | None) -> Staffed | None:
    """Return the fastest that fits, the leanest of equally fast ones."""
    ways = staffed(scale, stage, chunks, mode)
    return min((one for one in ways if fits(scale.problem, one.peak_bytes)), default=None)


def fastest_of_cut(scale: Scale, chunks: Chunks, mode: Mode | None, most_s: float) -> Assignment | None:
    """Return every stage at its fastest, if all fit and none takes longer than most_s."""
    return _of_cut(scale, chunks, mode, most_s, fastest)


def leanest_of_cut(scale: Scale, chunks: Chunks, mode: Mode | None) -> Assignment:
    stages = _of_cut(scale, chunks, mode, float("inf"), leanest)
    assert stages is not None
    return stages


def _of_cut(
    scale: Scale,
    chunks: Chunks,
    mode: Mode | None,
    most_s: float,
    pick: Callable[[Scale, int, Sequence[Content], Mode | None], Staffed | None],
) -> Assignment | None:
    contents, pp = [content(chunk) for chunk in chunks], scale.problem.pp
    choices: list[tuple[int, ...]] = [()] * len(chunks)
    for stage in range(pp):
        one = pick(scale, stage, contents[stage::pp], mode)
        if one is None or one.seconds > most_s * (1 + CLOSE):
            return None
        choices[stage::pp] = one.choices
    return assignment(scale.problem, chunks, tuple(choices), mode.first if mode else 0)


def leanest(scale: Scale, stage: int, chunks: Sequence[Content], mode: Mode | None) -> Staffed:
    return min(staffed(scale, stage, chunks, mode), key=lambda one: (one.peak_bytes, one.seconds, one.choices))


def _ways(scale: Scale, stage: int, chunks: Sequence[Content], mode: Mode | None) -> Iterator[Sequence[Option]]:
    if mode is not None:
        yield [scale.option(chunk, mode) for chunk in chunks]
    elif scale.problem.scope is Scope.STAGE:
        for choice in range(scale.problem.choices):
            yield [scale.option(chunk, Mode(choice)) for chunk in chunks]
    elif len(chunks) == 1:
        yield from ([option] for option in scale.mixes(chunks[0]))
    else:
        yield from _folded(scale, stage, chunks)


def _folded(scale: Scale, stage: int, chunks: Sequence[Content]) -> Iterator[Sequence[Option]]:
    """Fold chunk by chunk, dropping what another way beats in seconds and in the bytes of every moment."""
    held = scale.problem.held[stage]
    parts = [_Part((0.0,) * (3 + len(held)), ())]
    for k, chunk in enumerate(chunks):
        moments = tuple(float(count) for count in held[:, k])
        parts = _unbeaten(_added(part, option, moments) for part in parts for option in scale.mixes(chunk))
    for part in parts:
        pairs = zip(chunks, part.choices, strict=True)
        yield [Option(scale.weight(chunk, choices), choices) for chunk, choices in pairs]


def _added(part: _Part, option: Option, moments: tuple[float, ...]) -> _Part:
    weight = option.weight
    seconds, once, working, *kept = part.amounts
    amounts = (
        seconds + weight.seconds,
        once + weight.once_bytes,
        max(working, weight.transient_bytes),
        *(total + count * weight.kept_bytes for total, count in zip(kept, moments, strict=True)),
    )
    return _Part(amounts, (*part.choices, option.choices))


def _unbeaten(parts: Iterable[_Part]) -> list[_Part]:
    kept: list[_Part] = []
    for part in sorted(parts, key=lambda one: (one.amounts, one.choices)):
        if not any(all(a <= b for a, b in zip(other.amounts, part.amounts, strict=True)) for other in kept):
            kept.append(part)
    return kept
