"""A plan for a reader: operators, collectives and kept tensors of a layer in symbols and numbers, and the layout of
every tensor: into how many parts each dim is split, by which axes, over which level of the network."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod

from symconfig.cost.blocks import BlockCost
from symconfig.cost.lattice import Lattice
from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.format import grouped, picked
from symconfig.graph import dims as d
from symconfig.graph.block import Block
from symconfig.graph.derive import Flow, is_over_gtp, weight_layout
from symconfig.graph.derived import AttentionWork, Matmul, Phase, Policy, recompute_policy
from symconfig.graph.dims import ONE
from symconfig.graph.layout import AXES, FLAT, Kind, Layout, moves
from symconfig.graph.model import blocks, sequence
from symconfig.graph.operator import ELEMENT_BYTES, Operator, Weight
from symconfig.plans.plan import Plan
from symconfig.solve.costed import costed
from symconfig.solve.predict import restore
from symconfig.solve.prospect import Prospect
from symconfig.solve.space import lattice
from symconfig.units import MIB


@dataclass(frozen=True, slots=True)
class OperatorLine:
    """One operator in one phase on one rank and microbatch. shape: in symbols; numbers: the same in numbers."""

    name: str
    phase: str
    shape: str
    numbers: str
    seconds: float


@dataclass(frozen=True, slots=True)
class CollectiveLine:
    tensor: str
    kind: str
    axes: str
    phase: str
    size: str
    bytes: float
    seconds: float
    exposed_s: float


@dataclass(frozen=True, slots=True)
class TensorLine:
    """An activation that the backward pass needs. size: in symbols. fate: kept, offloaded or recomputed."""

    name: str
    size: str
    bytes: float
    fate: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """Tables for `kind`, the most frequent kind of layer, and the strategies of all kinds of blocks."""

    kind: str
    operators: tuple[OperatorLine, ...]
    collectives: tuple[CollectiveLine, ...]
    tensors: tuple[TensorLine, ...]
    strategies: Strategies


def explain(plan: Plan) -> Explanation:
    """Return operators, collectives and kept tensors of the most frequent layer kind, and the strategies of all blocks.

    plan.best is computed again; of equally frequent kinds the first counts. Raises InputError if a pin or degree is not
    possible any more.
    """
    prospect = restore(plan, plan.best)
    parts = costed(prospect)
    kinds = plan.model.layer_kinds
    kind = max(dict.fromkeys(kinds), key=kinds.count)
    block = next(block for block in parts.table.blocks if block.derived.name == kind)
    numbers = lattice(prospect.request, prospect.columns())
    policy = recompute_policy(block.derived, prospect.choice.modules, prospect.choice.offload)
    return Explanation(
        kind,
        tuple(_operators(block, numbers)),
        tuple(_collectives(block, numbers)),
        tuple(_tensors(block, policy)),
        strategies(prospect, plan.cluster),
    )


def _operators(block: BlockCost, numbers: Lattice) -> Iterator[OperatorLine]:
    """Yield the operators of a block on one rank and microbatch, one line per phase, with shape and seconds.

    Shape: dims of a matrix product (symbols; numbers without those that are 1), queries and keys of attention, or the
    MiB that others move.
    """
    shapes: dict[tuple[str, Phase], tuple[str, str]] = {}
    for work in block.derived.work:
        if isinstance(work, Matmul):
            sizes = (work.batch, work.m, work.n, work.k)
            shapes[work.op, work.phase] = (
                f"[{work.m}] x [{work.n}] over [{work.k}]",
                " x ".join(f"{numbers.value(size)[0]:,.0f}" for size in sizes if str(size) != "1"),
            )
        elif isinstance(work, AttentionWork):
            shapes[work.op, work.phase] = (
                f"[{work.queries}] queries x [{work.keys}]",
                f"{numbers.value(work.queries)[0]:,.0f}",
            )
        else:
            moved = sum(float(numbers.value(size)[0]) * ELEMENT_BYTES[element] for size, element in work.moved)
            shapes[work.op, work.phase] = ("memory traffic", f"{moved / MIB:,.1f} MiB")
    for (op, phase), seconds in block.work_s.items():
        shape, values = shapes[op, phase]
        yield OperatorLine(op, phase.value, shape, values, float(seconds[0]))


def _collectives(block: BlockCost, numbers: Lattice) -> Iterator[CollectiveLine]:
    """Yield the collectives of a block that take time: tensor, kind, axes, phase, size in symbols, bytes, seconds.

    seconds: all; exposed_s: those that computation does not hide. Collectives of zero seconds, such as those over one
    rank, are left out.
    """
    for collective, full, exposed in zip(block.derived.collectives, block.full_comm_s, block.comm_s, strict=True):
        if full[0] > 0:
            size = float(numbers.value(collective.elements)[0]) * ELEMENT_BYTES[collective.element]
            yield CollectiveLine(
                tensor=collective.tensor,
                kind=collective.kind.value,
                axes=" x ".join(collective.axes),
                phase=collective.phase.value,
                size=str(collective.elements),
                bytes=size,
                seconds=float(full[0]),
                exposed_s=float(exposed[0]),
            )


def _tensors(block: BlockCost, policy: Policy) -> Iterator[TensorLine]:
    """Yield the activations of a block that are kept, or that its backward pass needs, with their bytes and fate.

    Bytes are of one rank and microbatch, and may be 0. Fate: offloaded or kept if the policy keeps it, else recomputed.
    """
    for held, size, kept, moved in zip(
        block.derived.held, block.held_bytes, policy.kept, policy.offloaded, strict=True
    ):
        if kept or held.needed_by:
            fate = "offloaded" if moved else "kept" if kept else "recomputed"
            yield TensorLine(held.tensor, str(held.elements), float(size[0]), fate)


STEP = "step"  # phase of collectives once a step, or at the accumulation boundary
EVERY = "microbatch"  # phase of collectives of weights and gradients in every microbatch


@dataclass(frozen=True, slots=True)
class AxisLine:
    """A mesh axis of the plan: its number of ranks, and the innermost network level that holds its groups."""

    name: str
    ranks: int
    level: str


@dataclass(frozen=True, slots=True)
class Strategy:
    """How a tensor is sharded. parts: number of shards of each dim; axes: mesh axes that shard each dim.

    partial: axes over which it must be summed. flat: axes that shard a weight, or its states, regardless of dims.
    """

    parts: tuple[int, ...]
    axes: tuple[tuple[str, ...], ...]
    partial: tuple[str, ...] = ()
    flat: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Exchanged:
    """A collective. level: innermost network level that holds its groups."""

    kind: str
    axes: tuple[str, ...]
    level: str
    phase: str


@dataclass(frozen=True, slots=True)
class StrategyLine:
    """A tensor of a block. made: as produced; used: other strategies in which operators read it, with their names."""

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
    """The strategies of all kinds of blocks. axes: those with more than one rank, pp included."""

    axes: tuple[AxisLine, ...]
    blocks: tuple[BlockStrategies, ...]


def strategies(prospect: Prospect, cluster: ClusterDescriptor) -> Strategies:
    """Return the mesh axes, and for every kind of block, how often it comes and how each of its tensors is sharded.

    Axes with one rank are left out, as are etp, ep and edp if no weight has a dim of experts.
    """
    grid = _Grid(prospect, cluster)
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


@dataclass(frozen=True)
class _Grid:
    prospect: Prospect
    cluster: ClusterDescriptor

    @cached_property
    def ranks(self) -> dict[str, int]:
        """Return the sizes of the mesh axes; dp is without the ranks of gtp."""
        c = self.prospect.configuration
        return {**picked(c, "tp", "gtp", "pp", "cp", "ep", "etp", "edp"), "dp": c.dp // c.gtp}

    def several(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(axis for axis in axes if self.ranks.get(axis, 1) > 1)

    def level(self, axes: tuple[str, ...]) -> str:
        """Return the name of the innermost network level whose domains hold all ranks of a group over these axes.

        The reach of a group is its size times the stride of the framework's rank order. The outermost level if none
        holds it; "" for a group of one rank.
        """
        size = prod(self.ranks[axis] for axis in axes)
        reach = size * float(self.prospect.request.framework.stride(axes, self.ranks))
        inside = (level.name for level in self.cluster.levels if level.size is None or level.size >= reach)
        return next(inside, self.cluster.levels[-1].name) if size > 1 else ""

    def strategy(self, dims: tuple[str, ...], layout: Layout, flat: tuple[str, ...] = ()) -> Strategy:
        axes = tuple(self.several(layout.axes_on(dim)) for dim in dims)
        parts = tuple(prod(self.ranks[axis] for axis in mine) for mine in axes)
        return Strategy(parts, axes, self.several(layout.partial), self.several(flat))

    def exchanged(self, kind: Kind, axes: tuple[str, ...], phase: str) -> Iterator[Exchanged]:
        mine = self.several(axes)
        if mine:
            yield Exchanged(kind.value, mine, self.level(mine), phase)


def _lines(block: Block, grid: _Grid) -> Iterator[StrategyLine]:
    """Yield a line per tensor of a block: activations in the order in which they are produced, then weights not shared.

    An activation's `made` is its strategy where it is produced, its `used` each other strategy with the operators that
    read it so ("the next block" at the block's end); collectives are listed once each, those over one rank left out.
    Weights: `_weight`.
    """
    flow = Flow(block, grid.prospect.scheme)
    moved = grouped((collective.tensor, collective) for collective in flow.collectives())
    for name, tensor in flow.tensors.items():
        made = grid.strategy(tensor.dims, flow.produced[name][1])
        uses = (
            (grid.strategy(tensor.dims, layout), op.name if op else "the next block") for op, layout in flow.uses[name]
        )
        used = grouped((other, reader) for other, reader in uses if other != made)
        collectives = (
            one
            for collective in moved.get(name, ())
            for one in grid.exchanged(
                collective.kind,
                collective.axes,
                "backward" if collective.phase is Phase.WEIGHT else collective.phase.value,
            )
        )
        readers = tuple((other, tuple(names)) for other, names in used.items())
        yield StrategyLine(name, False, tensor.dims, made, readers, tuple(dict.fromkeys(collectives)))
    for op in block.operators:
        for weight in op.weights:
            if not weight.shared:
                yield _weight(op, weight, grid)


def _weight(op: Operator, weight: Weight, grid: _Grid) -> StrategyLine:
    """Return how a weight is sharded, and the distinct collectives of its parameters, gradients and states.

    flat: the axes that shard its states; those that shard its stored values if it is frozen.
    """
    used, summed = weight_layout(op, weight, grid.prospect.scheme)
    over_gtp = is_over_gtp(op, weight, grid.prospect.scheme)
    sharding = grid.prospect.request.framework.sharding(grid.prospect.configuration.zero_stage)
    exchanges = [
        exchanged
        for way in sharding.ways(used, summed, trained=not weight.frozen, over_gtp=over_gtp)
        for move in moves(way.given, way.taken, ONE)
        for exchanged in grid.exchanged(move.kind, move.axes, STEP if way.phase.once else EVERY)
    ]
    layouts = sharding.layouts(used, summed, over_gtp)
    flat = (layouts.stored if weight.frozen else layouts.state).axes_on(FLAT)
    made = grid.strategy(weight.dims, used, flat)
    return StrategyLine(weight.name, True, weight.dims, made, (), tuple(dict.fromkeys(exchanges)))
