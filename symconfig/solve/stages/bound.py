"""Lower bounds of the slowest stage: every stage takes the layers that suit it, wherever these lie in the model.

Exact for equal layers with one chunk a stage, and with several as long as memory does not bind.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from math import prod

import numpy as np
import numpy.typing as npt

from symconfig.graph.parts import is_layer
from symconfig.solve.stages.content import Mode
from symconfig.solve.stages.cuts import least_layers
from symconfig.solve.stages.judge import CLOSE, fits
from symconfig.solve.stages.problem import StageProblem

Int = npt.NDArray[np.int64]


def work_s(problem: StageProblem, mode: Mode) -> float:
    """Return the seconds of all blocks in the mode, shared evenly by the stages: the quickest bound."""
    if mode.first:
        return sum(min(problem.seconds[kind]) for kind in problem.sequence) / problem.pp
    return sum(problem.seconds[kind][mode.choice] for kind in problem.sequence) / problem.pp


def bound_s(problem: StageProblem, mode: Mode, below_s: float = float("inf")) -> float:
    """Return seconds that the slowest stage of no assignment in the mode is below; infinite: none fits, or none
    is below below_s.
    """
    search = _Search(problem, floors(problem, mode))
    if not search.possible(below_s):
        return float("inf")
    kinds = search.floors[0].kinds
    work = sum(floor.base_s for floor in search.floors) + sum(kind.count * kind.seconds for kind in kinds)
    low = max(work / problem.pp, *(floor.base_s for floor in search.floors))
    step = max(kind.seconds + kind.again_s for kind in kinds)
    while True:
        values = search.seconds(low * (1 - CLOSE), low + step)
        place = bisect_left(values, True, key=search.possible)
        if place < len(values):
            return values[place]
        low, step = low + step, 2 * step


@dataclass(slots=True)
class _Search:
    """The question whether stages of at most so many seconds can take all blocks; what was worked out is remembered."""

    problem: StageProblem
    floors: list[Floor]
    longest: dict[tuple[float, int, Bag, float], int] = field(default_factory=dict)
    bags: list[Bag] = field(init=False)  # of all kinds but the last, as many as there are
    sums: Int = field(init=False)  # [bag, bag]: the place of the bag that both are together, but no more than all

    def __post_init__(self) -> None:
        others = np.array([kind.count for kind in self.floors[0].kinds[:-1]], dtype=np.int64)
        self.bags = list(product(*(range(count + 1) for count in others.tolist())))
        counts = np.array(self.bags, dtype=np.int64).reshape(len(self.bags), len(others))
        places = np.append(np.cumprod(others[:0:-1] + 1)[::-1], 1)[: len(others)]
        self.sums = np.minimum(counts[:, None] + counts, others) @ places

    def possible(self, most_s: float) -> bool:
        """Tell whether it is possible: blocks of the last kind are made as many as they can be, for every count of the
        others taken so far.
        """
        most = np.full(len(self.bags), -1)  # by bag; below 0: cannot be taken
        most[0] = 0
        for stage in self.floors:
            caps = {
                place: cap for place, bag in enumerate(self.bags) if (cap := self._cap(stage, bag, most_s)) is not None
            }
            taken, mine = np.flatnonzero(most >= 0), np.fromiter(caps, dtype=np.int64)
            totals = most[taken][:, None] + np.fromiter(caps.values(), dtype=np.int64)
            most = np.full(len(self.bags), -1)
            np.maximum.at(most, self.sums[np.ix_(taken, mine)], totals)
        return bool(most[-1] >= self.floors[0].kinds[-1].count)

    def _cap(self, stage: Floor, rest: Bag, most_s: float) -> int | None:
        """Return the most blocks of the last kind beside the others; None: not even the others, or too few layers."""
        cap = self._by_time(stage, rest, most_s)
        if cap >= 0 and not self._fits(stage, (*rest, cap), most_s):
            cap = bisect_left(range(cap), True, key=lambda n: not self._fits(stage, (*rest, n), most_s)) - 1
        return None if cap < 0 or sum(rest) + cap < stage.least else cap

    def _fits(self, stage: Floor, bag: Bag, most_s: float) -> bool:
        """Tell whether a stage fits with as many layers recomputed as the time allows."""
        fewest, most = stage.recomputable(bag)
        if fewest < most and stage.again_s > 0 and most_s < float("inf"):
            spare_s = most_s * (1 + CLOSE) - stage.seconds(bag, 0)
            most = max(fewest, min(most, int(spare_s / stage.again_s)))
        return fits(self.problem, stage.peak_bytes(bag, most))

    def _by_time(self, stage: Floor, rest: Bag, most_s: float) -> int:
        key = (stage.base_s, stage.least, rest, most_s)
        if key not in self.longest:
            limit = most_s * (1 + CLOSE)
            counts = range(stage.kinds[-1].count + 1)
            self.longest[key] = bisect_left(counts, True, key=lambda n: self._least_s(stage, (*rest, n)) > limit) - 1
        return self.longest[key]

    def _least_s(self, stage: Floor, bag: Bag) -> float:
        return stage.seconds(bag, stage.recomputable(bag)[0])

    def seconds(self, low_s: float, high_s: float) -> list[float]:
        """Return all that a stage may take within these limits, rising."""
        seconds = {
            value
            for stage in {(floor.base_s, floor.least): floor for floor in self.floors}.values()
            for value in self._of_stage(stage, low_s, high_s)
        }
        return sorted(seconds)

    def _of_stage(self, stage: Floor, low_s: float, high_s: float) -> Iterator[float]:
        *others, last = stage.kinds
        for rest in product(*(range(kind.count + 1) for kind in others)):
            for count in range(last.count + 1):
                bag = (*rest, count)
                fewest, most = stage.recomputable(bag)
                if stage.seconds(bag, fewest) > high_s:
                    break
                if stage.seconds(bag, most) >= low_s:
                    values = (stage.seconds(bag, repeated) for repeated in range(fewest, most + 1))
                    yield from (value for value in values if low_s <= value <= high_s)


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
