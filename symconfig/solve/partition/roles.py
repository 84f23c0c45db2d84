"""What a mesh axis does at an operator under a strategy with a name: data, tensor, sequence or expert parallel.

A role is read off an operator's dims: the program's batch, the dims that ids have beside it, experts as those that a
product's weight and both its activations share, and the dims that Megatron's tensor parallelism splits, where the
program has the names of `graph.dims`. What a role does not say follows from how inputs arrive.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from symconfig.graph import dims as d
from symconfig.graph.operator import Operator, Use, Work
from symconfig.graph.parts import parts
from symconfig.graph.program.net import Net, Node
from symconfig.graph.program.program import Program
from symconfig.solve.partition.follow import Arrival, matching


class Role(StrEnum):
    """The role of an axis outside the experts, in Megatron's order, innermost first, and then inside them."""

    TP = "tp"
    TP_SP = "tp with sequence parallelism"
    CP = "cp"
    ULYSSES = "cp over heads"
    DP = "dp"
    ETP = "etp"
    EP = "ep"
    EDP = "edp"


@dataclass(frozen=True)
class Roles:
    """The dims of a program by what they mean for strategies with names."""

    net: Net

    @property
    def program(self) -> Program:
        return self.net.program

    @cached_property
    def weights(self) -> frozenset[str]:
        return frozenset(parameter.tensor.name for parameter in self.program.parameters)

    @cached_property
    def sequence(self) -> frozenset[str]:
        """Return the sequence dim by its standard name, else what two-dimensional inputs have beside the batch.

        Empty if the program has neither.
        """
        if d.SEQUENCE in self.program.sizes:
            return frozenset({d.SEQUENCE})
        inputs = (self.program.tensors[name].dims for name in self.program.inputs)
        pairs = (set(dims) for dims in inputs if len(dims) == 2)
        return frozenset().union(*(dims - self.program.batch for dims in pairs if dims & self.program.batch))

    @cached_property
    def experts(self) -> frozenset[str]:
        """Return the dims that a matmul's weight, activation and result share: expert dims of size over 1.

        Groups of a convolution do not count. Empty for a dense program.
        """
        dims: set[str] = set()
        for op in self.program.operators:
            if op.work is Work.MATMUL and len(op.inputs) >= 2:
                weight = next((set(x.loops) for x in op.inputs if x.name in self.weights), set())
                others = [set(x.loops) for x in (*op.inputs, *op.outputs) if x.name not in self.weights]
                if all(set(op.contracted) <= x for x in others[:1]):  # not the groups of a convolution
                    shared = weight.intersection(*others) if others else set()
                    dims |= {loop for loop in shared if self.program.sizes[loop] > 1}
        return frozenset(dims)

    @cached_property
    def widths(self) -> Widths:
        """Return the dims that tensor parallelism splits outside and inside the experts.

        By their standard names if the program has them, else by structure; empty without a sequence.
        """
        sizes = frozenset(self.program.sizes)
        if {d.SEQUENCE, d.HIDDEN} <= sizes:
            return Widths(sizes & frozenset(parts().tensor_dims), sizes & frozenset(d.EXPERT_TENSOR_DIMS))
        if not self.sequence:
            return Widths(frozenset(), frozenset())
        return widths(self.program, self.experts, self.program.batch | self.sequence)

    @cached_property
    def exchanged(self) -> frozenset[str]:
        """Return the dims, such as heads, that context parallelism splits at operators that need the whole sequence."""
        named = {d.SEQUENCE, d.HIDDEN} <= self.program.sizes.keys()
        return frozenset(parts().exchanged_dims) if named else self.widths.outside

    def inside(self, op: Operator) -> bool:
        """Return whether the operator is inside the experts: every activation has their dim. False without experts."""
        moving = [x.tensor for x in (*op.inputs, *op.outputs) if x.name not in self.weights]
        return bool(self.experts) and all(self.experts & set(tensor.dims) for tensor in moving)

    @cached_property
    def within(self) -> tuple[bool, ...]:
        """Return for each node whether it is inside the experts; a parameter is if it has their dim, a copy never."""
        known = {index: self.inside(node.operator) for index, node in enumerate(self.net.nodes) if node.operator}
        for index, node in enumerate(self.net.nodes):
            if node.parameter is not None:
                known[index] = bool(self.experts & set(node.parameter.tensor.dims))
        return tuple(known.get(index, False) for index in range(len(self.net.nodes)))

    def wish(self, index: int, arrivals: Sequence[Arrival], dense: Role, expert: Role) -> Iterator[int]:
        """Yield an operator's options in order of preference, given the axis's roles outside and inside the experts.

        Yields nothing if no option suits; then the operator is not split.
        """
        node = self.net.nodes[index]
        assert node.operator is not None
        role = expert if self.within[index] else dense
        if role is Role.DP:
            yield from self.examples(node)
            yield from self._follow(node, arrivals, self.program.batch)
        elif role in (Role.CP, Role.ULYSSES):
            if role is Role.ULYSSES and attends(node.operator):
                yield from self.heads(node)
            elif instead := self.instead(node):
                yield from instead
            else:
                yield from self._along(node, arrivals)
        elif role in (Role.TP, Role.TP_SP):
            split = list(splitting(node, self.widths.outside))
            yield from split
            gathers = {d.WHOLE_VOCAB, d.GATHERED} & set(node.operator.loops)
            if role is Role.TP_SP and not split and not gathers:
                yield from self._along(node, arrivals)
        elif role is Role.ETP:
            yield from splitting(node, self.widths.inside)
        elif role is Role.EP:
            yield from splitting(node, self.experts)
        else:
            yield from matching(node, arrivals)

    def examples(self, node: Node) -> list[int]:
        """Return the options that split the batch but not the sequence."""
        options = splitting(node, self.program.batch)
        return [o for o in options if (split := node.options[o].split) and not self.sequence & set(split.loops)]

    def instead(self, node: Node) -> list[int]:
        """Return the options that split heads or the like, at an operator that needs the whole sequence; else []."""
        assert node.operator is not None
        whole = self.sequence & set(node.operator.loops) and not any(splitting(node, self.sequence))
        return list(splitting(node, self.exchanged)) if whole else []

    def heads(self, node: Node) -> list[int]:
        """Return an attention's options that split neither batch, sequence, keys nor a summed dim; heads first."""
        assert node.operator is not None
        other = self.program.batch | self.sequence | {d.KEYS, *node.operator.contracted}
        options = [o for o, what in enumerate(node.options) if what.split and not other & set(what.split.loops)]
        return sorted(options, key=lambda option: node.options[option].name not in (d.HEADS, d.KV_HEADS))

    def _along(self, node: Node, arrivals: Sequence[Arrival]) -> Iterator[int]:
        """Yield the options that split the sequence, then those that follow how inputs are split along it."""
        yield from splitting(node, self.sequence)
        yield from self._follow(node, arrivals, self.sequence)

    def _follow(self, node: Node, arrivals: Sequence[Arrival], dims: frozenset[str]) -> Iterator[int]:
        """Yield options that keep inputs split as they arrive, including the program's own inputs, split along `dims`.

        Inputs with the experts' dim are ignored.
        """
        fed = [
            Arrival(port, self._position(node, port, dims)) for port in range(len(node.ports)) if self._fed(node, port)
        ]
        led = [arrival for arrival in arrivals if not self.experts & set(node.ports[arrival.port].tensor.dims)]
        yield from matching(node, [*fed, *led])

    def _fed(self, node: Node, port: int) -> bool:
        return not node.ports[port].output and node.ports[port].tensor.name in self.program.inputs

    def _position(self, node: Node, port: int, dims: frozenset[str]) -> int:
        return next((at for at, dim in enumerate(node.ports[port].tensor.dims) if dim in dims), -1)


