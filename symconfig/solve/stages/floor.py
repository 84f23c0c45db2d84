"""What a stage takes at least, by how many layers of each kind it has, wherever these lie in the model."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import prod

import numpy as np

from symconfig.graph.parts import is_layer
from symconfig.solve.stages.content import Mode
from symconfig.solve.stages.cuts import least_layers
from symconfig.solve.stages.problem import StageProblem

MOST_STATES = 512  # ways to take layers of all kinds but one; with more of them, kinds of like seconds count as one
Bag = tuple[int, ...]  # blocks of each kind on a stage


@dataclass(frozen=True, slots=True)
class Kind:
    """Blocks that count as equal: how many the model has, and the least that any of them weighs.

    again_s and saved_bytes: the difference when it is among the recomputed first layers of its chunk.
    """

    layer: bool
    count: int
    seconds: float
    again_s: float
    kept_bytes: float
    saved_bytes: float
    once_bytes: float
    transient_bytes: float


@dataclass(frozen=True, slots=True)
class Floor:
    """A stage. base_s and transient_bytes: of its ends.

    moments: (bytes of its ends, microbatches that every chunk holds at least, those that the chunks hold beyond, summed
    over the layers that they must have).
    """

    kinds: tuple[Kind, ...]
    first: int
    chunks: int
    least: int  # layers that its chunks must hold
    base_s: float
    moments: tuple[tuple[float, float, float], ...]
    transient_bytes: float

    def recomputable(self, bag: Bag) -> tuple[int, int]:
        """Return the fewest and the most layers that may be recomputed."""
        layers = sum(count for count, kind in zip(bag, self.kinds, strict=True) if kind.layer)
        # The fewest are recomputed when one chunk has all that the others need not have.
        others = max(min(layers, self.least) - 1, 0)
        fewest = min(self.first, layers - others) + others if self.first else 0
        return fewest, min(layers, self.first * self.chunks)

    @property
    def again_s(self) -> float:
        """Return the additional seconds of each recomputed layer."""
        return min((kind.again_s for kind in self.kinds if kind.layer), default=0.0)

    def seconds(self, bag: Bag, repeated: int) -> float:
        plain = sum(count * kind.seconds for count, kind in zip(bag, self.kinds, strict=True))
        return self.base_s + plain + repeated * self.again_s

    def peak_bytes(self, bag: Bag, repeated: int) -> float:
        pairs = [(count, kind) for count, kind in zip(bag, self.kinds, strict=True) if count]
        kept = sum(count * (kind.kept_bytes - kind.saved_bytes) for count, kind in pairs)
        once = sum(count * kind.once_bytes for count, kind in pairs)
        working = max((kind.transient_bytes for _, kind in pairs), default=0.0)
        of_layers = [kind for kind in self.kinds if kind.layer]
        lightest = min((kind.kept_bytes - kind.saved_bytes for kind in of_layers), default=0.0)
        as_they_are = sum(count for count, kind in pairs if kind.layer) - repeated
        kept += as_they_are * min((kind.saved_bytes for kind in of_layers), default=0.0)
        moments = max(base + held * kept + beyond * lightest for base, held, beyond in self.moments)
        return once + max(working, self.transient_bytes) + moments


def floors(problem: StageProblem, mode: Mode) -> list[Floor]:
    """Return the floors of every stage in the mode."""
    kinds = _kinds(problem, mode)
    return [_floor(problem, stage, mode, kinds) for stage in range(problem.pp)]


def _allowed(kind: str, mode: Mode) -> tuple[int, ...]:
    """Return the choices that a block may have."""
    return (mode.choice, 1) if mode.first and is_layer(kind) else (mode.choice,)


def _tied(problem: StageProblem) -> dict[str, int]:
    """Return the kinds that lie in the first or last chunk of all, and in which."""
    places = {kind: problem.chunk_of(kind) for kind in dict.fromkeys(reversed(problem.sequence))}
    return {kind: chunk for kind, chunk in places.items() if chunk is not None}


def _kinds(problem: StageProblem, mode: Mode) -> tuple[Kind, ...]:
    """Return the kinds of all that is not tied to a chunk; the most frequent one last."""
    tied = _tied(problem)
    kinds = []
    for name, count in Counter(kind for kind in problem.sequence if kind not in tied).items():
        choices = _allowed(name, mode)
        seconds = [problem.seconds[name][c] for c in choices]
        kept = [problem.kept_bytes[name][c] for c in choices]
        repeats = len(choices) > 1
        kinds.append(
            Kind(
                layer=is_layer(name),
                count=count,
                seconds=min(seconds),
                again_s=seconds[-1] - min(seconds) if repeats else 0.0,
                kept_bytes=kept[0] if repeats else min(kept),
                saved_bytes=max(kept[0] - kept[-1], 0.0) if repeats else 0.0,
                once_bytes=problem.state_bytes[name] + min(problem.once_bytes[name][c] for c in choices),
                transient_bytes=min(problem.transient_bytes[name][c] for c in choices),
            )
        )
    kinds.sort(key=lambda kind: (kind.count, kind.seconds))
    while prod(kind.count + 1 for kind in kinds[:-1]) > MOST_STATES:
        kinds = _fewer(kinds)
    return tuple(kinds)


def _fewer(kinds: list[Kind]) -> list[Kind]:
    """Join the two kinds of most alike seconds to one that weighs the less of both."""
    kinds = sorted(kinds, key=lambda kind: (kind.layer, kind.seconds))
    alike = min(range(len(kinds) - 1), key=lambda n: kinds[n + 1].seconds - kinds[n].seconds)
    a, b = kinds[alike], kinds[alike + 1]
    one = Kind(
        layer=a.layer and b.layer,
        count=a.count + b.count,
        seconds=min(a.seconds, b.seconds),
        again_s=min(a.again_s, b.again_s),
        kept_bytes=min(a.kept_bytes, b.kept_bytes),
        saved_bytes=max(a.saved_bytes, b.saved_bytes),
        once_bytes=min(a.once_bytes, b.once_bytes),
        transient_bytes=min(a.transient_bytes, b.transient_bytes),
    )
    return sorted([*kinds[:alike], one, *kinds[alike + 2 :]], key=lambda kind: (kind.count, kind.seconds))


def _floor(problem: StageProblem, stage: int, mode: Mode, kinds: tuple[Kind, ...]) -> Floor:
    pp, vpp = problem.pp, problem.vpp
    ends = [
        (kind, chunk // pp, _allowed(kind, mode))
        for kind, chunk in _tied(problem).items()
        for _ in range(problem.sequence.count(kind))
        if chunk % pp == stage
    ]
    least = np.array(least_layers(problem)[stage::pp])
    once = problem.stage_bytes[stage]
    once += sum(
        problem.state_bytes[kind] + min(problem.once_bytes[kind][c] for c in choices) for kind, _, choices in ends
    )
    kept = np.zeros(vpp)
    for kind, k, choices in ends:
        kept[k] += min(problem.kept_bytes[kind][c] for c in choices)
    held = problem.held[stage]
    fewest = held.min(axis=1)
    return Floor(
        kinds=kinds,
        first=mode.first,
        chunks=vpp,
        least=int(least.sum()),
        base_s=sum(min(problem.seconds[kind][c] for c in choices) for kind, _, choices in ends),
        moments=tuple(
            zip(
                (once + held @ kept).tolist(), fewest.tolist(), ((held - fewest[:, None]) @ least).tolist(), strict=True
            )
        ),
        transient_bytes=max(
            (min(problem.transient_bytes[kind][c] for c in choices) for kind, _, choices in ends), default=0.0
        ),
    )
