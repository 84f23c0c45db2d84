"""Repeated parts of a program, found from its structure alone: no names, no paths, no names of dims.

Operators of one class are alike in all that a cost may depend on, so that the cost of a strategy that is the same for
all of a class is that of the classes and of the links between them, each as often as it occurs: exactly, whatever the
classes. What is a class decides only how much freedom is left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from symconfig.graph.operator import Operator, Tensor, Use, Work
from symconfig.graph.program.build import Function, build, nothing
from symconfig.graph.program.program import Parameter, Program
from symconfig.graph.program.repeats import Chain, Run, runs


def structures(program: Program) -> list[int]:
    """Return a number for each operator, from 0 in order of first occurrence, equal for operators of equal `structure`.

    Tensors differ in their roles there: trainable parameter, frozen one or none; program output or not; input or
    parameter of the program or not and, if so, whether it is read more than once.
    """
    uses = Counter(operand.name for op in program.operators for operand in op.inputs)
    trainable = {parameter.tensor.name: parameter.trainable for parameter in program.parameters}
    given = {*program.inputs, *trainable}
    # of each tensor: whether it is trained (None: no parameter), an output, given, and given and read more than once
    roles = {
        name: (trainable.get(name), name in program.outputs, name in given, name in given and uses[name] > 1)
        for name in (*program.outputs, *given)
    }
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(structure(program, op, roles), len(numbers)) for op in program.operators]


def structure(program: Program, op: Operator, roles: Mapping[str, Hashable]) -> Hashable:
    """Return all that a cost may depend on, as a hashable without names: sizes, which dims count the batch, element
    bytes, gradients, `roles` in the program by tensor, splits, saved tensors, traffic. Loops and tensors are numbered
    in the order of first occurrence in the operands.
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
        """Return an operand without names: the numbers of its tensor and loops, its dims' sizes, and its role."""
        tensor = program.tensors[operand.name]
        return (
            tensors[operand.name],
            tuple(loops[loop] for loop in operand.loops),
            tuple((program.sizes[dim], dim in program.batch) for dim in tensor.dims),
            tensor.element_bytes,
            tensor.gradient,
            roles.get(operand.name),
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
    """Hold a program with the classes of its operators. of: for each operator its class, the index of the first one in
    it. runs: the repeats.
    """

    program: Program
    of: tuple[int, ...]
    runs: tuple[Run, ...]


def fold(program: Program) -> Folding:
    """Return a program with its repeats and the class of each operator, the index of the first operator in the class.

    Operators at the same position of a run's instances share a class; an operator outside every run has a class of its
    own. The program itself is unchanged.
    """
    repeats = runs(Chain.of(program, structures(program)))
    first = list(range(len(program.operators)))
    for run in repeats:
        for index in range(run.start + run.period, run.end):
            first[index] = first[index - run.period]
    return Folding(program, tuple(first), repeats)


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
        """Fill `made` and `last` (by tensor, the operator that makes it and the last one that reads it), `uses` (by
        parameter, the first and last reader), all as indices, and number the operators' structures.
        """
        operators = self.program.operators
        self.made = {operand.name: index for index, op in enumerate(operators) for operand in op.outputs}
        self.last = {operand.name: index for index, op in enumerate(operators) for operand in op.inputs}
        names = {parameter.tensor.name for parameter in self.program.parameters}
        self.uses = {}
        for index, op in enumerate(operators):
            for operand in op.inputs:
                if operand.name in names:
                    self.uses[operand.name] = self.uses.get(operand.name, (index, index))[0], index
        self._kinds = structures(self.program)

    def reordered(self, order: Sequence[int]) -> Parts:
        """Return the parts of the same program with its operators in another order that their tensors allow; its keys
        are comparable with these. order: operators' indices.
        """
        result = Parts(replace(self.program, operators=tuple(self.program.operators[index] for index in order)))
        result._kinds = [self._kinds[index] for index in order]
        return result

    def crossing(self, cut: int) -> list[str]:
        """Return the names of activations that operators before index `cut` make and operators from `cut` on read.
        Program inputs and parameters are not included.
        """
        return [name for name, index in self.made.items() if index < cut <= self.last.get(name, -1)]

    def shared(self, start: int, stop: int) -> list[Parameter]:
        """Return the trainable parameters that operators in [start, stop) and operators outside of it read, in program
        order.
        """
        among = [parameter for parameter in self._read(start, stop) if parameter.trainable]
        ends = [self.uses[parameter.tensor.name] for parameter in among]
        return [parameter for parameter, (a, b) in zip(among, ends, strict=True) if a < start or b >= stop]

    def program_of(self, start: int, stop: int) -> Program:
        """Return the operators [start, stop) as a program; `self.program` is unchanged.

        RECEIVE operators at its start take the activations that cross `start`, SEND operators at its end those that
        cross `stop` (also those that only pass through); these become inputs and outputs. Of the whole program's inputs
        and parameters those that are read stay, of its outputs those that are made; `tensors` and `sizes` keep all. The
        name gets the range of operators, counted from 1, unless it is the whole program.
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
        for names: structures, which operands are one tensor, the tensors that cross both cuts, and the parameters that
        operators outside read, too.
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
        """Return an operator, without computation, that receives or sends a tensor, and add the tensor in transit to
        `tensors`.

        It is named "NAME, received" or "NAME, sent"; RECEIVE reads it and makes the tensor, SEND reads the tensor and
        makes it.
        """
        tensor = self.program.tensors[name]
        way = replace(tensor, name=f"{name}, {'received' if work is Work.RECEIVE else 'sent'}")
        tensors[way.name] = way
        ends = (way, tensor) if work is Work.RECEIVE else (tensor, way)
        return build(Function(nothing, work=work), f"{work} {name}", [Use(ends[0])], [Use(ends[1])])


def gradient_elements(parameters: Sequence[Parameter], program: Program) -> float:
    """Return the total number of elements of the parameters' gradients."""
    return float(sum(parameter.tensor.elements(program.sizes) for parameter in parameters))
