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
        """Return the dims that ids have beside the batch."""
        if d.SEQUENCE in self.program.sizes:
            return frozenset({d.SEQUENCE})
        inputs = (self.program.tensors[name].dims for name in self.program.inputs)
        pairs = (set(dims) for dims in inputs if len(dims) == 2)
        return frozenset().union(*(dims - self.program.batch for dims in pairs if dims & self.program.batch))

    @cached_property
    def experts(self) -> frozenset[str]:
        """Return dims along which a product has a weight, an activation and a result of its own at each place."""
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
        """Return what tensor parallelism splits outside and inside the experts: by the names that descriptors give
        them, else by structure. A program without a sequence has no Transformer's columns and rows.
        """
        sizes = frozenset(self.program.sizes)
        if {d.SEQUENCE, d.HIDDEN} <= sizes:
            return Widths(sizes & frozenset(parts().tensor_dims), sizes & frozenset(d.EXPERT_TENSOR_DIMS))
        if not self.sequence:
            return Widths(frozenset(), frozenset())
        return widths(self.program, self.experts, self.program.batch | self.sequence)

    @cached_property
    def exchanged(self) -> frozenset[str]:
        """Return what context parallelism splits in the sequence's place, where an operator needs all of that."""
        named = {d.SEQUENCE, d.HIDDEN} <= self.program.sizes.keys()
        return frozenset(parts().exchanged_dims) if named else self.widths.outside

    def inside(self, op: Operator) -> bool:
        """Tell whether the operator works on what experts have received: all its activations have their dim."""
        moving = [x.tensor for x in (*op.inputs, *op.outputs) if x.name not in self.weights]
        return bool(self.experts) and all(self.experts & set(tensor.dims) for tensor in moving)

    @cached_property
    def within(self) -> tuple[bool, ...]:
        """Tell for each node whether it is inside the experts; of a parameter, whether its readers are."""
        known = {index: self.inside(node.operator) for index, node in enumerate(self.net.nodes) if node.operator}
        for index, node in enumerate(self.net.nodes):
            if node.parameter is not None:
                known[index] = bool(self.experts & set(node.parameter.tensor.dims))
        return tuple(known.get(index, False) for index in range(len(self.net.nodes)))

    def wish(self, index: int, arrivals: Sequence[Arrival], dense: Role, expert: Role) -> Iterator[int]:
        """Yield the options of an operator in order of preference, along an axis with these roles outside and inside
        experts.
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
        """Return splits of the batch. Slots of experts count as such, but not where they lie with the sequence."""
        options = splitting(node, self.program.batch)
        return [o for o in options if (split := node.options[o].split) and not self.sequence & set(split.loops)]

    def instead(self, node: Node) -> list[int]:
        """Return splits in the sequence's place, of an operator that has a sequence and needs all of it."""
        assert node.operator is not None
        whole = self.sequence & set(node.operator.loops) and not any(splitting(node, self.sequence))
        return list(splitting(node, self.exchanged)) if whole else []

    def heads(self, node: Node) -> list[int]:
        """Return what of an attention can be split beside examples, queries, keys and what it sums."""
        assert node.operator is not None
        other = self.program.batch | self.sequence | {d.KEYS, *node.operator.contracted}
        options = [o for o, what in enumerate(node.options) if what.split and not other & set(what.split.loops)]
        return sorted(options, key=lambda option: node.options[option].name not in (d.HEADS, d.KV_HEADS))

    def _along(self, node: Node, arrivals: Sequence[Arrival]) -> Iterator[int]:
        """Yield the split of the sequence; keys are seen by queries, so that the queries' own comes first."""
        yield from splitting(node, self.sequence)
        yield from self._follow(node, arrivals, self.sequence)

    def _follow(self, node: Node, arrivals: Sequence[Arrival], dims: frozenset[str]) -> Iterator[int]:
        """Yield options as inputs arrive, from the program's own on, which lie along `dims`. What experts send back
        does not lead.
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
    """Yield the options that split one of these loops, by itself or with others."""
    for option, what in enumerate(node.options):
        if what.split is not None and loops & set(what.split.loops):
            yield option


def attends(op: Operator) -> bool:
    """Tell whether an operator's queries meet keys, which have a sequence of their own."""
    return op.work is Work.ATTENTION or d.KEYS in op.loops


