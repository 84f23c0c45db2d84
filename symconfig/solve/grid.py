"""The points of a search, evaluated with every choice of options beside the degrees, and cut into pieces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import permutations
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from symconfig.cost.blocks import BlockCost, hiding
from symconfig.cost.flops import block_flops
from symconfig.cost.framework import Framework
from symconfig.cost.lattice import Array
from symconfig.cost.machine import Machine
from symconfig.cost.table import Choice, OfKinds, block_costs, bound_table, resolve
from symconfig.cost.uneven import worked
from symconfig.cost.work import work_seconds
from symconfig.frameworks.extras import Extras
from symconfig.graph.block import Place
from symconfig.graph.derived import DerivedBlock
from symconfig.graph.model import derived, sequence
from symconfig.graph.operator import Leg
from symconfig.graph.scheme import Scheme
from symconfig.plans.columns import Columns
from symconfig.solve.budget import peak_budget
from symconfig.solve.pieces import Piece, at, recompute_choices
from symconfig.solve.space import Refused, Request, among, constants, lattice, points
from symconfig.solve.stages import ROUNDING

PIECE = 512  # points whose policies are worked out together
NOTHING: frozenset[Leg] = frozenset()  # replayed
CARRIERS_OFF: Mapping[str, Any] = {"tp_comm": False, "flex_backend": ""}  # what carries collectives, as of `Extras`


@dataclass(slots=True)
class Grid:
    """The points of one scheme that a search's first request may take; the others go no further than it.

    least_s [n]: of the step, what every one of them computes; 0 where nobody has asked yet.
    """

    request: Request
    scheme: Scheme
    points: Columns
    least_s: Array
    bound: bool = False

    @classmethod
    def of(cls, request: Request, scheme: Scheme, refused: Refused) -> Self:
        every = points(request, scheme, refused)
        return cls(request, scheme, every, np.zeros(every.size))

    def below(self, below_s: float, machine: Machine) -> NDArray[np.intp]:
        """Return the places of the points of which a request may make steps that take no longer."""
        if not self.bound and below_s < np.inf and self.points.size:
            # What all blocks compute in a step but for bringing tokens to their experts and back, which other kernels
            # may do in less: [n].
            request, framework = self.request, self.request.framework
            where = lattice(request, self.points)
            seconds = np.zeros(self.points.size)
            kinds = sequence(request.model)
            for kind, block in derived(request.model, framework.implementation, self.scheme).items():
                moving = block.on(Leg.OUT, Leg.BACK)
                work = worked(work_seconds(block, where, machine, framework), block, where)
                seconds += kinds.count(kind) * sum(t for (op, _), t in work.items() if op not in moving)
            self.least_s, self.bound = (seconds * spread(request, self.points) * (1 - ROUNDING)), True
        return np.flatnonzero(self.least_s <= below_s)


def spread(request: Request, grid: Columns) -> Array:
    """Count the microbatches that each GPU runs, if all run all blocks of some: [n]."""
    share: Array = request.global_batch * grid.tp * grid.cp / (grid.micro * request.gpus)
    return share


def pieces(
    requests: Sequence[Request], machine: Machine, grid: Grid, refused: Refused, below_s: float = float("inf")
) -> Iterator[Piece]:
    """Yield the grid's points in order of their lower bound, a few hundred at a time.

    requests: they differ in what their framework has on. What differs in overlaps and graphs alone is evaluated once
    for all. below_s: of a step; points that are no faster whatever is on are left out.
    """
    shared = _shared(requests, machine, grid.scheme) if grid.points.size else []
    places = grid.below(below_s, machine)
    every = grid.points.at(places)
    alive = _taken([some.request for some in shared], every, refused)
    for start in range(0, every.size if shared else 0, 8 * PIECE):
        part = every.at(slice(start, start + 8 * PIECE))
        inside = [each[start : start + 8 * PIECE] for each in alive]
        known: dict[tuple[object, ...], _Evaluated] = {}
        for some, taken in zip(shared, inside, strict=True):
            framework = some.request.framework
            if not taken.any():
                continue
            if framework.evaluated not in known:
                alike = [
                    other
                    for each, other in zip(shared, inside, strict=True)
                    if each.request.framework.evaluated == framework.evaluated
                ]
                known[framework.evaluated] = _Evaluated.of(some, part, np.flatnonzero(np.any(alike, axis=0)))
            where = known[framework.evaluated]
            mine, costs = np.flatnonzero(taken[where.places]), where.costs
            if framework is not where.framework:
                costs = tuple(hiding(cost, framework) for cost in costs)
            if framework.graphed and "cuda_graphs" not in some.request.pins.words:
                mine = mine[_waits(costs, framework)[mine]]
            if mine.size:
                yield from some.pieces(where.points, costs, mine, below_s)


@dataclass(frozen=True, slots=True)
class _Evaluated:
    """Blocks' costs at some places of a part of a grid, as they are with one of the frameworks that share them."""

    places: NDArray[np.intp]
    points: Columns
    framework: Framework
    costs: tuple[BlockCost, ...]

    @classmethod
    def of(cls, some: _Shared, part: Columns, places: NDArray[np.intp]) -> Self:
        request, mine = some.request, part.at(places)
        where = lattice(request, mine)
        costs = block_costs(some.of_kind, where, some.machine, request.framework)
        return cls(places, mine, request.framework, costs)


