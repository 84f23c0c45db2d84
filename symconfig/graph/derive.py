"""From a block and a scheme: local work, collectives, kept tensors and weight shards, forward and backward.

Nothing here knows a building block. Backward is derived by one rule: a gradient is needed in the layout in
which its tensor was produced, and contracting a dim that is split makes it partial.
"""

from __future__ import annotations

from functools import lru_cache

from symconfig.graph import dims as d
from symconfig.graph.block import LAYER, Block
from symconfig.graph.derived import Collective, DerivedBlock, Held, Phase, WeightShard, Workspace
from symconfig.graph.dims import ONE
from symconfig.graph.layout import GTP, Kind, Layout, Move, Sharding, moves
from symconfig.graph.layout import Phase as Step
from symconfig.graph.operator import Element, Gradients, Leg, Operator, Tensor, Use, Weight, Work
from symconfig.graph.scheme import Scheme, local, tasks


@lru_cache(maxsize=256)
def derive(block: Block, scheme: Scheme) -> DerivedBlock:
    """Return everything that follows on one rank from a block's operators and a scheme's layouts. Cached by equal
    blocks.

    boundary: local elements, in the layout of an element-wise operator, of the first input or, if that has no hidden
    dim, the first output; of a plain [B, S, D] stream if neither has one. legs: only of operators that are part of an
    expert dispatch. Weights that another block holds are left out.
    """
    flow = Flow(block, scheme)
    overwritten = {use.tensor.name for op in block.operators if op.overwrites for use in op.activations}
    streams = (tensor for tensor in (*block.inputs[:1], *block.outputs[:1]) if d.HIDDEN in tensor.dims)
    stream = next(streams, _STREAM)
    return DerivedBlock(
        name=block.name,
        sequence_parallel=scheme.sequence_parallel,
        work=tuple(task for op in block.operators for task in tasks(op, scheme)),
        collectives=(*flow.collectives(), *_weight_collectives(block, scheme)),
        held=tuple(flow.held()),
        weights=tuple(shard for op in block.operators for shard in _weights(op, scheme)),
        workspaces=tuple(_workspace(op, scheme, overwritten) for op in block.operators),
        modules=tuple((op.name, op.modules) for op in block.operators),
        stops_early=block.stops_early,
        boundary=local(stream.dims, _elementwise_layout(stream, scheme)),
        place=block.place,
        legs=tuple((op.name, op.leg) for op in block.operators if op.leg is not Leg.APART),
    )


_STREAM = Tensor("residual", (d.BATCH, d.SEQUENCE, d.HIDDEN))


def _elementwise_layout(tensor: Tensor, scheme: Scheme) -> Layout:
    """Return the layout that an element-wise operator on the tensor alone would give it."""
    use = Use(tensor)
    return scheme.layout(Operator("", Work.MEMORY, tensor.dims, (use,), (use,)), use)


