"""A chosen plan, tensor by tensor: into how many parts each dim is cut, by which axes, over which level of the network,
and the collectives that follow where a tensor is used otherwise than it was made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.graph import dims as d
from symconfig.graph.block import Block
from symconfig.graph.derive import Flow, weight_layout
from symconfig.graph.derived import Collective, Phase
from symconfig.graph.layout import AXES, FLAT, Kind, Layout, moves
from symconfig.graph.model import blocks, sequence
from symconfig.graph.monomial import ONE
from symconfig.graph.operator import Operator, Weight
from symconfig.solve.prospect import Prospect

STEP = "step"  # phase of what happens once a step, or at the accumulation boundary
EVERY = "microbatch"  # of what happens to weights and gradients with each


@dataclass(frozen=True, slots=True)
class AxisLine:
    """A mesh axis of the plan: its ranks, and the outermost level of the network that its groups cross."""

    name: str
    ranks: int
    level: str


@dataclass(frozen=True, slots=True)
class Strategy:
    """parts: (s_1 … s_k) of the tensor's dims; axes: of each dim those that cut it; partial: those over whose ranks
    only the sum is the tensor; flat: those that cut a weight's states, or the weight, regardless of dims."""

    parts: tuple[int, ...]
    axes: tuple[tuple[str, ...], ...]
    partial: tuple[str, ...] = ()
    flat: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Exchanged:
    """A collective. level: the outermost that its groups cross."""

    kind: str
    axes: tuple[str, ...]
    level: str
    phase: str


@dataclass(frozen=True, slots=True)
class StrategyLine:
    """A tensor of a block. used: layouts other than `made` in which operators read it, with their names."""

    tensor: str
    weight: bool
    dims: tuple[str, ...]
    made: Strategy
    used: tuple[tuple[Strategy, tuple[str, ...]], ...]
    collectives: tuple[Exchanged, ...]


@dataclass(frozen=True, slots=True)
class BlockStrategies:
    kind: str
    times: int
    lines: tuple[StrategyLine, ...]


@dataclass(frozen=True, slots=True)
class Strategies:
    """axes: those with more than one rank, pp included."""

    axes: tuple[AxisLine, ...]
    blocks: tuple[BlockStrategies, ...]


def strategies(prospect: Prospect, cluster: ClusterDescriptor) -> Strategies:
    """Return the strategies of every kind of block, once."""
    grid = _Grid(prospect, cluster, _ranks(prospect))
    kinds = sequence(prospect.request.model)
    of_kind = blocks(prospect.request.model, prospect.request.framework.implementation, prospect.scheme.shared_heads)
    axes = tuple(AxisLine(axis, grid.ranks[axis], grid.level((axis,))) for axis in grid.several(AXES))
    experts = any(
        d.EXPERTS in weight.dims for block in of_kind.values() for op in block.operators for weight in op.weights
    )
    return Strategies(
        tuple(axis for axis in axes if experts or axis.name not in ("etp", "ep", "edp")),
        tuple(BlockStrategies(kind, kinds.count(kind), tuple(_lines(block, grid))) for kind, block in of_kind.items()),
    )


def _ranks(prospect: Prospect) -> dict[str, int]:
    return {name: getattr(prospect.degrees, name) for name in ("tp", "pp", "cp", "ep", "etp", "dp", "edp")}


def level(prospect: Prospect, cluster: ClusterDescriptor, axes: tuple[str, ...]) -> str:
    """Return the innermost level of the network with domains that hold a whole group; nothing for one rank."""
    ranks = _ranks(prospect)
    size = prod(ranks[axis] for axis in axes)
    reach = size * float(prospect.request.framework.stride(axes, ranks))
    inside = (level.name for level in cluster.levels if level.size is None or level.size >= reach)
    return next(inside, cluster.levels[-1].name) if size > 1 else ""


@dataclass(frozen=True, slots=True)
class _Grid:
    prospect: Prospect
    cluster: ClusterDescriptor
    ranks: Mapping[str, int]

    def several(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(axis for axis in axes if self.ranks.get(axis, 1) > 1)

    def level(self, axes: tuple[str, ...]) -> str:
        return level(self.prospect, self.cluster, axes)

    def strategy(self, dims: tuple[str, ...], layout: Layout, flat: tuple[str, ...] = ()) -> Strategy:
        axes = tuple(self.several(layout.axes_on(dim)) for dim in dims)
        parts = tuple(prod(self.ranks[axis] for axis in mine) for mine in axes)
        return Strategy(parts, axes, self.several(layout.partial), self.several(flat))

    def exchanged(self, kind: Kind, axes: tuple[str, ...], phase: str) -> Iterator[Exchanged]:
        mine = self.several(axes)
        if mine:
            yield Exchanged(kind.value, mine, self.level(mine), phase)


def _lines(block: Block, grid: _Grid) -> Iterator[StrategyLine]:
    """Yield activations in the order in which they are made, then weights."""
    flow = Flow(block, grid.prospect.scheme)
    moved: dict[str, list[Collective]] = {}
    for collective in flow.collectives():
        moved.setdefault(collective.tensor, []).append(collective)
    for name, tensor in flow.tensors.items():
        made = grid.strategy(tensor.dims, flow.produced[name][1])
        used: dict[Strategy, list[str]] = {}
        for op, layout in flow.uses[name]:
            other = grid.strategy(tensor.dims, layout)
            if other != made:
                used.setdefault(other, []).append(op.name if op else "the next block")
        collectives = (
            one
            for collective in moved.get(name, ())
            for one in grid.exchanged(collective.kind, collective.axes, _phase(collective.phase))
        )
        readers = tuple((other, tuple(names)) for other, names in used.items())
        yield StrategyLine(name, False, tensor.dims, made, readers, tuple(dict.fromkeys(collectives)))
    for op in block.operators:
        for weight in op.weights:
            if not weight.shared:
                yield _weight(op, weight, grid)


def _phase(phase: Phase) -> str:
    return "backward" if phase is Phase.WEIGHT else phase.value


def _weight(op: Operator, weight: Weight, grid: _Grid) -> StrategyLine:
    """Return how a weight lies, and what its layouts and its gradient's exchange."""
    used, summed = weight_layout(op, weight, grid.prospect.scheme)
    sharding = grid.prospect.request.framework.sharding(grid.prospect.zero)
    exchanges = [
        exchanged
        for way in sharding.ways(used, summed, trained=not weight.frozen)
        for move in moves(way.given, way.taken, ONE)
        for exchanged in grid.exchanged(move.kind, move.axes, STEP if way.phase.once else EVERY)
    ]
    layouts = sharding.layouts(used, summed)
    flat = (layouts.stored if weight.frozen else layouts.state).axes_on(FLAT)
    made = grid.strategy(weight.dims, used, flat)
    return StrategyLine(weight.name, True, weight.dims, made, (), tuple(dict.fromkeys(exchanges)))