def splitting(node: Node, loops: frozenset[str]) -> Iterator[int]:
    """Yield the indices of the node's options that split at least one of these loops."""
    for option, what in enumerate(node.options):
        if what.split is not None and loops & set(what.split.loops):
            yield option


def attends(op: Operator) -> bool:
    """Return whether the operator is attention: by its kind of work, or because it has a loop over keys."""
    return op.work is Work.ATTENTION or d.KEYS in op.loops


@dataclass(frozen=True, slots=True)
class Widths:
    """outside: of all ranks' weights. inside: of those that experts have one each of."""

    outside: frozenset[str]
    inside: frozenset[str]


def widths(program: Program, experts: frozenset[str], never: frozenset[str]) -> Widths:
    """Return the dims that tensor parallelism can split, found from the program's structure.

    never: dims that are no widths, such as the batch and the sequence. Both sets are empty without weighted products; a
    dim outside the experts is not repeated inside.
    """
    weighted = list(_weighted(program))
    stream = _hidden_dim(weighted)
    if stream is None:
        return Widths(frozenset(), frozenset())
    together = _split_groups(program)
    apart = [(op, weight) for op, weight in weighted if not experts & set(weight.loops)]
    joined = [(op, weight) for op, weight in weighted if experts & set(weight.loops)]
    outside = _dims_made_and_summed(apart, stream, together) | _loss_dims(program, apart, stream)
    # Experts behind a projection read a stream of their own.
    narrow = next((loop for op, weight in joined for loop in weight.loops if loop in op.contracted), stream)
    inside = _dims_made_and_summed(joined, narrow, together)
    barred = {together[dim] for dim in (*never, *experts, stream, narrow)}

    def allowed(dims: Iterable[str]) -> frozenset[str]:
        roots = {together[dim] for dim in dims} - barred
        return frozenset(dim for dim in program.sizes if together[dim] in roots)

    return Widths(allowed(outside), allowed(inside) - allowed(outside))


