"""A block of the graph as operators of a program, but for names: what its repeats share.

What an axis may split follows from the operator alone, see `_splits`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from symconfig.graph import dims as d
from symconfig.graph import operator as g
from symconfig.graph.program.program import Operand, Operator, Split, Tensor, Work

_WORK = {
    g.OpKind.MATMUL: Work.MATMUL,
    g.OpKind.ATTENTION: Work.ATTENTION,
    g.OpKind.ELEMENTWISE: Work.MEMORY,
}


@dataclass(frozen=True, slots=True)
class Numbers:
    """sizes: of every dim. keys: that a query attends to, by symbol. along: loops along the dims of those weights that
    are not held as they are used."""

    sizes: Mapping[str, int]
    keys: Mapping[str, float]
    along: Mapping[str, tuple[str, ...]]

    def bytes(self, dims: Sequence[str], element: g.Element) -> float:
        return prod(self.sizes[dim] for dim in dims) * g.ELEMENT_BYTES[element]


@dataclass(frozen=True, slots=True)
class Step:
    """An operator without names. Operands are indices of the template's, tensors that it saves are local names."""

    op: g.Operator
    loops: tuple[str, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    residues: tuple[int, ...]
    saves: tuple[str, ...]
    splits: tuple[Split, ...]
    traffic: tuple[float, float]
    attended: float
    channels: float
    backward: bool

    def operator(self, prefix: str, names: Mapping[str, str], operands: Sequence[Operand]) -> Operator:
        """Make the operator of a step. prefix: of its block's names. names: of tensors. operands: of the template, in
        its order.
        """
        op = self.op
        own = names[op.weights[0].name].removesuffix(".weight") if op.weights else ""
        return Operator(
            name=prefix + op.name,
            work=_WORK[op.kind],
            loops=self.loops,
            inputs=tuple([operands[index] for index in self.inputs]),
            outputs=tuple([operands[index] for index in self.outputs]),
            splits=self.splits,
            contracted=op.contracted,
            saves=tuple([names[name] for name in self.saves]),
            residues=tuple([operands[index] for index in self.residues]),
            linear=op.linear and not op.weights,  # parts of a sum would have to be parts of the weight
            traffic=self.traffic,
            attended=self.attended,
            channels=self.channels,
            backward=self.backward,
            path=own or joined(prefix, op.part, "").rstrip("."),
        )


@dataclass(slots=True)
class Template:
    """A block for given gradients of its inputs. operands: (tensor's local name, loops). weights: with their parts."""

    steps: list[Step] = field(default_factory=list)
    operands: dict[tuple[str, tuple[str, ...]], int] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    weights: dict[str, tuple[g.Weight, str]] = field(default_factory=dict)

    def operand(self, name: str, loops: tuple[str, ...]) -> int:
        return self.operands.setdefault((name, loops), len(self.operands))

    def add(self, tensor: g.Tensor, flow: bool) -> None:
        gradient = flow and tensor.element is not g.Element.INDEX
        self.tensors[tensor.name] = Tensor(tensor.name, tensor.dims, g.ELEMENT_BYTES[tensor.element], gradient)

    @property
    def dims(self) -> set[str]:
        """Return the dims of its tensors, weights and loops."""
        tensors = {dim for tensor in self.tensors.values() for dim in tensor.dims}
        tensors |= {dim for weight, _ in self.weights.values() for dim in weight.dims}
        return tensors | {loop for step in self.steps for loop in step.loops}


def joined(prefix: str, part: str, name: str) -> str:
    return f"{prefix}{part}.{name}" if part else f"{prefix}{name}"


def template(block: g.Block, flows: Sequence[bool], numbers: Numbers) -> Template:
    """Make the template of a block. flows: for each of the block's inputs, whether something flows back into it."""
    result = Template()
    for tensor, flow in zip(block.inputs, flows, strict=True):
        result.add(tensor, flow)
    read = {use.tensor.name for op in block.operators for use in op.inputs}
    for op in block.operators:
        result.steps.append(_step(result, op, read, numbers))
    return result


def _step(known: Template, op: g.Operator, read: set[str], numbers: Numbers) -> Step:
    """Make a step. What it makes beside its outputs and keeps is another output if someone reads it, else a residue."""
    flows = [known.tensors[use.tensor.name].gradient and op.gradients is g.Gradients.ALL for use in op.inputs]
    backward = any(flows) or op.trainable
    for use in op.outputs:
        known.add(use.tensor, backward)
    kept = _kept(op, flows)
    made = [tensor for tensor in kept if tensor.name not in known.tensors]
    for tensor in made:
        if backward or tensor.name in read:
            known.add(tensor, False)
    outputs = [*op.outputs, *(g.Use(tensor) for tensor in made if tensor.name in read)]
    residues = [g.Use(tensor) for tensor in made if tensor.name not in read and backward]
    uses = (*op.inputs, *outputs, *residues)
    for weight in op.weights:
        known.weights[weight.name] = (weight, op.part)
    weights = {weight.name: numbers.along.get(weight.name, weight.dims) for weight in op.weights}
    mine = {use.tensor.name for use in uses}
    saves = [tensor.name for tensor in kept if tensor.name in mine]
    saves += [weight.name for weight in op.weights[:1] if any(flows) and op.kind is g.OpKind.MATMUL]
    splits = tuple(_splits(op, numbers.sizes))
    nest = (
        *op.loops,
        *(loop for use in uses for loop in use.dims()),
        *(loop for split in splits for loop in split.loops),
    )
    return Step(
        op=op,
        loops=tuple(dict.fromkeys(nest)),
        inputs=(*(known.operand(use.tensor.name, use.dims()) for use in op.inputs),
         *(known.operand(name, along) for name, along in weights.items())),
        outputs=tuple(known.operand(use.tensor.name, use.dims()) for use in outputs),
        residues=tuple(known.operand(use.tensor.name, use.dims()) for use in residues),
        saves=tuple(saves) if backward else (),
        splits=splits,
        traffic=_traffic(op, numbers),
        attended=numbers.keys[op.keys] if op.keys else 0.0,
        channels=_channels(op, numbers),
        backward=backward,
    )  # fmt: skip


def _kept(op: g.Operator, flows: Sequence[bool]) -> tuple[g.Tensor, ...]:
    """Return what the backward needs: of a product of two activations each one for the other's gradient."""
    if op.kind is not g.OpKind.MATMUL or len(op.inputs) == 1:
        return tuple(dict.fromkeys(op.needed()))
    return tuple(use.tensor for use, other in zip(op.inputs, flows[::-1], strict=True) if other)


def _splits(op: g.Operator, sizes: Mapping[str, int]) -> Iterator[Split]:
    """Yield the splits. A product splits along each of its loops, with the pieces that its operands are of them (heads
    of a fused width) or share along them (key/value heads). Any other operator splits along the loops of its
    activations and along those that it sums over, but for what stays whole or goes together; rows of a weight that it
    picks by position do not.
    """
    if op.kind is g.OpKind.MATMUL:
        pieces: dict[str, list[str]] = {}
        for use in (*op.inputs, *op.outputs):
            for theirs, ours in use.names:
                if sizes[theirs] != sizes[ours]:
                    pieces.setdefault(ours, []).append(theirs)
        for loop in op.loops:
            yield Split((loop, *dict.fromkeys(pieces.get(loop, ()))))
        return
    groups = list(op.together)
    bound = {loop for group in groups for loop in group}
    along = {loop for use in (*op.inputs, *op.outputs) for loop in use.dims()} | set(op.contracted)
    sums = dict(op.reduces)
    for loop in op.loops:
        if loop in bound:
            yield from (Split(group) for group in groups if loop in group)
            groups = [group for group in groups if loop not in group]
        elif loop in along and loop not in op.whole:
            yield Split((loop,), sums.get(loop, 0))


def _channels(op: g.Operator, numbers: Numbers) -> float:
    """Return the channels of q k' and of p v."""
    if op.kind is not g.OpKind.ATTENTION:
        return 0.0
    return float(sum(numbers.sizes[op.inputs[position].tensor.dims[-1]] for position in (0, 2)))


def _traffic(op: g.Operator, numbers: Numbers) -> tuple[float, float]:
    """Return the traffic beside activations, which alone the graph counts. Of a weight an operator reads no more than
    it writes: a table's rows.
    """
    forward, backward = (float(times) for times in op.traffic)
    weights = sum(numbers.bytes(weight.dims, g.Element.ACTIVATION) for weight in op.weights)
    moved = sum(numbers.bytes(use.tensor.dims, use.tensor.element) for use in (*op.inputs, *op.outputs))
    written = sum(numbers.bytes(use.tensor.dims, use.tensor.element) for use in op.outputs)
    if op.sorts:
        slots = next(use for use in (*op.inputs, *op.outputs) if d.SLOTS in use.tensor.dims)
        more = op.sorts * numbers.bytes(slots.tensor.dims, slots.tensor.element) / moved
        return forward + more, backward + more
    between = [
        sum(each.passes[way] * numbers.bytes(each.tensor.dims, each.tensor.element) for each in op.scratch) / moved
        for way in (0, 1)
    ]
    forward, backward = forward + between[0], backward + between[1]
    if op.kind is not g.OpKind.ELEMENTWISE or weights <= written:
        return forward, backward
    return forward * (moved + written) / (moved + weights), backward