@dataclass(frozen=True, slots=True)
class Widths:
    """outside: of all ranks' weights. inside: of those that experts have one each of."""

    outside: frozenset[str]
    inside: frozenset[str]


def widths(program: Program, experts: frozenset[str], never: frozenset[str]) -> Widths:
    """Return the widths. never: dims that are none, as the batch and the sequence."""
    weighted = list(_weighted(program))
    stream = _stream(weighted)
    if stream is None:
        return Widths(frozenset(), frozenset())
    together = _together(program)
    apart = [(op, weight) for op, weight in weighted if not experts & set(weight.loops)]
    joined = [(op, weight) for op, weight in weighted if experts & set(weight.loops)]
    outside = _dims_made_and_summed(apart, stream, together) | _ends(program, apart, stream)
    # Experts behind a projection read a stream of their own.
    narrow = next((loop for op, weight in joined for loop in weight.loops if loop in op.contracted), stream)
    inside = _dims_made_and_summed(joined, narrow, together)
    barred = {together[dim] for dim in (*never, *experts, stream, narrow)}

    def allowed(dims: Iterable[str]) -> frozenset[str]:
        roots = {together[dim] for dim in dims} - barred
        return frozenset(dim for dim in program.sizes if together[dim] in roots)

    return Widths(allowed(outside), allowed(inside) - allowed(outside))


def _weighted(program: Program) -> Iterator[tuple[Operator, Use]]:
    """Yield products with a weight, and look-ups of one by examples' ids: not by positions, which all of them share."""
    weights = {parameter.tensor.name for parameter in program.parameters}
    for op in program.operators:
        weight = next((operand for operand in op.inputs if operand.name in weights), None)
        if weight is None:
            continue
        looks_up = set(op.contracted) & set(weight.loops) and program.batch & set(op.loops)
        if op.work is Work.MATMUL or looks_up:
            yield op, weight


def _stream(weighted: Iterable[tuple[Operator, Use]]) -> str | None:
    counted = Counter(loop for _, weight in weighted for loop in weight.loops)
    return counted.most_common(1)[0][0] if counted else None


def _together(program: Program) -> dict[str, str]:
    """Return, for every dim, the first of those that are split with it."""
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


def _given(op: Operator, weight: Use) -> list[str]:
    """Return the dims that a product has from its weight alone."""
    moving = {loop for operand in op.inputs[:2] if operand.name != weight.name for loop in operand.loops}
    return [loop for loop in weight.loops if loop not in moving and loop not in op.contracted]


def _dims_made_and_summed(
    weighted: Iterable[tuple[Operator, Use]], stream: str, together: Mapping[str, str]
) -> set[str]:
    """Return the dims that one product makes and another sums away; of a head and its channels the head alone."""
    made: set[str] = set()
    summed: set[str] = set()
    for op, weight in weighted:
        given, gone = _given(op, weight), [loop for loop in weight.loops if loop in op.contracted][:1]
        product = op.work is Work.MATMUL
        made.update(together[dim] for dim in (given if product else gone))
        if stream in given:
            summed.update(together[dim] for dim in gone)
    return made & summed


def _ends(program: Program, weighted: Iterable[tuple[Operator, Use]], stream: str) -> set[str]:
    """Return dims made of the stream that are summed away beside something without a gradient, as a loss does with
    labels.
    """
    made = {dim for op, weight in weighted if stream in op.contracted for dim in _given(op, weight)[:1]}
    losses = (op for op in program.operators if op.work is Work.MEMORY and _has_constants(program, op))
    return {loop for op in losses for loop in op.contracted if loop in made}


def _has_constants(program: Program, op: Operator) -> bool:
    return any(not operand.tensor.gradient for operand in op.inputs)