class Flow:
    """Record the producer and the consumers of every tensor of a block, with their layouts."""

    def __init__(self, block: Block, scheme: Scheme) -> None:
        """Fill `tensors`, `produced` (producer, layout) and `uses` (consumer, layout) by tensor name, in operator
        order. Produced are the block's inputs (producer None), outputs of operators, with partial axes, and saved or
        held tensors that nothing produced before, such as statistics and masks. A block output has one more use, with
        consumer None. Raise KeyError for an activation that nothing has produced.
        """
        self.block, self.scheme = block, scheme
        self.tensors: dict[str, Tensor] = {}
        self.produced: dict[str, tuple[Operator | None, Layout]] = {}
        self.uses: dict[str, list[tuple[Operator | None, Layout]]] = {}
        for tensor in block.inputs:
            self._produce(tensor, None, self._at_border(tensor))
        for op in block.operators:
            for use in op.activations:
                self.uses[use.tensor.name].append((op, scheme.layout(op, use)))
            for use in op.outputs:
                self._produce(use.tensor, op, scheme.layout(op, use, op.contracted))
            for use in (*op.saves, *op.holds):
                if use.name not in self.produced:  # statistics and masks: made for the backward only
                    self._produce(use.tensor, op, scheme.layout(op, use))
        for tensor in block.outputs:
            self.uses[tensor.name].append((None, self._at_border(tensor)))

    def _at_border(self, tensor: Tensor) -> Layout:
        """Return the layout of a block's input or output: that in which an element-wise operator has the tensor, but
        not split over tp unless it is a stream ([B, S, ..., D]) or a tensor that another block makes (`elsewhere`).
        """
        layout = _elementwise_layout(tensor, self.scheme)
        if (*tensor.dims[:2], *tensor.dims[-1:]) == _STREAM.dims or tensor.name in self.block.elsewhere:
            return layout
        return Layout(tuple((axis, place) for axis, place in layout.places if axis != "tp"))

    def _produce(self, tensor: Tensor, op: Operator | None, layout: Layout) -> None:
        self.tensors[tensor.name] = tensor
        self.produced[tensor.name] = (op, layout)
        self.uses[tensor.name] = []

    def collectives(self) -> list[Collective]:
        """Return the collectives of the block by tensor: of the forward, of the tensor's gradient, and gathers that the
        backward repeats. Index tensors and losses have forward ones only; a tensor without a gradient has no gradient
        collectives.
        """
        result: list[Collective] = []
        for name, tensor in self.tensors.items():
            result.extend(self._forward(name, tensor))
            if tensor.element is not Element.INDEX and tensor not in self.block.losses:
                result.extend(self._backward(name, tensor) if tensor.gradient else ())
                result.extend(self._regathered(name, tensor))
        return result

    def _forward(self, name: str, tensor: Tensor) -> list[Collective]:
        """Return the forward collectives of a tensor: the moves from its production layout to each distinct layout of
        its uses; empty if these are all equal. The owner is the producer for reductions (run `producer.sums` times) and
        for block outputs, else the first consumer in that layout. The owner's forward can overlap the collective, in
        chunks, unless it is memory-bound or there is no owner.
        """
        producer, produced = self.produced[name]
        result = []
        for op, layout in {layout: (op, layout) for op, layout in reversed(self.uses[name])}.values():
            for move in moves(produced, layout, d.elements(tensor.dims)):
                reduces = move.kind in (Kind.ALL_REDUCE, Kind.REDUCE_SCATTER)
                owner = producer if reduces or op is None else op
                times = producer.sums if reduces and producer else 1
                work = (owner.name, Phase.FORWARD) if owner and owner.work is not Work.MEMORY else None
                result.append(_collective(tensor, move, Phase.FORWARD, owner, work, times, chunked=True))
        return result

    def _backward(self, name: str, tensor: Tensor) -> list[Collective]:
        """Return the collectives of a tensor's gradient: the moves from the layout of each contribution to the
        production layout without partial axes.

        Contributions of equal layout are summed locally and moved once, except that of an `apart` operator if the
        production layout has no tp. Consumers that compute no input gradients are skipped; a block output contributes
        in its border layout. A trained matmul's weight gradient or an attention's backward can overlap the collective;
        else, for an all-gather, in chunks, the producer's input gradient if it is a matmul.
        """
        producer, produced = self.produced[name]
        wanted = produced.summed()
        sources: dict[tuple[Layout, str], Operator | None] = {}
        for op, layout in self.uses[name]:
            if op and op.gradients is not Gradients.ALL:
                continue
            given = layout
            if op is not None:
                # The gradient of an input is summed over all other loops, unless tokens and slots are permuted.
                permutes = d.SEQUENCE in op.loops and not {*d.SLOT_DIMS}.isdisjoint(op.loops)
                use = next(use for use in op.inputs if use.name == name)
                given = self.scheme.layout(op, use, () if permutes else op.loops)
            sources.setdefault((given, op.name if op and op.apart and wanted.where("tp") is None else ""), op)
        result = []
        for (given, _), op in sources.items():
            for move in moves(given, wanted, d.elements(tensor.dims)):
                work, chunked = None, False
                if op and op.work is Work.MATMUL and op.trainable:
                    work = (op.name, Phase.WEIGHT)
                elif op and op.work is Work.ATTENTION:
                    work = (op.name, Phase.INPUT)
                elif producer and producer.work is Work.MATMUL and move.kind is Kind.ALL_GATHER:
                    work, chunked = (producer.name, Phase.INPUT), True
                result.append(_collective(tensor, move, Phase.INPUT, op or producer, work, chunked=chunked))
        return result

    def _regathered(self, name: str, tensor: Tensor) -> list[Collective]:
        """Return the collectives that the backward repeats because a shard was kept where a consumer's backward needs
        the layout of its forward; once for each such layout. Skipped are block outputs, consumers whose backward does
        not need the tensor, and `apart` ones, which keep it gathered.
        """
        _, produced = self.produced[name]
        result, seen = [], set()
        for op, layout in self.uses[name]:
            if op is None or op.apart or tensor not in op.needed() or layout in seen:
                continue
            seen.add(layout)
            if self._kept_layout(produced, layout) == layout:
                continue
            for move in moves(produced.summed(), layout, d.elements(tensor.dims)):
                result.append(_collective(tensor, move, Phase.INPUT, op, (op.name, Phase.INPUT)))
        return result

    def held(self) -> list[Held]:
        """Return a Held for every activation on one rank and each layout in which it is kept for a backward; if no
        backward needs it, one in the layout of production, without partial axes.

        An `apart` operator keeps the layout that it uses, others that of `_kept_layout`. Views of a tensor of the
        block, in its production layout, and tensors that another block holds have 0 elements. storage: the tensor's
        own, or its own name if others are views of it; "" in any other layout. An ACTIVATION that only low-precision
        products need is kept as MATMUL_INPUT.
        """
        result, viewed = [], {tensor.storage for tensor in self.tensors.values()}
        low = {op.name for op in self.block.operators if op.low_precision}
        for name, tensor in self.tensors.items():
            producer, produced = self.produced[name]
            storage = tensor.storage or (name if name in viewed else "")
            needs: dict[Layout, list[str]] = {}
            for op in self.block.operators:
                if tensor in op.needed():
                    used = self._needed_in(name, op)
                    needs.setdefault(used if op.apart else self._kept_layout(produced, used), []).append(op.name)
            consumers = tuple(op.name for op, _ in self.uses[name] if op)
            for layout, names in (needs or {produced.summed(): []}).items():
                narrow = names and tensor.kind is Element.ACTIVATION and low.issuperset(names)
                views = layout == produced.summed() and tensor.storage in self.tensors.keys() - {name}
                result.append(
                    Held(
                        tensor=name,
                        elements=local(tensor.dims, layout) * (0 if views or name in self.block.elsewhere else 1),
                        element=Element.MATMUL_INPUT if narrow else tensor.kind,
                        producer=producer.name if producer else None,
                        needed_by=tuple(names),
                        consumers=consumers,
                        storage=storage if layout == produced.summed() else "",
                    )
                )
        return result

    def _needed_in(self, name: str, op: Operator) -> Layout:
        """Return the layout in which an operator's backward reads a tensor: that in which its forward reads it. If the
        tensor is not its input: the production layout (without partial axes) if the operator produced it or no operator
        reads it, else the first consumer's layout.
        """
        producer, produced = self.produced[name]
        layouts = {user.name: layout for user, layout in reversed(self.uses[name]) if user}
        if op.name in layouts:
            return layouts[op.name]
        return produced.summed() if op is producer or not layouts else next(reversed(layouts.values()))

    def _kept_layout(self, produced: Layout, used: Layout) -> Layout:
        """Return the layout in which a tensor is kept: `produced` if `used` follows from it by all-gathers over tp and
        cp only, or is a slice of it without communication; else `used`.
        """
        changed = list(moves(produced, used, d.elements(())))
        if not changed and set(produced.places) < set(used.places):
            return produced
        if changed and all(move.kind is Kind.ALL_GATHER and set(move.axes) <= {"tp", "cp"} for move in changed):
            return produced
        return used


