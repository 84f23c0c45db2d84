"""Refinement: layers laid out over stages and schedules simulated, the most promising candidates first.

The degrees were weighed under a few layouts and a formula for the schedule. Here every candidate with a pipeline whose
lower bound (`solve.floor`) is below the best step found is tried in all layouts known for its pipeline, the stage
solver's among them, and simulated if the layout's own lower bound is below it, too. The search ends when no bound that
is left is below the best step, or after `SIMULATIONS`; the least bound that is left is its gap.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from symconfig.cost.device import device_bytes
from symconfig.cost.lattice import Array
from symconfig.cost.step import HOST_SHARE, host_bytes
from symconfig.graph.model import sequence
from symconfig.solve.assign import Layout, Open, Places, by_block, opened, problem, slowest_s
from symconfig.solve.choice import scored
from symconfig.solve.costed import Costed, costed, detailed
from symconfig.solve.floor import Floors, Waiting, waiting
from symconfig.solve.kinds import ROUNDING
from symconfig.solve.prospect import Prospect
from symconfig.solve.queue import Queue
from symconfig.solve.split import Split, every_split, plainest, splits
from symconfig.solve.stages.problem import StageProblem, Unsatisfied
from symconfig.solve.stages.solve import solve
from symconfig.solve.timeline import refined_s
from symconfig.solve.weighed import Weighed

SIMULATIONS = 16  # of one search: 0 of 12 first plans changed with more
NEARLY = 1.1  # of the memory: a layout that takes so much may be turned into one that fits
MOST_ASKED, MOST_FAILED = 2, 2  # answers of the stage solver, and questions in vain, for each pipeline

Pipeline = tuple[int, int]  # pp, vpp


@dataclass(frozen=True, slots=True)
class Bound:
    """How far the search went. layouts: tried, of all pipelines; simulated: candidates; least_s: no candidate that was
    not simulated has a lower score, in the layouts that were tried."""

    layouts: int
    simulated: int
    least_s: float

    def gap(self, score: float) -> float:
        """Return the share by which a candidate that was not simulated may have a lower score; 0: none has."""
        return max(0.0, 1.0 - self.least_s / score)


@dataclass(frozen=True, slots=True)
class _Laid:
    """A candidate with a layout that fits it: q-th of the layout's. step_s: no simulation has a lower score."""

    step_s: float
    candidate: Open
    layout: Layout
    q: int

    @property
    def place(self) -> tuple[int, int, Split]:
        """Return its place among candidates that differ in their policies only."""
        return id(self.layout.floors), self.candidate.n, self.layout.split

    def never_faster(self, other: _Laid) -> bool:
        """Return whether another policy in the same layout, which is known, does everything at least as fast, and has
        no larger premium."""
        if other.candidate.premium > self.candidate.premium:
            return False
        pairs = zip(other.layout.passes, self.layout.passes, strict=True)
        return other.candidate.rest_s <= self.candidate.rest_s and all(
            bool((theirs[..., other.q] <= ours[..., self.q]).all()) for theirs, ours in pairs
        )


Node = Waiting | Floors | Open | _Laid  # what is left, from the widest to one layout of one candidate


def refine(weighed: Weighed, simulations: int = SIMULATIONS) -> Bound:
    """Simulate the best candidates, put the simulated steps in the place of the formula's, and return the bound on the
    others."""
    for prospect in weighed.forget():
        weighed.add(_simulated(prospect, costed(prospect)))
    return _Refinement(weighed).run(simulations)


