"""Repeated parts of a program, found from its structure alone: no names, no paths, no names of dims.

Operators of one class are alike in all that a cost may depend on, so that the cost of a strategy that is the same for
all of a class is that of the classes and of the links between them, each as often as it occurs: exactly, whatever the
classes. What is a class decides only how much freedom is left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field, replace

from symconfig.graph.operator import Operator, Use
from symconfig.graph.program.program import Program
from symconfig.graph.program.repeats import Chain, Run, runs


@dataclass(frozen=True, slots=True)
class Origin:
    """A tensor's role in the program. shared: a parameter or an input that is read more than once."""

    parameter: bool = False
    trainable: bool = False
    fed: bool = False
    ends: bool = False
    shared: bool = False


_MADE = Origin()


def origins(program: Program) -> dict[str, Origin]:
    """Return the origin of every tensor that is not just made by one operator and read by others."""
    uses = Counter(operand.name for op in program.operators for operand in op.inputs)
    result = {name: Origin(ends=True) for name in program.outputs}
    result |= {name: Origin(fed=True, ends=name in result, shared=uses[name] > 1) for name in program.inputs}
    for parameter in program.parameters:
        name = parameter.tensor.name
        result[name] = Origin(True, parameter.trainable, ends=name in result, shared=uses[name] > 1)
    return result


@dataclass(slots=True)
class Signatures:
    """Numbers of structures. What was met before is recognised by its parts as they are, names included."""

    program: Program
    origins: dict[str, Origin] = field(init=False)
    known: dict[Hashable, int] = field(default_factory=dict)
    numbers: dict[Hashable, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.origins = origins(self.program)

    def number(self, op: Operator) -> int:
        """Return a number that only operators of equal structure share."""
        written = self._written(op)
        number = self.known.get(written)
        if number is None:
            exact = structure(self.program, op, self.origins)
            number = self.known[written] = self.numbers.setdefault(exact, len(self.numbers))
        return number

    def _written(self, op: Operator) -> Hashable:
        """Return the parts of an operator: equal ones have one structure. The program keeps `splits` alive."""
        tensors, origin = self.program.tensors, self.origins
        seen = []
        place: dict[str, int] = {}
        for operand in (*op.inputs, *op.outputs, *op.residues):
            name = operand.name
            tensor = tensors[name]
            first = place.setdefault(name, len(place))
            seen.append((operand.loops, tensor.dims, tensor.element_bytes, tensor.gradient, origin.get(name), first))
        numbers = (op.linear, op.traffic, op.attended, op.channels, op.backward, len(op.inputs), len(op.outputs))
        kept = tuple([place.get(name, -1) for name in op.saved])
        return op.work, op.loops, op.contracted, id(op.splits), numbers, kept, len(op.holds), tuple(seen)


def structure(program: Program, op: Operator, origin: dict[str, Origin]) -> Hashable:
    """Return all that any cost may depend on. Loops are numbered as its operands run along them."""
    operands = (*op.inputs, *op.outputs, *op.residues)
    loops: dict[str, int] = {}
    for name in (
        *(loop for operand in operands for loop in operand.loops),
        *(loop for split in op.splits for loop in split.loops),
        *op.loops,
    ):
        loops.setdefault(name, len(loops))
    tensors: dict[str, int] = {}
    for operand in operands:
        tensors.setdefault(operand.name, len(tensors))

    def seen(operand: Use) -> Hashable:
        tensor = program.tensors[operand.name]
        return (
            tensors[operand.name],
            tuple(loops[loop] for loop in operand.loops),
            tuple((program.sizes[dim], dim in program.batch) for dim in tensor.dims),
            tensor.element_bytes,
            tensor.gradient,
            origin.get(operand.name, _MADE),
        )

    return (
        op.work,
        tuple((program.sizes[loop], loop in program.batch, loop in op.loops) for loop in loops),
        tuple(map(seen, op.inputs)),
        tuple(map(seen, op.outputs)),
        tuple(map(seen, op.residues)),
        tuple((tuple(loops[loop] for loop in split.loops), split.sums, split.halo) for split in op.splits),
        frozenset(loops[loop] for loop in op.contracted),
        *(frozenset(tensors.get(use.name, -1) for use in some) for some in (op.saves, op.holds)),
        (op.linear, op.traffic, op.attended, op.channels, op.backward),
    )


@dataclass(frozen=True, slots=True)
class Folding:
    """program: the one that was folded; its operators may stand in another order than they were given in.

    of: for each of its operators the class. operators: for each class the first operator of it.
    """

    program: Program
    of: tuple[int, ...]
    operators: tuple[int, ...]
    runs: tuple[Run, ...]


def fold(program: Program) -> Folding:
    """Return the classes of a program. Where its order shows no repeat over most of it, an order is tried that depends
    on its structure only.
    """
    given = _folded(program)
    if len(given.of) >= 2 * len(given.operators):
        return given
    other = _folded(replace(program, operators=tuple(in_structural_order(program))))
    return other if len(other.operators) < len(given.operators) else given


def _folded(program: Program) -> Folding:
    signatures = Signatures(program)
    repeats = runs(Chain.of(program, [signatures.number(op) for op in program.operators]))
    first = list(range(len(program.operators)))
    for run in repeats:
        for index in range(run.start + run.period, run.end):
            first[index] = first[index - run.period]
    operators = tuple(dict.fromkeys(first))
    number = {index: position for position, index in enumerate(operators)}
    of = tuple(number[index] for index in first)
    return Folding(program, of, operators, repeats)


def in_structural_order(program: Program) -> Iterable[Operator]:
    """Yield the operators in an order that the order they were given in does not change: from what ends the program
    back, each after what it reads, in the order of its inputs.
    """
    makers = {operand.name: op for op in program.operators for operand in op.outputs}
    read = {operand.name for op in program.operators for operand in op.inputs}
    loose = (o.name for op in program.operators for o in op.outputs if o.name not in read)
    done: dict[str, Operator] = {}
    for name in (*program.outputs, *loose):
        waiting = [makers[name]] if name in makers else []
        while waiting:
            op = waiting[-1]
            ahead = [makers[o.name] for o in op.inputs if o.name in makers]
            missing = [maker for maker in ahead if maker.name not in done]
            if missing:
                waiting += missing[::-1]
            else:
                done.setdefault(waiting.pop().name, op)
    return done.values()