def _collective(
    tensor: Tensor,
    move: Move,
    phase: Phase,
    owner: Operator | None,
    behind: tuple[str, Phase] | None,
    times: int = 1,
    chunked: bool = False,
) -> Collective:
    """Return the collective of a move of a tensor. owner: its name and leg are set, or "" and APART for None. behind:
    (operator, phase) that can overlap it, or None. Expert copies and groups are 1 unless the move's axes include ep.
    """
    return Collective(
        tensor=tensor.name,
        kind=move.kind,
        axes=move.axes,
        elements=d.local(move.elements),
        element=tensor.kind,
        phase=phase,
        owner=owner.name if owner else "",
        behind=behind,
        times=times,
        chunked=chunked,
        leg=owner.leg if owner else Leg.APART,
        copies=d.COPIES if "ep" in move.axes else ONE,
        groups=d.GROUPS if "ep" in move.axes else ONE,
        chosen_groups=d.CHOSEN_GROUPS if "ep" in move.axes else ONE,
    )


def _workspace(op: Operator, scheme: Scheme, overwritten: set[str]) -> Workspace:
    """Return the gradients alive during an operator's backward, on one rank, as moved ([(elements, type)]): of its
    activations and outputs; of outputs only if `in_place`. A 4-bit weight is added, for its 16-bit copy. A tensor named
    in `overwritten` is left out, as its gradient takes the memory of the saved tensor. weight: elements of the first
    weight's gradient, for a trained matmul only. layer: it is in the module LAYER. buffer: elements of the first
    output, for a `buffered` operator only.
    """
    moved = op.outputs if op.in_place else (*op.activations, *op.outputs)
    moved = (*moved, *(use for use in op.inputs if isinstance(use.tensor, Weight) and use.tensor.quantised))
    uses = [use for use in moved if use.tensor.name not in overwritten]
    weight = op.weights[0] if op.work is Work.MATMUL and op.trainable and op.weights else None
    return Workspace(
        op.name,
        tuple((local(use.tensor.dims, scheme.layout(op, use)), use.tensor.kind) for use in uses),
        d.local(d.elements(weight.dims) / weight_layout(op, weight, scheme)[0].parts()) if weight else None,
        LAYER in op.modules,
        local(op.outputs[0].tensor.dims, scheme.layout(op, op.outputs[0])) if op.buffered else None,
    )


