"""Which stages make the fastest step: a dynamic program over ideals and parts of the mesh, for every slowest stage.

Zheng et al., Alpa, OSDI 2022, section 5.2: a step of B microbatches takes sum t_i + (B - 1) max t_i, and t_max is
enumerated. Here what a stage does once a step counts in the maximum: sum t_i + max ((B - 1) t_i + o_i). Of one stage
that is the tensor solver's own sum. A stage is solved only if no bound on it says that the rest could not make up.

Cuts are ideals of the layers' graph (Tarnawski et al., NeurIPS 2020), which of a chain are its prefixes.

Megatron's stages are cut by `symconfig.solve.stages`: there the seconds and bytes of every span are tables, the number
of stages is fixed and the slowest is the objective, so that a dynamic programme of ten lines does. GPUs as a second
resource, and stages that are solved on demand, would make it longer, and shorten nothing here.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from math import gcd

import numpy as np
from numpy.typing import NDArray

from symconfig.solve.partition.pipeline.stage import Ideal, Place, Stage, Stages

Array = NDArray[np.float64]
_WIDER = 1.25  # by how much the step that is looked below grows where none was found
_CLOSE = 1 + 1e-9


@dataclass(frozen=True, slots=True)
class Chosen:
    """The stages of a pipeline, first to last, and the seconds of its step."""

    step_s: float
    places: tuple[Place, ...]
    stages: tuple[Stage, ...]


@dataclass(frozen=True, slots=True)
class Bounds:
    """Amounts for lower bounds on any strategy, summed over the layers of each ideal.

    work: seconds of a microbatch's computation on one GPU. stored: bytes of weights, gradients and optimizer state.
    """

    ideals: tuple[Ideal, ...]

    work: Array
    stored: Array
    gpus: tuple[int, ...]  # of each part of the mesh
    turns: int

    def step_s(self, place: Place) -> float:
        """Return a lower bound, in seconds, on the step of every pipeline that contains this stage.

        It is its work and that of the rest, each spread evenly over its GPUs, and the slower one again for all
        microbatches but one.
        """
        mine, others = self._shares(self.work, place)
        return mine + others + (self.turns - 1) * max(mine, others)

    def memory(self, place: Place) -> float:
        """Return a lower bound on the bytes of the fullest GPU of every pipeline that contains this stage."""
        return max(self._shares(self.stored, place))

    def _shares(self, of: Array, place: Place) -> tuple[float, float]:
        """Return (a stage's amount per its GPU, that of all other layers per GPU of the rest, or 0 if no GPU is left).

        of: amounts summed over the layers of each ideal.
        """
        whole, mine = float(of[-1]), float(of[place.stop] - of[place.first])
        gpus, rest = self.gpus[place.mesh], self.gpus[-1] - self.gpus[place.mesh]
        return mine / gpus, (whole - mine) / rest if rest else 0.0

    def places(self, least: int) -> Iterator[Place]:
        """Yield the possible stages (layers, part of the mesh) of pipelines with at least `least` stages.

        A stage leaves a layer and a GPU to each further stage. The whole mesh takes all layers, and is yielded only for
        least 1; on a part of the mesh a stage never has all layers.
        """
        ideals, last = self.ideals, len(self.ideals) - 1
        longest = len(ideals[-1]) - max(least - 1, 1)
        able = [
            (first, stop)
            for first in range(last)
            for stop in range(first + 1, last + 1)
            if len(ideals[stop]) - len(ideals[first]) <= longest and ideals[first] < ideals[stop]
        ]
        for mesh, gpus in enumerate(self.gpus[:-1]):
            if gpus <= self.gpus[-1] - (least - 1):
                yield from (Place(first, stop, mesh) for first, stop in able)
        if least == 1:
            yield Place(0, last, len(self.gpus) - 1)


def search(stages: Stages, bounds: Bounds, least: int, most: int, below_s: float) -> Chosen | None:
    """Return the fastest pipeline of `least` to `most` stages that takes at most below_s seconds, or None.

    Only stages whose lower bounds fit memory and a limit of the step are tried; the limit begins 25 % above the least
    bound and grows by _WIDER until a pipeline below it is found or every stage was tried. Stages are solved on demand
    and cached in `stages`.
    """
    able = (place for place in bounds.places(least) if bounds.memory(place) <= stages.ask.memory_limit)
    every = [(bounds.step_s(place), place) for place in able]
    if not every:
        return None
    best: Chosen | None = None
    limit_s = min(bound for bound, _ in every) * _WIDER
    while True:
        limit_s = min(limit_s, below_s)
        open_ = [place for bound, place in every if bound <= limit_s * _CLOSE]
        best = _fastest(stages, open_, bounds, least, most)
        if best is not None and best.step_s < below_s:
            below_s = best.step_s
        if limit_s >= below_s or len(open_) == len(every):
            return best if best is not None and best.step_s <= below_s else None
        limit_s *= _WIDER


def _fastest(stages: Stages, places: Sequence[Place], bounds: Bounds, least: int, most: int) -> Chosen | None:
    """Return the fastest pipeline of the stages in `places`, or None if none covers all layers and GPUs and fits.

    Unsolved stages count with their lower bounds; those in the best pipeline are solved, until it has only solved ones.
    A stage with n stages behind it holds min(n + 1, turns) microbatches in flight.
    """
    last, turns = len(bounds.ideals) - 1, bounds.turns
    after = [len(bounds.ideals[-1]) - len(ideal) for ideal in bounds.ideals]  # layers behind each
    most = min(most, after[0], bounds.gpus[-1])
    unit = reduce(gcd, (bounds.gpus[place.mesh] for place in places), bounds.gpus[-1])
    while True:
        rows: list[list[_Entry]] = [[] for _ in range(most)]
        for place in places:
            for behind in range(most):
                if (behind == 0) == (place.stop == last) and behind <= after[place.stop]:
                    stage = stages.known(place, min(behind + 1, turns))
                    gpus = bounds.gpus[place.mesh]
                    if isinstance(stage, Stage):
                        rows[behind].append(_Entry(place, gpus // unit, stage.turn_s, stage.busy_s(turns), stage))
                    elif stage is not None:  # seconds of which no stage on the place can take less
                        turn_s = float(bounds.work[place.stop] - bounds.work[place.first]) / gpus
                        rows[behind].append(_Entry(place, gpus // unit, turn_s, stage * (turns - 1) / turns, None))
        sum_s, chosen = _cheapest(rows, last, bounds.gpus[-1] // unit, least, most)
        if not chosen:
            return None
        made = [entry.stage for entry in chosen if entry.stage is not None]
        if len(made) == len(chosen):
            return Chosen(sum_s, tuple(entry.place for entry in chosen), tuple(made))
        for behind, entry in enumerate(reversed(chosen)):
            stages.stage(entry.place, min(behind + 1, turns))


@dataclass(frozen=True, slots=True)
class _Entry:
    """A solved stage, or lower bounds on one that is not solved. gpus: in units. busy_s: see `Stage.busy_s`."""

    place: Place
    gpus: int
    turn_s: float
    busy_s: float
    stage: Stage | None


def _cheapest(
    rows: Sequence[Sequence[_Entry]], last: int, gpus: int, least: int, most: int
) -> tuple[float, list[_Entry]]:
    """Return (seconds of the least step, its stages, first to last) of `least` to `most` stages; (inf, []) if none.

    A step is the sum of its stages' turn_s plus the largest busy_s. That is enumerated; the least sum below that limit
    is a dynamic programme over the number of stages, the ideal before and the GPUs. rows: entries by the number of
    stages behind. last: index of the ideal of all layers. gpus: of the mesh, in units; all are used.
    """
    rows = [sorted(some, key=lambda entry: entry.place) for some in rows]
    places = [np.array([(e.place.first, e.place.stop, e.gpus) for e in some], np.int64).reshape(-1, 3) for some in rows]
    seconds = [np.array([(e.turn_s, e.busy_s) for e in some], np.float64).reshape(-1, 2) for some in rows]

    def sums(slowest_s: float) -> tuple[list[Array], list[Array]]:
        """Return (sums, terms) by number of stages, if no stage has more than `slowest_s` busy seconds.

        sums: least sum of the seconds of stages from an ideal on with a number of GPUs, [ideals, gpus + 1]. terms: that
        with each entry as the first stage, [entries, gpus + 1]. Infinite where there are none.
        """
        none = np.full((last + 1, gpus + 1), np.inf)
        result, terms = [none.copy()], list[Array]()
        result[0][-1, 0] = 0.0
        for (first, stop, used), of in zip((some.T for some in places), seconds, strict=True):
            left = np.arange(gpus + 1) - used[:, None]
            each = np.where(left >= 0, result[-1][stop[:, None], np.maximum(left, 0)], np.inf) + of[:, :1]
            each[of[:, 1] > slowest_s] = np.inf
            terms.append(each)
            result.append(none.copy())
            np.minimum.at(result[-1], first, each)
        return result, terms

    def least_s(slowest_s: float) -> tuple[float, int]:
        """Return the least sum of stages that cover all layers and GPUs, and their number."""
        each = [float(of[0, gpus]) for of in sums(slowest_s)[0][least : most + 1]]
        return min(each), least + int(np.argmin(each))

    rising = sorted({entry.busy_s for some in rows for entry in some})
    free, best, limit_s, number = least_s(np.inf)[0], np.inf, np.inf, 0
    for slowest_s in rising[bisect_left(rising, True, key=lambda limit: least_s(limit)[0] < np.inf) :]:
        if slowest_s + free >= best:
            break
        sum_s, count = least_s(slowest_s)
        if sum_s + slowest_s < best:
            best, limit_s, number = sum_s + slowest_s, slowest_s, count
    terms, chosen, ideal, left = sums(limit_s)[1], list[_Entry](), 0, gpus
    for behind in reversed(range(number)):
        mine = places[behind][:, 0] == ideal
        chosen.append(rows[behind][int(np.argmin(np.where(mine, terms[behind][:, left], np.inf)))])
        ideal, left = chosen[-1].place.stop, left - chosen[-1].gpus
    return best, chosen