def _shared(requests: Sequence[Request], machine: Machine, scheme: Scheme) -> list[_Shared]:
    """Return what the pieces of each request share; what two of them have alike is made once."""
    known: dict[tuple[object, ...], tuple[Mapping[str, DerivedBlock], OfKinds]] = {}
    result = []
    for each in requests:
        if choices := recompute_choices(each):
            how = each.framework.implementation
            if (how, *choices) not in known:
                of_kind = derived(each.model, how, scheme)
                known[how, *choices] = of_kind, resolve(of_kind, choices)
            result.append(_Shared(each, machine, scheme, *known[how, *choices], choices=choices))
    return result


def _taken(requests: Sequence[Request], grid: Columns, refused: Refused) -> list[NDArray[np.bool_]]:
    """Tell, of each request, whether it takes a point: [n].

    Of dispatchers with kernels of their own, which have one price, a point is left to the first one that runs there.
    """
    every = np.zeros((len(requests), grid.size), dtype=bool)
    bare: dict[Extras, list[int]] = {}
    for place, request in enumerate(requests):
        every[place, among(request, grid, refused)] = True
        bare.setdefault(replace(request.extras, **CARRIERS_OFF), []).append(place)
    result = every.copy()
    for alike in bare.values():
        for place, number in permutations(alike, 2):
            request, other = requests[place], requests[number]
            if number < place and _same_price(other.extras, request.extras):
                result[place] &= ~every[number]
    return list(result)


def _same_price(one: Extras, other: Extras) -> bool:
    """Return whether two choices of options, which differ in their carriers only, differ in nothing but the name of the
    dispatcher with kernels of its own."""
    both = bool(one.flex_backend) and bool(other.flex_backend)
    return both and one.flex_backend != other.flex_backend and one.tp_comm == other.tp_comm


def _waits(costs: Sequence[BlockCost], framework: Framework) -> NDArray[np.bool_]:
    """Tell where the GPU waits for the host in any layer, with nothing replayed and nothing recomputed: elsewhere
    graphs save no time, [n]. costs: with graphs.
    """
    layers = [cost for cost in costs if cost.derived.place is Place.LAYER]
    replayed, eager = (
        np.array([cost.seconds()[:2].sum(axis=0) for cost in each])
        for each in (layers, [hiding(cost, replace(framework, graphed=NOTHING)) for cost in layers])
    )
    saves: NDArray[np.bool_] = np.any(eager > replayed * (1 + ROUNDING), axis=0)
    return saves


@dataclass(frozen=True, slots=True)
class _Shared:
    """Values that all pieces of a request and scheme share."""

    request: Request
    machine: Machine
    scheme: Scheme
    of_kind: Mapping[str, DerivedBlock]
    policies: OfKinds
    choices: list[Choice]

    @property
    def counts(self) -> Array:
        """Count the blocks of each kind that the model has: [kinds]."""
        kinds = sequence(self.request.model)
        return np.array([kinds.count(kind) for kind in self.of_kind], dtype=np.float64)

    def pieces(
        self, grid: Columns, costs: Sequence[BlockCost], where: NDArray[np.intp], below_s: float
    ) -> Iterator[Piece]:
        """Yield those `where` of the grid's points that may be so fast; `costs` are of all."""
        request = self.request
        low = bound_table(costs, self.policies)
        # All blocks of all microbatches, spread over the stages without a bubble.
        whole = np.tensordot(self.counts, low.seconds[0], axes=1)
        least = whole * spread(request, grid)
        where = where[least[where] <= below_s]
        order = where[np.argsort(least[where], kind="stable")]
        balance = block_flops(self.of_kind, constants(request))
        rows = {choice: row for row, choice in enumerate(self.choices)}
        for first in range(0, order.size, PIECE):
            mine = order[first : first + PIECE]
            yield Piece(
                request=request,
                machine=self.machine,
                scheme=self.scheme,
                candidates=replace(grid.at(mine), **request.limits.chosen),
                blocks=partial(_at, costs, mine),
                low=low.at(mine),
                balance=balance,
                budget=peak_budget(request, self.machine),
                whole_s=whole[mine],
                least_s=least[mine],
                choices=self.choices,
                rows=rows,
                policies=self.policies,
            )


def _at(costs: Sequence[BlockCost], mine: NDArray[np.intp], places: NDArray[np.intp]) -> tuple[BlockCost, ...]:
    return at(costs, mine[places])
