"""What a chunk holds and what that weighs: seconds of one microbatch and bytes of one device, by recompute mode."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
    """Return settings to be tried one by one. longest: layers of a chunk."""
    if problem.scope is Scope.MODEL:
        return tuple(Mode(choice) for choice in range(problem.choices))
    return tuple(Mode(0, first) for first in range(longest + 1 if problem.choices > 1 else 1))


@dataclass(slots=True)
class Scale:
    """Weighs contents; what was weighed once is remembered."""

    problem: StageProblem
    seen: dict[tuple[Content, Mode], Option] = field(default_factory=dict)

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


def peak_bytes(problem: StageProblem, stage: int, weights: Sequence[Weight]) -> float:
    """Return the bytes of a stage whose chunks weigh so, at its worst moment."""
    kept = np.array([weight.kept_bytes for weight in weights])
    return (
        problem.stage_bytes[stage]
        + sum(weight.once_bytes for weight in weights)
        + max(weight.transient_bytes for weight in weights)
        + float((problem.held[stage] @ kept).max())
    )


class Staffed(NamedTuple):
    """A stage with the choices of all of its blocks, chunk by chunk."""

    seconds: float
    peak_bytes: float
    choices: tuple[tuple[int, ...], ...]


def stage_of(scale: Scale, stage: int, chunks: Sequence[Content], mode: Mode) -> Staffed:
    """Return a stage that holds these chunks in a mode."""
    options = [scale.option(chunk, mode) for chunk in chunks]
    weights = [option.weight for option in options]
    seconds, peak = sum(weight.seconds for weight in weights), peak_bytes(scale.problem, stage, weights)
    return Staffed(seconds, peak, tuple(option.choices for option in options))
