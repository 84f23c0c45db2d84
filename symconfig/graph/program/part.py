"""A stretch of a program as a program of its own: a stage of a pipeline, with what is sent to it and what it sends on.

Operators stand in an order in which each comes after what it reads, so that every prefix of it is a cut of the graph. A
tensor that is read further on than the next part goes through the parts between, too: each cut has what crosses it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace

from symconfig.graph.operator import Operator, Tensor, Use, Work
from symconfig.graph.program.build import Function, build, nothing
from symconfig.graph.program.fold import Signatures
from symconfig.graph.program.program import Parameter, Program


@dataclass
class Parts:
    """Stretches of a program's operators. made: of every activation the operator that makes it, last: that reads it
    last."""

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