def _weighted(program: Program) -> Iterator[tuple[Operator, Use]]:
    """Yield (operator, weight) for matmuls with a weight and for embedding look-ups by token ids.

    Look-ups by position, which has no batch, are left out.
    """
    weights = {parameter.tensor.name for parameter in program.parameters}
    for op in program.operators:
        weight = next((operand for operand in op.inputs if operand.name in weights), None)
        if weight is None:
            continue
        looks_up = set(op.contracted) & set(weight.loops) and program.batch & set(op.loops)
        if op.work is Work.MATMUL or looks_up:
            yield op, weight


def _hidden_dim(weighted: Iterable[tuple[Operator, Use]]) -> str | None:
    counted = Counter(loop for _, weight in weighted for loop in weight.loops)
    return counted.most_common(1)[0][0] if counted else None


def _split_groups(program: Program) -> dict[str, str]:
    """Return for every dim the representative of the dims that are split together with it (union-find)."""
    first: dict[str, str] = {}

    def root(dim: str) -> str:
        while first.get(dim, dim) != dim:
            dim = first[dim]
        return dim

    for op in program.operators:
        for split in op.splits:
            for loop in split.loops[1:]:
                first[root(loop)] = root(split.loops[0])
    return {dim: root(dim) for dim in program.sizes}


def _output_dims(op: Operator, weight: Use) -> list[str]:
    """Return the dims of a product's result that come from its weight alone."""
    moving = {loop for operand in op.inputs[:2] if operand.name != weight.name for loop in operand.loops}
    return [loop for loop in weight.loops if loop not in moving and loop not in op.contracted]


def _dims_made_and_summed(
    weighted: Iterable[tuple[Operator, Use]], stream: str, together: Mapping[str, str]
) -> set[str]:
    """Return the dims that one product makes and another, which returns to the stream, sums over.

    Of several summed dims (heads and channels) only the first counts. Dims are given by their representatives.
    """
    made: set[str] = set()
    summed: set[str] = set()
    for op, weight in weighted:
        given, gone = _output_dims(op, weight), [loop for loop in weight.loops if loop in op.contracted][:1]
        product = op.work is Work.MATMUL
        made.update(together[dim] for dim in (given if product else gone))
        if stream in given:
            summed.update(together[dim] for dim in gone)
    return made & summed


def _loss_dims(program: Program, weighted: Iterable[tuple[Operator, Use]], stream: str) -> set[str]:
    """Return the dims, such as the vocabulary, that a product makes from the stream and a loss sums over.

    A loss is an operator without matmul that has an input without gradient, such as labels.
    """
    made = {dim for op, weight in weighted if stream in op.contracted for dim in _output_dims(op, weight)[:1]}
    losses = (op for op in program.operators if op.work is Work.MEMORY and _has_constants(program, op))
    return {loop for op in losses for loop in op.contracted if loop in made}


def _has_constants(program: Program, op: Operator) -> bool:
    return any(not operand.tensor.gradient for operand in op.inputs)