class _Refinement:
    """One best-first walk over what may be faster than the best step found.

    known: layouts of a pipeline: all, of those that are `whole`, else those that were weighed and those that the stage
    solver has proposed; each is tried for all policies at all points reached. served [r, o, n]: candidates of floors
    that have a layout with the fastest slowest stage that there is. asked, failed: how often the solver had a layout
    for a pipeline, or none. simulated: candidates of a point and layout.
    """

    def __init__(self, weighed: Weighed) -> None:
        self.weighed = weighed
        self.queue: Queue[Node] = Queue()
        self.known: dict[Pipeline, list[Split]] = {}
        self.whole: set[Pipeline] = set()
        self.reached: dict[Pipeline, list[Floors]] = {}
        self.served: dict[int, NDArray[np.bool_]] = {}
        self.asked: Counter[Pipeline] = Counter()
        self.failed: Counter[Pipeline] = Counter()
        self.simulated: dict[tuple[int, int, Split], list[_Laid]] = {}
        self.runs = 0

    def run(self, simulations: int) -> Bound:
        for piece in self.weighed.pieces:
            if piece.least_s[0] < self.below_s:
                self._wait(waiting(piece, self.below_s))
        while self.runs < simulations and (node := self.queue.get(self.below_s)) is not None:
            self._expand(node)
        return Bound(sum(map(len, self.known.values())), self.runs, self.queue.least_s)

    @property
    def below_s(self) -> float:
        """Return the score that a candidate must be below."""
        return self.weighed.best_s

    def _expand(self, node: Node) -> None:
        below = self.below_s
        if isinstance(node, Waiting):
            prospect, rest = node.floors(below)
            self._wait(rest)
            for floors in prospect:
                self.queue.put(floors.hope_s, floors.least_s, floors)
        elif isinstance(node, Floors):
            pipeline = node.setting.pp, node.setting.vpp
            if pipeline not in self.known:
                # Take all layouts of a pipeline where they are few, else those that were weighed.
                request, blocks = node.piece.request, sequence(node.piece.request.model)
                layouts, pinned = request.limits.layouts, request.pins.layout
                every = every_split(blocks, *pipeline, layouts) if pinned is None else None
                if every is not None or pinned is not None:
                    self.whole.add(pipeline)
                if every is None:
                    every = splits(blocks, *pipeline, node.piece.balance, layouts, pinned)
                self.reached[pipeline], self.known[pipeline] = [], list(every)
            self.reached[pipeline].append(node)
            self.served[id(node)] = np.zeros(node.step_s.shape, dtype=bool)
            for split in self.known[pipeline]:
                self._try(node, split)
            # Where all layouts are known they have been tried for all candidates at once.
            if (node.setting.pp, node.setting.vpp) not in self.whole:
                places = opened(node, below)
                self.queue.put_all(node.even_s[places], node.step_s[places], partial(_open, node, places))
        elif isinstance(node, _Laid):
            self._simulate(node)
        else:
            self._lay_out(node)

    def _wait(self, points: Waiting | None) -> None:
        if points is not None:
            self.queue.put(points.least_s, points.least_s, points)

    def _lay_out(self, candidate: Open) -> None:
        """Ask for more layouts if nothing known is best, as often as is worth it."""
        floors, pipeline = candidate.floors, candidate.pipeline
        if candidate.by_block:
            return
        for limit_bytes in (np.inf, floors.piece.budget):
            if self.served[id(floors)][candidate.place] or not self._may_ask(candidate, limit_bytes):
                continue
            self._ask(pipeline, replace(problem(candidate), limit_bytes=limit_bytes))

    def _may_ask(self, candidate: Open, limit_bytes: float) -> bool:
        """Tell whether to ask: once without a limit of memory, and then as often as is worth it."""
        answers, failed = self.asked[candidate.pipeline], self.failed[candidate.pipeline]
        if limit_bytes == np.inf:
            return not answers
        return answers < MOST_ASKED and failed < MOST_FAILED and self._nearly_fits(candidate)

    def _nearly_fits(self, candidate: Open) -> bool:
        """Tell whether some layout nearly fits: the stage solver may then have one that does."""
        at = np.array([candidate.r]), np.array([candidate.n])
        known = (Layout(candidate.floors, split, *at) for split in self.known[candidate.pipeline])
        limit_bytes = NEARLY * candidate.floors.piece.budget
        return any(layout.peak_bytes[candidate.o, 0] <= limit_bytes for layout in known)

    def _ask(self, pipeline: Pipeline, problem: StageProblem) -> None:
        """Ask the stage solver, and try its answer wherever its pipeline was reached."""
        answer = solve(problem)
        if isinstance(answer, Unsatisfied):
            self.failed[pipeline] += 1
            return
        self.asked[pipeline] += 1
        known = self.known[pipeline]
        for assignment in (answer.best, *answer.alternatives):
            split = plainest(pipeline[0], assignment.chunks, problem.layouts)
            if split is not None and split not in known:
                known.append(split)
                for floors in self.reached[pipeline]:
                    self._try(floors, split)

    def _try(self, floors: Floors, split: Split) -> None:
        """Try a layout for all policies and points that it fits and that it may make fast enough."""
        below, slowest = self.below_s, slowest_s(floors, split)
        least = floors.points.num_microbatches * slowest + floors.rest_s.min(axis=0)
        r, n = np.nonzero((least < below) & (floors.step_s[:-1] < below).any(axis=1))
        if r.size:
            best = slowest[r, n] <= floors.slowest_s[r, n] * (1 + ROUNDING)
            layout = Layout(floors, split, r, n)
            matters = np.flatnonzero(best | (layout.path_s < below).any(axis=0))
            layout, best = layout.at(matters), best[matters]
            r, n = layout.r, layout.n
            fits = (layout.peak_bytes <= floors.piece.budget) & np.isfinite(floors.step_s[r, :, n].T)
            o, q = np.nonzero(fits & best)
            self.served[id(floors)][r[q], o, n[q]] = True
            self._put(layout, fits)
        points = np.flatnonzero((floors.step_s[-1] < below).any(axis=0))
        if points.size:
            for layout, fits in by_block(floors, split, points, below):
                self._put(layout, fits)

    def _put(self, layout: Layout, fits: NDArray[np.bool_]) -> None:
        """Queue the candidates that a layout fits and that may be fast enough; fits: [o, q]."""
        places = np.flatnonzero((fits & (layout.path_s < self.below_s)).any(axis=0))
        if not places.size:
            return
        floors, layout, fits = layout.floors, layout.at(places), fits[:, places]
        o, q = np.nonzero(fits & (layout.step_s < self.below_s))
        r = np.full_like(q, len(floors.choices)) if layout.first else layout.r[q]
        factor = floors.premium[r, layout.n[q]]
        step = np.maximum(floors.step_s[r, o, layout.n[q]], layout.step_s[o, q] * factor)
        below = step < self.below_s
        r, o, q, step, factor = r[below], o[below], q[below], step[below], factor[below]
        self.queue.put_all(layout.hope_s[o, q] * factor, step, partial(_laid, layout, r, o, q, step))

    def _simulate(self, node: _Laid) -> None:
        """Simulate it, unless another policy in its layout shows that it is no faster."""
        candidate, layout = node.candidate, node.layout
        others = self.simulated.setdefault(node.place, [])
        if any(node.never_faster(other) for other in others):
            return
        prospect = candidate.prospect(layout.split, layout.first)
        parts = detailed(prospect, candidate.table)
        if max(parts.peaks) <= candidate.floors.piece.budget and _fits_host(prospect, parts):
            self.runs += 1
            others.append(node)
            self.weighed.add(_simulated(prospect, parts))


def _open(floors: Floors, places: tuple[Places, Places, Places], k: int) -> Open:
    r, o, n = places
    return Open.of(floors, r[k], o[k], n[k])


def _laid(layout: Layout, r: Places, o: Places, q: Places, step_s: Array, k: int) -> _Laid:
    candidate = Open.of(layout.floors, r[k], o[k], layout.n[q[k]])
    return _Laid(float(step_s[k]), candidate, layout, int(q[k]))


def _fits_host(prospect: Prospect, parts: Costed) -> bool:
    room = prospect.machine.host_memory_bytes_per_gpu * HOST_SHARE
    return bool(host_bytes(parts.sums, parts.points, parts.setting).max() <= room)


def _simulated(prospect: Prospect, parts: Costed) -> Prospect:
    """Return the candidate with its simulated step, and what its fullest stage takes of the device."""
    step = refined_s(prospect, parts)
    device = device_bytes(max(parts.peaks), prospect.machine, prospect.request.framework)
    return scored(prospect, step, device)
