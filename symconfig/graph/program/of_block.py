"""A block of the graph as operators of a program, by local names: what its repeats share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from symconfig.graph import dims as d
from symconfig.graph.block import Block
from symconfig.graph.flows import flowing, silenced
from symconfig.graph.operator import Operator, Split, Tensor, Use, Weight, Work, loops_of


@dataclass(frozen=True, slots=True)
class Numbers:
    """sizes: of every dim. keys: that a query attends to, by symbol. along: loops along the dims of those weights that
    are not held as they are used."""

    sizes: Mapping[str, int]
    keys: Mapping[str, float]
    along: Mapping[str, tuple[str, ...]]

    def bytes(self, tensors: Iterable[Tensor]) -> float:
        return sum(tensor.bytes(self.sizes) for tensor in tensors)


@dataclass(slots=True)
class Template:
    """A block for given gradients of its inputs. tensors: activations. weights: with their parts. The path of an
    operator is the part that it is written in.
    """

    operators: list[Operator] = field(default_factory=list)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    weights: dict[str, tuple[Weight, str]] = field(default_factory=dict)

    def add(self, tensor: Tensor) -> None:
        self.tensors[tensor.name] = Tensor(tensor.name, tensor.dims, tensor.element_bytes, tensor.gradient)

    @property
    def dims(self) -> set[str]:
        """Return the dims of its tensors, weights and loops."""
        tensors = {dim for tensor in self.tensors.values() for dim in tensor.dims}
        tensors |= {dim for weight, _ in self.weights.values() for dim in weight.dims}
        return tensors | {loop for op in self.operators for loop in op.loops}

    def placed(self, op: Operator, prefix: str, names: Mapping[str, str], tensors: Mapping[str, Tensor]) -> Operator:
        """Return an operator of the template as one of a program. prefix: of its block's names. names: of tensors in
        the program.
        """

        made: dict[int, Use] = {}  # what is read and kept is one

        def uses(some: Sequence[Use]) -> tuple[Use, ...]:
            for use in some:
                if id(use) not in made:
                    made[id(use)] = Use(tensors[names[use.tensor.name]], use.loops)
            return tuple([made[id(use)] for use in some])

        own = next((names[use.tensor.name] for use in op.inputs if use.tensor.name in self.weights), "")
        return replace(
            op,
            name=prefix + op.name,
            inputs=uses(op.inputs),
            outputs=uses(op.outputs),
            saves=uses(op.saves),
            holds=uses(op.holds),
            path=own.removesuffix(".weight") or joined(prefix, op.path, "").rstrip("."),
        )


def joined(prefix: str, part: str, name: str) -> str:
    return f"{prefix}{part}.{name}" if part else f"{prefix}{name}"


def template(block: Block, flows: Sequence[bool], numbers: Numbers) -> Template:
    """Make the template of a block. flows: for each of the block's inputs, whether something flows back into it."""
    result = Template()
    silent = {tensor.name for tensor, flow in zip(block.inputs, flows, strict=True) if not flow}
    for tensor in block.inputs:
        result.add(silenced(tensor, silent))
    read = {use.name for op in block.operators for use in op.activations}
    for op in flowing(block.operators, silent):
        result.operators.append(_operator(result, op, read, numbers))
    return result


def _operator(known: Template, op: Operator, read: set[str], numbers: Numbers) -> Operator:
    """Make an operator. What it makes beside its outputs and keeps is another output if someone reads it, else a
    residue.
    """
    inputs = tuple(Use(use.tensor, numbers.along.get(use.name, use.along)) for use in op.inputs)
    saves, holds, made = op.reads_back, op.holds if op.backward else (), []
    for use in op.outputs:
        known.add(use.tensor)
    for use in (*saves, *holds):
        if use.name not in known.tensors and not isinstance(use.tensor, Weight):
            known.add(replace(use.tensor, gradient=False))
            made.append(use)
    outputs = (*op.outputs, *(use for use in made if use.name in read))
    uses = {use.name: use for use in (*made, *inputs, *outputs)}
    for weight in op.weights:
        known.weights[weight.name] = (weight, op.path)
    saves, holds = (tuple(uses[use.name] for use in some if use.name in uses) for some in (saves, holds))
    splits = tuple(_pieces(op, numbers.sizes)) if op.work is Work.MATMUL else op.splits
    along = (loop for split in splits for loop in split.loops)
    nest = (*op.loops, *loops_of((*op.activations, *outputs, *saves, *holds)), *along)
    return replace(
        op,
        loops=tuple(dict.fromkeys(nest)),
        inputs=inputs,
        outputs=outputs,
        splits=splits,
        saves=saves,
        holds=holds,
        linear=op.linear and not op.weights,  # parts of a sum would have to be parts of the weight
        traffic=_traffic(op, numbers),
        attended=numbers.keys[op.keys] if op.keys else 0.0,
        channels=_channels(op, numbers),
    )


def _pieces(op: Operator, sizes: Mapping[str, int]) -> Iterator[Split]:
    """Yield the splits of a product: along each of its loops, with the pieces that its operands are of them (heads of a
    fused width) or share along them (key/value heads).
    """
    pieces: dict[str, list[str]] = {}
    for use in (*op.activations, *op.outputs):
        for dim, loop in zip(use.tensor.dims, use.loops, strict=True):
            if sizes[dim] != sizes[loop]:
                pieces.setdefault(loop, []).append(dim)
    for loop in op.loops:
        yield Split((loop, *dict.fromkeys(pieces.get(loop, ()))))


def _channels(op: Operator, numbers: Numbers) -> float:
    """Return the channels of q k' and of p v."""
    if op.work is not Work.ATTENTION:
        return 0.0
    return float(sum(numbers.sizes[dim] for dim in op.channels_of))


def _traffic(op: Operator, numbers: Numbers) -> tuple[float, float]:
    """Return the traffic beside activations, which alone the graph counts. Of a weight an operator reads no more than
    it writes: a table's rows.
    """
    forward, backward = (float(times) for times in op.traffic)
    weights = numbers.bytes(replace(weight, quantised=False) for weight in op.weights)
    written = numbers.bytes(use.tensor for use in op.outputs)
    moved = numbers.bytes(use.tensor for use in op.activations) + written
    if op.sorts:
        slots = next(use for use in (*op.activations, *op.outputs) if d.SLOTS in use.tensor.dims)
        more = op.sorts * slots.tensor.bytes(numbers.sizes) / moved
        return forward + more, backward + more
    between = [
        sum(each.passes[way] * each.tensor.bytes(numbers.sizes) for each in op.scratch) / moved for way in (0, 1)
    ]
    forward, backward = forward + between[0], backward + between[1]
    if op.work is not Work.MEMORY or weights <= written:
        return forward, backward
    return forward * (moved + written) / (moved + weights), backward
