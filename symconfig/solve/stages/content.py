"""What a chunk holds and what that weighs: seconds of one microbatch and bytes of one device, by recompute mode."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

import numpy as np

from symconfig.graph.parts import is_layer
from symconfig.solve.stages.problem import Scope, StageProblem

Content = tuple[tuple[str, int], ...]  # runs of equal blocks in model order: (kind, how many)


class Weight(NamedTuple):
    """The weight of one chunk. kept_bytes: of each microbatch held; transient_bytes: the largest of its blocks."""

    seconds: float
    kept_bytes: float
    once_bytes: float  # state included
    transient_bytes: float


class Option(NamedTuple):
    """One way to recompute in a chunk."""

    weight: Weight
    choices: tuple[int, ...]  # of every block


EMPTY = Option(Weight(0.0, 0.0, 0.0, 0.0), ())


@dataclass(frozen=True, slots=True)
class Mode:
    """A setting that all chunks share: `choice` everywhere, and choice 1 for the first layers of every chunk."""

    choice: int
    first: int = 0

    def of(self, content: Content) -> tuple[int, ...]:
        """Return the choice of every block."""
        left, result = self.first, []
        for kind, count in content:
            repeated = min(left, count) if is_layer(kind) else 0
            left -= repeated
            result += [1] * repeated + [self.choice] * (count - repeated)
        return tuple(result)


def content(kinds: Iterable[str]) -> Content:
    return tuple((kind, len(list(group))) for kind, group in groupby(kinds))


def layers(kinds: Iterable[str]) -> int:
    """Count the blocks that are no ends."""
    return sum(map(is_layer, kinds))


def modes(problem: StageProblem, longest: int) -> tuple[Mode, ...]:
    """Return settings to be tried one by one; none where every stage or block has its own. longest: layers of a
    chunk.
    """
    if problem.scope is Scope.MODEL:
        return tuple(Mode(choice) for choice in range(problem.choices))
    if problem.scope is Scope.FIRST:
        return tuple(Mode(0, first) for first in range(longest + 1 if problem.choices > 1 else 1))
    return ()


@dataclass(slots=True)
class Scale:
    """Weighs contents; what was weighed once is remembered."""

    problem: StageProblem
    seen: dict[tuple[Content, Mode], Option] = field(default_factory=dict)
    mixed: dict[Content, tuple[Option, ...]] = field(default_factory=dict)

    def option(self, chunk: Content, mode: Mode) -> Option:
        key = (chunk, mode)
        if key not in self.seen:
            choices = mode.of(chunk)
            self.seen[key] = Option(self.weight(chunk, choices), choices)
        return self.seen[key]

    def weight(self, chunk: Content, choices: Sequence[int]) -> Weight:
        p = self.problem
        kinds = [kind for kind, count in chunk for _ in range(count)]
        pairs = list(zip(kinds, choices, strict=True))
        return Weight(
            sum(p.seconds[kind][choice] for kind, choice in pairs),
            sum(p.kept_bytes[kind][choice] for kind, choice in pairs),
            sum(p.state_bytes[kind] + p.once_bytes[kind][choice] for kind, choice in pairs),
            max((p.transient_bytes[kind][choice] for kind, choice in pairs), default=0.0),
        )

    def mixes(self, chunk: Content) -> tuple[Option, ...]:
        """Return every mix of choices that no other one beats in all of seconds, bytes kept, once and transient."""
        if chunk not in self.mixed:
            options = [EMPTY]
            for run in chunk:
                options = best_of(_joined(left, right) for left in options for right in self._of_run(run))
            self.mixed[chunk] = tuple(options)
        return self.mixed[chunk]

    def _of_run(self, run: tuple[str, int]) -> list[Option]:
        """Return mixes of equal blocks: only how many have each choice matters; the higher choices come first."""
        kind, count = run
        mixes = []
        for counts in compositions(count, self.problem.choices):
            choices = tuple(c for c in reversed(range(len(counts))) for _ in range(counts[c]))
            mixes.append(Option(self.weight(((kind, count),), choices), choices))
        return best_of(mixes)


def peak_bytes(problem: StageProblem, stage: int, weights: Sequence[Weight]) -> float:
    """Return the bytes of a stage whose chunks weigh so, at its worst moment."""
    kept = np.array([weight.kept_bytes for weight in weights])
    return (
        problem.stage_bytes[stage]
        + sum(weight.once_bytes for weight in weights)
        + max(weight.transient_bytes for weight in weights)
        + float((problem.held[stage] @ kept).max())
    )


def compositions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    """Yield every way to write total as a sum of so many numbers from 0 on, in order."""
    if parts == 1:
        yield (total,)
        return
    for first in range(total + 1):
        for rest in compositions(total - first, parts - 1):
            yield (first, *rest)


def best_of(options: Iterable[Option]) -> list[Option]:
    """Return the options that no other one beats or equals in everything."""
    kept: list[Option] = []
    for option in sorted(options):
        if not any(all(a <= b for a, b in zip(other.weight, option.weight, strict=True)) for other in kept):
            kept.append(option)
    return kept


def _joined(left: Option, right: Option) -> Option:
    a, b = left.weight, right.weight
    weight = Weight(
        a.seconds + b.seconds,
        a.kept_bytes + b.kept_bytes,
        a.once_bytes + b.once_bytes,
        max(a.transient_bytes, b.transient_bytes),
    )
    return Option(weight, left.choices + right.choices)
