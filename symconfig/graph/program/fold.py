"""Repeated parts of a program, found from its structure alone: no names, no paths, no names of dims.

Operators of one class are alike in all that a cost may depend on, so that the cost of a strategy that is the same for
all of a class is that of the classes and of the links between them, each as often as it occurs: exactly, whatever the
classes. What is a class decides only how much freedom is left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace

from symconfig.graph.operator import Operator, Tensor, Use, Work
from symconfig.graph.program.build import Function, build, nothing
from symconfig.graph.program.program import Parameter, Program
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
    """Numbers for the structures of a program's operators. An operator whose parts, names included, were seen before is
    not worked out again.
    """

    program: Program
    origins: dict[str, Origin] = field(init=False)
    known: dict[Hashable, int] = field(default_factory=dict)
    numbers: dict[Hashable, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.origins = origins(self.program)

    def number(self, op: Operator) -> int:
        """Return the number of an operator's structure: operators of equal structure share it, no others do."""
        written = self._written(op)
        number = self.known.get(written)
        if number is None:
            exact = structure(self.program, op, self.origins)
            number = self.known[written] = self.numbers.setdefault(exact, len(self.numbers))
        return number

    def _written(self, op: Operator) -> Hashable:
        """Return a key of an operator as it is written, which is cheap: equal ones, equal structures. `splits` count
        by identity, since the program keeps them alive.
        """
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
    """Return all of an operator that any cost may depend on, without names: its loops and tensors are numbered in the
    order in which its operands have them.
    """
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
    """A program with the classes of its operators. of: for each operator its class. operators: for each class its first
    operator. runs: the repeats.
    """

    program: Program
    of: tuple[int, ...]
    operators: tuple[int, ...]
    runs: tuple[Run, ...]


def fold(program: Program) -> Folding:
    """Return the classes of a program's operators, those at the same place of a repeat being one."""
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


@dataclass
class Parts:
    """A program cut into stretches of operators, such as the stages of a pipeline.

    Each operator comes after what it reads, so that every prefix of the operators is a cut of the graph. A tensor that
    is read further on than the next stretch goes through those between, too. made: of every activation the operator
    that makes it; last: that reads it last.
    """

    program: Program
    made: dict[str, int] = field(init=False)
    last: dict[str, int] = field(init=False)
    uses: dict[str, tuple[int, int]] = field(init=False)  # of every parameter the first and the last operator

    def __post_init__(self) -> None:
        operators = self.program.operators
        self.made = {operand.name: index for index, op in enumerate(operators) for operand in op.outputs}
        self.last = {operand.name: index for index, op in enumerate(operators) for operand in op.inputs}
        names = {parameter.tensor.name for parameter in self.program.parameters}
        self.uses = {}
        for index, op in enumerate(operators):
            for operand in op.inputs:
                if operand.name in names:
                    self.uses[operand.name] = self.uses.get(operand.name, (index, index))[0], index
        signatures = Signatures(self.program)
        self._kinds = [signatures.number(op) for op in operators]

    def crossing(self, cut: int) -> list[str]:
        """Return the activations that are made before a cut and read behind it."""
        return [name for name, index in self.made.items() if index < cut <= self.last.get(name, -1)]

    def shared(self, start: int, stop: int) -> list[Parameter]:
        """Return the trained parameters that operators read inside a stretch and outside of it, too."""
        among = [parameter for parameter in self._read(start, stop) if parameter.trainable]
        ends = [self.uses[parameter.tensor.name] for parameter in among]
        return [parameter for parameter, (a, b) in zip(among, ends, strict=True) if a < start or b >= stop]

    def program_of(self, start: int, stop: int) -> Program:
        """Return a stretch as a program: it receives what crosses its first cut and sends what crosses its last."""
        whole, inside = self.program, self.program.operators[start:stop]
        tensors = dict(whole.tensors)
        received = [self._passed(name, Work.RECEIVE, tensors) for name in self.crossing(start)]
        sent = [self._passed(name, Work.SEND, tensors) for name in self.crossing(stop)]
        read = {operand.name for op in inside for operand in op.inputs}
        made = {operand.name for op in inside for operand in op.outputs}
        return replace(
            whole,
            name=f"{whole.name}, operators {start + 1} to {stop}"
            if (start, stop) != (0, len(whole.operators))
            else whole.name,
            tensors=tensors,
            inputs=(*(name for name in whole.inputs if name in read), *(op.inputs[0].name for op in received)),
            parameters=tuple(self._read(start, stop)),
            operators=(*received, *inside, *sent),
            outputs=(*(name for name in whole.outputs if name in made), *(op.outputs[0].name for op in sent)),
        )

    def key(self, start: int, stop: int) -> Hashable:
        """Return what two stretches have in common only where they are alike in all but names."""
        numbers: dict[str, int] = {}
        inside = zip(self.program.operators[start:stop], self._kinds[start:stop], strict=True)
        rows = tuple(
            (kind, *(numbers.setdefault(o.name, len(numbers)) for o in (*op.inputs, *op.outputs)))
            for op, kind in inside
        )
        ends = []
        for cut in (start, stop):
            every = [self.program.tensors[name] for name in self.crossing(cut)]
            shapes = [(tuple(self.program.sizes[dim] for dim in t.dims), t.element_bytes, t.gradient) for t in every]
            ends.append(tuple(zip((numbers.setdefault(t.name, len(numbers)) for t in every), shapes, strict=True)))
        shared = tuple(numbers[parameter.tensor.name] for parameter in self.shared(start, stop))
        return rows, tuple(ends), shared

    def _read(self, start: int, stop: int) -> Sequence[Parameter]:
        read = {operand.name for op in self.program.operators[start:stop] for operand in op.inputs}
        return [parameter for parameter in self.program.parameters if parameter.tensor.name in read]

    def _passed(self, name: str, work: Work, tensors: dict[str, Tensor]) -> Operator:
        """Receive a tensor, or send it. What is under way is added to the tensors."""
        tensor = self.program.tensors[name]
        way = replace(tensor, name=f"{name}, {'received' if work is Work.RECEIVE else 'sent'}")
        tensors[way.name] = way
        ends = (way, tensor) if work is Work.RECEIVE else (tensor, way)
        return build(Function(nothing, work=work), f"{work} {name}", [Use(ends[0])], [Use(ends[1])])


def gradient_elements(parameters: Sequence[Parameter], program: Program) -> float:
    """Return how many numbers the gradients of parameters have."""
    return float(sum(parameter.tensor.elements(program.sizes) for parameter in parameters))
