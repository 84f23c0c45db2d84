"""Which stages make the fastest step: a dynamic program over cuts and parts of the mesh, for every slowest stage.

Zheng et al., Alpa, OSDI 2022, section 5.2: a step of B microbatches takes sum t_i + (B - 1) max t_i, and t_max is
enumerated. Here what a stage does once a step counts in the maximum: sum t_i + max ((B - 1) t_i + o_i). Of one stage
that is the tensor solver's own sum. A stage is solved only if no bound on it says that the rest could not make up.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from math import gcd

import numpy as np
from numpy.typing import NDArray

from symconfig.solve.partition.pipeline.stage import Place, Stage, Stages

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
    """Amounts for lower bounds on any strategy, by layer.

    work: seconds of a microbatch's computation on one GPU. stored: bytes of weights, gradients and optimizer state.
    """

    work: Array
    stored: Array
    gpus: tuple[int, ...]  # of each part of the mesh
    turns: int

    def step_s(self, place: Place) -> float:
        """Return a lower bound in seconds on the step of every pipeline that contains this stage."""
        mine, others = self._shares(self.work, place)
        return mine + others + (self.turns - 1) * max(mine, others)

    def memory(self, place: Place) -> float:
        """Return a lower bound on the bytes of the fullest GPU of every pipeline that contains this stage."""
        return max(self._shares(self.stored, place))

    def _shares(self, of: Array, place: Place) -> tuple[float, float]:
        """Return the amount per GPU of the stage and per GPU of the rest, spread evenly; 0 if no GPU is left."""
        whole, mine = float(of.sum()), float(of[place.first : place.stop].sum())
        gpus, rest = self.gpus[place.mesh], self.gpus[-1] - self.gpus[place.mesh]
        return mine / gpus, (whole - mine) / rest if rest else 0.0

    def places(self, least: int) -> Iterator[Place]:
        """Yield the possible stages of pipelines with at least `least` stages.

        The whole mesh takes all layers, and is yielded only for least 1; a part of the mesh never does.
        """
        count = len(self.work)
        for mesh, gpus in enumerate(self.gpus[:-1]):
            if gpus <= self.gpus[-1] - (least - 1):
                longest = count - max(least - 1, 1)
                for first in range(count):
                    yield from (Place(first, stop, mesh) for stop in range(first + 1, min(first + longest, count) + 1))
        if least == 1:
            yield Place(0, count, len(self.gpus) - 1)


def search(stages: Stages, bounds: Bounds, least: int, most: int, below_s: float) -> Chosen | None:
    """Return the fastest pipeline of `least` to `most` stages that takes less than below_s seconds, or None.

    The step limit grows by _WIDER until a pipeline below it is found or every stage was tried; stages are solved on
    demand, which changes `stages`.
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
    """Return the fastest pipeline of these stages, or None if they cannot cover all layers and GPUs.

    Unsolved stages count with their lower bounds; those in the best pipeline are solved, until it has only solved ones.
    """
    count, turns = len(bounds.work), bounds.turns
    most = min(most, count, bounds.gpus[-1])
    unit = reduce(gcd, (bounds.gpus[place.mesh] for place in places), bounds.gpus[-1])
    while True:
        rows: list[list[_Entry]] = [[] for _ in range(most)]
        for place in places:
            for behind in range(most):
                if (behind == 0) == (place.stop == count) and behind <= count - place.stop:
                    stage = stages.known(place, min(behind + 1, turns))
                    if stage is not None:
                        rows[behind].append(_entry(bounds, place, unit, stage))
        sum_s, chosen = _Table(rows, count, bounds.gpus[-1] // unit).best(least, most)
        if not chosen:
            return None
        made = [entry.stage for entry in chosen if entry.stage is not None]
        if len(made) == len(chosen):
            return Chosen(sum_s, tuple(entry.place for entry in chosen), tuple(made))
        for behind, entry in enumerate(reversed(chosen)):
            stages.stage(entry.place, min(behind + 1, turns))


@dataclass(frozen=True, slots=True)
class _Entry:
    """A solved stage, or lower bounds on one that is not solved. gpus: in units."""

    place: Place
    gpus: int
    turn_s: float
    busy_s: float
    stage: Stage | None


def _entry(bounds: Bounds, place: Place, unit: int, stage: Stage | float) -> _Entry:
    gpus, turns = bounds.gpus[place.mesh], bounds.turns
    if isinstance(stage, Stage):
        return _Entry(place, gpus // unit, stage.turn_s, stage.busy_s(turns), stage)
    least_s = float(bounds.work[place.first : place.stop].sum()) / gpus
    return _Entry(place, gpus // unit, least_s, stage * (turns - 1) / turns, None)


class _Table:
    """Solved stages by how many are behind them, and the least sum of seconds of stages from a layer on."""

    def __init__(self, rows: Sequence[Sequence[_Entry]], layers: int, gpus: int) -> None:
        self.rows, self.gpus = [sorted(some, key=lambda entry: entry.place) for some in rows], gpus
        self.every = [entry for some in rows for entry in some]
        self.arrays = [
            (
                np.array([(e.place.first, e.place.stop, e.gpus) for e in some], np.int64).reshape(-1, 3),
                np.array([(e.turn_s, e.busy_s) for e in some], np.float64).reshape(-1, 2),
            )
            for some in self.rows
        ]
        self.none = np.full((layers + 1, gpus + 1), np.inf)
        self.sums: list[Array] = []  # by number of stages: [first layer, GPUs that they have]
        self.terms: list[Array] = []  # [entries, GPUs]

    def best(self, least: int, most: int) -> tuple[float, list[_Entry]]:
        """Return the least step in seconds and its stages, or (inf, []) if there is none.

        Enumerates the slowest stage.
        """
        best, chosen = np.inf, list[_Entry]()
        free, _ = self.least_s(np.inf, least, most)
        rising = sorted({entry.busy_s for entry in self.every})
        first = bisect_left(rising, True, key=lambda slowest_s: self.least_s(slowest_s, least, most)[0] < np.inf)
        for slowest_s in rising[first:]:
            if slowest_s + free >= best:
                break
            sum_s, number = self.least_s(slowest_s, least, most)
            if sum_s + slowest_s < best:
                best, chosen = sum_s + slowest_s, self.path(number)
        return best, chosen

    def least_s(self, slowest_s: float, least: int, most: int) -> tuple[float, int]:
        """Return the least sum of stages that cover all layers and GPUs, and their number; infinite if impossible.

        slowest_s: upper limit of each stage's busy seconds. Overwrites `sums` and `terms`, which `path` reads.
        """
        self.sums, self.terms = [self.none.copy()], []
        self.sums[0][-1, 0] = 0.0
        for places, seconds in self.arrays:
            first, stop, gpus = places.T
            left = np.arange(self.gpus + 1) - gpus[:, None]
            terms = np.where(left >= 0, self.sums[-1][stop[:, None], np.maximum(left, 0)], np.inf) + seconds[:, :1]
            terms[seconds[:, 1] > slowest_s] = np.inf
            sums = self.none.copy()
            np.minimum.at(sums, first, terms)
            self.sums.append(sums)
            self.terms.append(terms)
        least_sums = [float(sums[0, self.gpus]) for sums in self.sums[least : most + 1]]
        number = int(np.argmin(least_sums))
        return least_sums[number], least + number

    def path(self, number: int) -> list[_Entry]:
        """Return the stages, first to last, of the latest `least_s` with this number of stages."""
        chosen, layer, gpus = list[_Entry](), 0, self.gpus
        for behind in reversed(range(number)):
            mine = self.arrays[behind][0][:, 0] == layer
            entry = self.rows[behind][int(np.argmin(np.where(mine, self.terms[behind][:, gpus], np.inf)))]
            chosen.append(entry)
            layer, gpus = entry.place.stop, gpus - entry.gpus
        return chosen