def _weight_collectives(block: Block, scheme: Scheme) -> list[Collective]:
    """Return the collectives of a microbatch's weights: gathers of those in shards over GTP (Megatron-LM's weight
    shards within the data-parallel ranks) before the forward and, for matmuls, before the backward of inputs, and
    reductions of their gradients.

    Each overlaps with the neighbouring operator that has such a weight: the one before it in the forward, the one after
    it in the backward, and for a gradient the next one of the backward. The block's first and last operator are
    neighbours, as in a row of equal layers. Look-ups of a table overlap with nothing, as nothing precedes them.
    """
    ops = [op for op in block.operators if any(is_over_gtp(op, weight, scheme) for weight in op.weights)]
    result: list[Collective] = []
    for place, op in enumerate(ops):
        before, after = ops[place - 1], ops[(place + 1) % len(ops)]
        behind = {
            Step.FORWARD: (before.name, Phase.FORWARD),
            Step.KEPT: (after.name, Phase.INPUT),
            Step.BACKWARD: (before.name, Phase.WEIGHT if before.trainable else Phase.INPUT),
        }
        for weight in op.weights:
            if not is_over_gtp(op, weight, scheme):
                continue
            for way in Sharding().ways(*weight_layout(op, weight, scheme), not weight.frozen, over_gtp=True):
                if way.phase not in behind or (way.phase is Step.KEPT and op.work is not Work.MATMUL):
                    continue
                work = behind[way.phase] if op.work is Work.MATMUL else None
                phase = Phase.WEIGHT if way.gradient else behind[way.phase][1]
                tensor = Tensor(weight.name, weight.dims, Element.GRADIENT if way.gradient else weight.element)
                for move in moves(way.given, way.taken, d.elements(weight.dims)):
                    result.append(_collective(tensor, move, phase, op, work))
    return result


