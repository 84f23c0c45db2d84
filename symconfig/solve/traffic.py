"""What one GPU of a plan exchanges in a step, by who takes part and over which level of the network."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from symconfig.cost.exchange import exchange
from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.graph.operator import ELEMENT_BYTES
from symconfig.graph.sharding import over_replicas
from symconfig.solve.costed import Costed
from symconfig.solve.explain import level
from symconfig.solve.prospect import Prospect
from symconfig.solve.space import lattice
from symconfig.solve.timeline import stage_seconds, times


@dataclass(frozen=True, slots=True)
class Exchange:
    """Collectives of one kind over the same axes. bytes: of the larger buffer, summed over a step, on one GPU.

    seconds: without overlap; exposed_s: not overlapped. Both are None where only the whole step's are known.
    """

    kind: str
    axes: tuple[str, ...]
    level: str
    bytes: float
    seconds: float | None
    exposed_s: float | None


def exchanges(prospect: Prospect, parts: Costed, cluster: ClusterDescriptor) -> tuple[Exchange, ...]:
    """Return the communication of a GPU of the slowest stage in one step, by kind and axes, the most bytes first.

    Seconds are None for sends between stages and for data-parallel exchange. Groups of one rank are left out.
    """
    slowest = int(np.argmax(stage_seconds(parts, times(prospect, parts))))
    summed: dict[tuple[str, tuple[str, ...]], list[float]] = {}
    for kind, axes, *numbers in _of_layers(prospect, parts, slowest):
        known = summed.setdefault((kind, axes), [0.0, 0.0, 0.0])
        for place, number in enumerate(numbers):
            known[place] += number
    made = [Exchange(kind, axes, level(prospect, cluster, axes), *numbers) for (kind, axes), numbers in summed.items()]
    made += [
        Exchange(kind, axes, level(prospect, cluster, axes), size, None, None)
        for kind, axes, size in (*_of_stages(prospect, parts), *_of_step(prospect, parts, slowest))
        if size and level(prospect, cluster, axes)
    ]
    return tuple(sorted(made, key=lambda one: (-one.bytes, one.kind, one.axes)))


def _of_layers(
    prospect: Prospect, parts: Costed, stage: int
) -> Iterator[tuple[str, tuple[str, ...], float, float, float]]:
    """Yield (kind, axes, bytes, seconds, exposed seconds) of each collective in a stage's blocks.

    Numbers are sums over all microbatches of a step. Axes of one rank are left out, as are collectives that take no
    time.
    """
    numbers = lattice(prospect.request, prospect.columns())
    kinds = [kind for chunk in prospect.split.stage(stage) for kind in chunk]
    turns = float(parts.points.num_microbatches[0])
    ranks = {name: getattr(prospect.degrees, name) for name in ("tp", "pp", "cp", "ep", "etp", "dp", "edp")}
    for block in parts.table.blocks:
        count = kinds.count(block.derived.name) * turns
        for one, full, exposed in zip(block.derived.collectives, block.full_comm_s, block.comm_s, strict=True):
            axes = tuple(axis for axis in one.axes if ranks[axis] > 1)
            if count and axes and full[0] > 0:
                size = float(numbers.value(one.elements)[0]) * ELEMENT_BYTES[one.element] * one.times
                yield one.kind.value, axes, count * size, count * float(full[0]), count * float(exposed[0])


def _of_stages(prospect: Prospect, parts: Costed) -> Iterator[tuple[str, tuple[str, ...], float]]:
    """Yield (kind, axes, bytes) of a middle stage's sends: an activation and a gradient per chunk and microbatch.

    Nothing without a pipeline.
    """
    if prospect.degrees.pp > 1:
        boundary = float(np.ravel(parts.table.boundary)[0])
        yield "send/receive", ("pp",), 2 * boundary * prospect.degrees.vpp * float(parts.points.num_microbatches[0])


def _of_step(prospect: Prospect, parts: Costed, stage: int) -> Iterator[tuple[str, tuple[str, ...], float]]:
    """Yield (kind, axes, bytes) of the data-parallel exchange of a stage's weights and gradients in one step."""
    moved = exchange(parts.sums, parts.points, parts.setting)
    summed: defaultdict[tuple[str, tuple[str, ...]], float] = defaultdict(float)
    for way, moves in over_replicas(parts.setting.sharding):
        often = 1.0 if way.phase.once else float(parts.points.num_microbatches[0])
        amount = moved.gradients if way.gradient else moved.weights
        for part, axes in ((amount.dense, ("cp", "dp")), (amount.expert, ("edp",))):
            mine = tuple(axis for axis in axes if getattr(prospect.degrees, axis) > 1)
            size = float(np.broadcast_to(part, (prospect.degrees.pp, *part.shape[1:]))[stage].flat[0])
            for move in moves if mine else ():
                summed[move.kind.value, mine] += often * size
    yield from ((kind, axes, size) for (kind, axes), size in summed.items())
