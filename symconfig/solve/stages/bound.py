"""Lower bounds of the slowest stage: every stage takes the layers that suit it, wherever these lie in the model.

Exact for equal layers with one chunk a stage, and with several as long as memory does not bind.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product

import numpy as np
import numpy.typing as npt

from symconfig.solve.stages.content import Mode
from symconfig.solve.stages.floor import Bag, Floor, floors
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
