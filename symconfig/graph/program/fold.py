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
    """Describe a tensor's role in the program. fed: an input of the program. ends: an output of the program. shared: a
    parameter or an input that is read more than once.
    """

    parameter: bool = False
    trainable: bool = False
    fed: bool = False
    ends: bool = False
    shared: bool = False


_MADE = Origin()


def origins(program: Program) -> dict[str, Origin]:
    """Return the origin of every input, output and parameter, by tensor name. Other tensors are absent."""
    uses = Counter(operand.name for op in program.operators for operand in op.inputs)
    result = {name: Origin(ends=True) for name in program.outputs}
    result |= {name: Origin(fed=True, ends=name in result, shared=uses[name] > 1) for name in program.inputs}
    for parameter in program.parameters:
        name = parameter.tensor.name
        result[name] = Origin(True, parameter.trainable, ends=name in result, shared=uses[name] > 1)
    return result


@dataclass(slots=True)
class Signatures:
    """Number the structures of a program's operators, caching the number by a cheap key that includes
    names and loops.
    """

    program: Program
    origins: dict[str, Origin] = field(init=False)
    known: dict[Hashable, int] = field(default_factory=dict)
    numbers: dict[Hashable, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.origins = origins(self.program)

    def number(self, op: Operator) -> int:
        """Return the number of an operator's structure, a new one for a new structure; equal numbers mean equal
        structure. Caches the result.
        """
        written = self._written(op)
        number = self.known.get(written)
        if number is None:
            exact = structure(self.program, op, self.origins)
            number = self.known[written] = self.numbers.setdefault(exact, len(self.numbers))
        return number

    def _written(self, op: Operator) -> Hashable:
        """Return a cheap cache key of an operator: equal keys imply equal structure, but not the reverse.

        `splits` are compared by identity, which is safe because the program keeps them alive.
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
    """Return everything about an operator that a cost may depend on, as a hashable without names: sizes, element bytes,
    gradients, origins, splits, saved tensors. Loops and tensors are numbered in the order of first occurrence in its
    operands.
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
    """Hold a program with the classes of its operators. of: for each operator its class. operators: for each class the
    index of its first operator. runs: the repeats.
    """

    program: Program
    of: tuple[int, ...]
    operators: tuple[int, ...]
    runs: tuple[Run, ...]


def fold(program: Program) -> Folding:
    """Find the repeats of a program and return it with the class of each operator.

    Operators at the same position of a run's instances share a class; an operator outside every run has a class of
    its own.
    """
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
    """Cut a program into ranges of operators, such as pipeline stages.

    Every operator comes after the operators whose results it reads, so that every prefix is a valid cut. A tensor
    that is read beyond the next range passes through the ranges in between. made: operator index that makes each
    activation; last: operator index that reads each tensor last.
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
        """Return the names of activations that operators before index `cut` make and operators from `cut` on read.
        Program inputs and parameters are not included.
        """
        return [name for name, index in self.made.items() if index < cut <= self.last.get(name, -1)]

    def shared(self, start: int, stop: int) -> list[Parameter]:
        """Return the trainable parameters that operators both inside [start, stop) and outside of it read."""
        among = [parameter for parameter in self._read(start, stop) if parameter.trainable]
        ends = [self.uses[parameter.tensor.name] for parameter in among]
        return [parameter for parameter, (a, b) in zip(among, ends, strict=True) if a < start or b >= stop]

    def program_of(self, start: int, stop: int) -> Program:
        """Return the operators [start, stop) as a program; `self.program` is unchanged.

        RECEIVE operators at its start take the activations that cross `start`, SEND operators at its end those that
        cross `stop`; these become inputs and outputs. The name gets the range of operators unless the range is the
        whole program.
        """
        whole, inside = self.program, self.program.operators[start:stop]
        tensors = dict(whole.tensors)
        received = [self._transfer(name, Work.RECEIVE, tensors) for name in self.crossing(start)]
        sent = [self._transfer(name, Work.SEND, tensors) for name in self.crossing(stop)]
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
        """Return a hashable key of the operators [start, stop): two ranges have equal keys only if they are equal but
        for names, including the tensors that cross both cuts and the shared parameters.
        """
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

    def _transfer(self, name: str, work: Work, tensors: dict[str, Tensor]) -> Operator:
        """Return an operator that receives or sends a tensor. The tensor in transit, named "NAME, received" or "NAME,
        sent", is added to `tensors`.
        """
        tensor = self.program.tensors[name]
        way = replace(tensor, name=f"{name}, {'received' if work is Work.RECEIVE else 'sent'}")
        tensors[way.name] = way
        ends = (way, tensor) if work is Work.RECEIVE else (tensor, way)
        return build(Function(nothing, work=work), f"{work} {name}", [Use(ends[0])], [Use(ends[1])])


def gradient_elements(parameters: Sequence[Parameter], program: Program) -> float:
    """Return the total number of elements of the parameters' gradients."""
    return float(sum(parameter.tensor.elements(program.sizes) for parameter in parameters))
