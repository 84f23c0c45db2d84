"""One candidate again, by the same functions that weighed it, with every stage on its own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from symconfig.cost.block_recompute import evaluate_block
from symconfig.cost.framework import element_bytes
from symconfig.cost.lattice import Lattice
from symconfig.cost.stages import ENDS, Points, Setting, Stages, StageShape, layers, stages
from symconfig.cost.step import Cost, evaluate
from symconfig.cost.table import Choice, Table, block_costs, resolve, table
from symconfig.graph.model import derived
from symconfig.solve.found import Found
from symconfig.solve.pieces import WHOLE
from symconfig.solve.space import Grid, columns, lattice
from symconfig.solve.weigh import first


@dataclass(frozen=True, slots=True)
class Detail:
    """One candidate again: its parts, with a memory entry for every stage, and what the parts were made from."""

    cost: Cost
    sums: Stages
    points: Points
    setting: Setting
    table: Table

    @property
    def peaks(self) -> tuple[float, ...]:
        """Bytes allocated at the peak of every stage."""
        return tuple(float(value) for value in self.cost.stage_bytes[:, 0, 0, 0])


def sizes(found: Found, copies: int) -> Lattice:
    """The candidate's point, `copies` times."""
    return lattice(found.request, _point(found, copies))


def _point(found: Found, copies: int) -> Grid:
    tp, _, cp, ep, etp, _, micro = found.degrees
    return np.repeat(np.array([[tp], [cp], [ep], [etp], [micro]], dtype=np.int64), copies, axis=1)


def _shape(found: Found, index: int, kinds: tuple[str, ...], counts: tuple[int, ...]) -> StageShape:
    stage, together = found.split.stage(index), found.uniform_layers
    if together == 1:
        return StageShape(index, counts, 1, layers(stage))
    begin = [kind for chunk in stage for kind in begins(chunk, together) if kind is not None]
    return StageShape(index, counts, 1, layers(stage), together, tuple(begin.count(kind) for kind in kinds))


def begins(chunk: tuple[str, ...], together: int) -> tuple[str | None, ...]:
    """The kinds of a chunk, with None for layers that do not begin a group of so many which are recomputed at once."""
    place, result = 0, []
    for kind in chunk:
        result.append(None if kind not in ENDS and place % together else kind)
        place += kind not in ENDS
    return tuple(result)


def detail(found: Found, known: Lattice | None = None) -> Detail:
    """The parts of one candidate, by the same functions that weighed it.

    known: `sizes` of it, where the machine's constants are arrays of as many values as it has copies.
    """
    request, known = found.request, known or sizes(found, 1)
    of_kind = derived(request.model, request.framework.implementation, found.scheme)
    choices = [Choice(), WHOLE] if found.block_layers else [found.choice]
    costs = block_costs(of_kind, known, found.machine, request.framework)
    return detailed(found, table(costs, choices, resolve(of_kind, choices), found.machine, request.framework))


def detailed(found: Found, small: Table) -> Detail:
    """The same from the table of its blocks: its policy, or no and full recompute, at its point or copies of it."""
    request, pp = found.request, found.degrees[1]
    every = np.arange(small.boundary.size)
    point = _point(found, every.size)
    counts = found.split.counts(small.kinds)
    shapes = tuple(_shape(found, index, small.kinds, count) for index, count in enumerate(counts))
    setting = Setting(
        pp,
        found.split.vpp,
        shapes,
        found.zero,
        (found.offload,),
        found.machine,
        request.framework,
        element_bytes(request.framework, request.precision),
        request.model.tie_word_embeddings,
    )
    where = columns(request, point, pp)
    sums = stages(small, shapes, every, setting.tied)
    if not found.block_layers:
        return Detail(evaluate(sums, where, setting), sums, where, setting, small)
    prefixes = tuple(
        (first(found.split, stage, small.kinds, 0), first(found.split, stage, small.kinds, found.block_layers))
        for stage in range(pp)
    )
    cost = evaluate_block(small.only(0), small.only(1), every, where, setting, prefixes, np.inf).cost
    return Detail(cost, sums, where, setting, small)