def is_over_gtp(op: Operator, weight: Weight, scheme: Scheme) -> bool:
    """Return whether a weight is stored in parts over GTP: a table, or a matrix of a product that tensor parallelism
    splits, and no expert's. False for all in a scheme without weight shards.
    """
    matrix = weight.table or (op.work is Work.MATMUL and len(set(weight.dims)) > 1)
    return scheme.weight_shards and matrix and weight_layout(op, weight, scheme)[0].where("tp") is not None


def _weights(op: Operator, scheme: Scheme) -> list[WeightShard]:
    """Return the shards of an operator's weights on one rank, without `shared` ones, which another block holds. The
    axes along which a gradient is partial are data_axes (dp, cp, edp) or other_axes. gathered: elements while in use;
    None if they are those stored. row: elements of one row: of the contracted dims of a matmul's weight, else of all
    but the first dim. matrix: a weight of a matmul that has two dims or more besides experts.
    """
    result = []
    for weight in op.weights:
        if weight.shared:
            continue
        layout, summed = weight_layout(op, weight, scheme)
        expert, dims = d.EXPERTS in weight.dims, tuple(dim for dim in weight.dims if dim != d.EXPERTS)
        # One row: what a matmul contracts, else all but the first dim.
        across = tuple(dim for dim in dims if dim in op.contracted) if op.work is Work.MATMUL else dims[1:]
        split = Layout(tuple((axis, place) for axis, place in layout.places if place in across))
        stored = Sharding().layouts(layout, summed, over_gtp=is_over_gtp(op, weight, scheme))
        data = tuple(axis for axis in summed if axis in ("dp", "cp", "edp"))
        result.append(
            WeightShard(
                name=weight.name,
                elements=d.local(d.elements(weight.dims) / stored.stored.parts()),
                gathered=d.local(d.elements(weight.dims) / layout.parts()) if stored.stored != layout else None,
                whole=d.elements(weight.dims),
                frozen=weight.frozen,
                quantised=weight.quantised,
                expert=expert,
                data_axes=data,
                other_axes=tuple(axis for axis in stored.between.partial if axis not in data),
                row=d.local(d.elements(across) / split.parts()),
                table=weight.table,
                joined=weight.joined,
                matrix=op.work is Work.MATMUL and len({*dims}) > 1,
            )
        )
    return result


def weight_layout(op: Operator, weight: Weight, scheme: Scheme) -> tuple[Layout, tuple[str, ...]]:
    """Return (layout of a weight on one rank, axes along which its gradient is partial) for the axes that split `op`.
    An axis other than cp that splits a dim of the weight splits the weight there. Along any other axis the gradient is
    partial, unless the axis splits only contracted loops and leaves the output replicated after the reduction: the bias
    of a row-parallel layer. With weight shards it is partial along GTP where it is along dp.
    """
    places, summed = {}, []
    for axis, splits in scheme.assign(op).items():
        mine = [dim for dim in splits if dim in weight.dims]
        # Every context-parallel rank holds the weights of all heads, and uses those of its own.
        if mine and axis != "cp":
            places[axis] = mine[0]
        elif not set(splits) <= set(op.contracted) or _elementwise_layout(op.outputs[0].tensor, scheme).where(axis):
            summed.append(axis)
        # else a bias of a contracted matmul: it is added after the reduction, so that every rank has its whole gradient
    if scheme.weight_shards and "dp" in summed:
        summed.append(GTP)  # its ranks are some of the data-parallel ones
    return Layout.of(places), tuple(summed)
