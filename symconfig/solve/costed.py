"""One candidate again, by the same functions that weighed it, with every stage on its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np

from symconfig.cost.framework import element_bytes
from symconfig.cost.lattice import Array, Lattice
from symconfig.cost.stages import Pipeline, Pipelines, Setting, Stages, StageShape, layers, stages
from symconfig.cost.step import Cost, Extremes, evaluate, evaluate_block, memory_bytes, prefixed, time_s, total
from symconfig.cost.table import Choice, Table, block_costs, resolve, table
from symconfig.graph.model import derived, structure
from symconfig.graph.parts import is_layer
from symconfig.plans.configuration_set import ConfigurationSet
from symconfig.solve.pieces import PLAIN, WHOLE
from symconfig.solve.prospect import Prospect
from symconfig.solve.space import lattice, priced


@dataclass(frozen=True)
class Costed:
    """The costs of one candidate with an entry of memory for every stage, and what they were computed from.

    by_block: the cost where only the first layers of every chunk are recomputed; None: it is computed from the sums
    when read.
    """

    sums: Stages
    points: ConfigurationSet
    setting: Setting
    table: Table
    by_block: Cost | None = None

    @property
    def cost(self) -> Cost:
        return self.by_block or Cost(self._time, self._memory)

    @cached_property
    def _time(self) -> dict[str, Array]:
        return time_s(self.sums, self.points, self.setting)

    @cached_property
    def _memory(self) -> dict[str, Array]:
        return memory_bytes(self.sums, self.points, self.setting)

    @cached_property
    def peaks(self) -> tuple[float, ...]:
        """Return the bytes allocated at the peak of every stage, in order of stages."""
        memory = self.by_block.memory if self.by_block else self._memory
        return tuple(float(value) for value in total(memory)[:, 0, 0, 0])


def sizes(prospect: Prospect, copies: int) -> Lattice:
    """Return the lattice of the candidate's point, repeated `copies` times."""
    return lattice(prospect.request, prospect.columns(copies))


def _shape(prospect: Prospect, index: int, kinds: tuple[str, ...], counts: tuple[int, ...]) -> StageShape:
    stage, together = prospect.split.stage(index), prospect.uniform_layers
    if together == 1:
        return StageShape(index, counts, 1, layers(stage))
    begin = [kind for chunk in stage for kind in begins(chunk, together) if kind is not None]
    return StageShape(index, counts, 1, layers(stage), together, tuple(begin.count(kind) for kind in kinds))


def begins(chunk: tuple[str, ...], together: int) -> tuple[str | None, ...]:
    """Return a chunk's kinds, with None for layers that do not begin a recompute group of `together` layers.

    Only transformer layers count and become None; other blocks, such as embedding and loss, keep their kind.
    """
    place, result = 0, []
    for kind in chunk:
        result.append(None if is_layer(kind) and place % together else kind)
        place += is_layer(kind)
    return tuple(result)


def costed(prospect: Prospect, known: Lattice | None = None) -> Costed:
    """Return the costs of one candidate by the functions that the search uses, with every stage by itself.

    known: its `sizes`, if the machine's constants are arrays with one value per copy; None: one point, from the cache.
    """
    return detailed(prospect, table_alone(prospect) if known is None else table_of(prospect, known))


def table_alone(prospect: Prospect) -> Table:
    """Return the cost table of a candidate's blocks at its point.

    Cached by the model's structure, scheme, lattice numbers, framework, recompute choices and machine.
    """
    request, where = prospect.request, sizes(prospect, 1)
    numbers = tuple((name, *np.ravel(value).tolist()) for name, value in where.numbers.items())
    same = structure(request.model), prospect.scheme, numbers, request.framework, choices_of(prospect)
    return _table_once(_Point((*same, prospect.machine.key), prospect, where))


@dataclass(frozen=True, slots=True)
class _Point:
    """A candidate's point as a cache key: equal to all points where blocks cost the same."""

    key: tuple[object, ...]
    prospect: Prospect = field(compare=False)
    where: Lattice = field(compare=False)


@lru_cache(maxsize=512)
def _table_once(point: _Point) -> Table:
    return table_of(point.prospect, point.where)


def choices_of(prospect: Prospect) -> tuple[Choice, ...]:
    """Return the recompute choices that a candidate's cost needs: its own, or none and full for the first layers."""
    return (PLAIN, WHOLE) if prospect.block_layers else (prospect.choice,)


def table_of(prospect: Prospect, where: Lattice) -> Table:
    """Return the cost table of a candidate's blocks at the points of `where`: its own point or copies of it."""
    request, gpu, choices = prospect.request, prospect.machine, choices_of(prospect)
    of_kind = derived(request.model, request.framework.implementation, prospect.scheme)
    costs = block_costs(of_kind, where, gpu, request.framework)
    return table(costs, choices, resolve(of_kind, choices), gpu, request.framework)


def detailed(prospect: Prospect, small: Table, where: ConfigurationSet | None = None) -> Costed:
    """Return a candidate's costs, with every stage, from the table of its blocks at its point or copies of it.

    small: has the choices of `choices_of`. where: columns of the points; None: those of the candidate, repeated. With
    `block_layers`, time and memory are those of full recompute of that many first layers of each chunk (`by_block`); it
    is not checked that they fit.
    """
    request, pp = prospect.request, prospect.configuration.pp
    every = np.arange(small.boundary.size)
    where = priced(request, prospect.columns(every.size), pp) if where is None else where
    counts = prospect.split.counts(small.kinds)
    shapes = tuple(_shape(prospect, index, small.kinds, count) for index, count in enumerate(counts))
    pipelines = Pipelines.of([Pipeline(pp, prospect.split.vpp, shapes)])
    setting = Setting(
        pipelines=pipelines,
        zero=prospect.configuration.zero_stage,
        offload=(prospect.offload,),
        machine=prospect.machine,
        framework=request.framework,
        bytes=element_bytes(request.framework, prospect.machine),
        tied=request.model.tie_word_embeddings,
    )
    sums = stages(small, pipelines, every, setting.tied)
    if not prospect.block_layers:
        return Costed(sums, where, setting, small)
    prefixes = tuple(
        tuple(prospect.split.first_layers_of(stage, small.kinds, count) for count in (0, prospect.block_layers))
        for stage in range(pp)
    )
    plain = evaluate(sums.policy(0), where, setting)
    cost = evaluate_block(
        Extremes(0, 1, small, every, sums, plain), where, setting, prefixed([prefixes], None, pp), np.inf
    ).cost
    return Costed(sums, where, setting, small, cost)
