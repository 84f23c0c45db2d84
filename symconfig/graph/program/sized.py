"""A program in several sizes, as of several batches: folded once, and every other size read off that.

What is a class follows from structures and from which tensors cross from one instance of a repeat into the next
(`symconfig.graph.program.fold`). Where another size leaves both as they are, so are the classes and the network.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from symconfig.graph.operator import Operator
from symconfig.graph.program.fold import Folding, fold
from symconfig.graph.program.net import Net, net, resized
from symconfig.graph.program.program import Program
from symconfig.graph.program.repeats import Crossing
from symconfig.graph.program.signature import Signatures, origins, structure


@dataclass(slots=True)
class Sized:
    """The folded networks of programs that differ in sizes. first: the one that was folded from scratch."""

    first: _Folded | None = None
    made: list[tuple[Program, Net]] = field(default_factory=list)

    def net(self, program: Program) -> Net:
        """Return the network of a program with every repeat once. The same program has the same network."""
        for known, its in self.made:
            if known is program:
                return its
        self.made.append((program, self._net(program)))
        return self.made[-1][1]

    def _net(self, program: Program) -> Net:
        if self.first is not None and self.first.holds(program):
            return resized(self.first.net, program)
        folding = fold(program)
        made = net(folding.program, folding.of, folding.runs)
        if self.first is None:
            self.first = _Folded(folding, made)
        return made


class _Folded:
    """A folding, and what of it another size may change. groups: operators that are written alike, by number."""

    def __init__(self, folding: Folding, made: Net) -> None:
        self.folding, self.net, program = folding, made, folding.program
        self.groups = folding.groups
        self.firsts = list({group: index for index, group in reversed(list(enumerate(self.groups)))}.values())[::-1]
        self.kinds = self._kinds(program)
        self.crossing = Crossing(program)
        self.ranks = _ranks(self.crossing.bytes(program))

    def holds(self, program: Program) -> bool:
        """Tell whether the folding is that of a program, too. False where that is not plain."""
        old = self.folding.program
        if program.tensors is not old.tensors or len(program.operators) != len(old.operators):
            return False
        alike = (program.inputs, program.outputs, program.batch) == (old.inputs, old.outputs, old.batch)
        parameters = len(program.parameters) == len(old.parameters) and all(
            mine is theirs for mine, theirs in zip(program.parameters, old.parameters, strict=True)
        )
        if not (alike and parameters and self._written_alike(program)):
            return False
        return self._kinds(program) == self.kinds and bool((_ranks(self.crossing.bytes(program)) == self.ranks).all())

    def _written_alike(self, program: Program) -> bool:
        """Tell whether operators that were written alike still are, and read and make what they did."""
        old, signatures = self.folding.program.operators, Signatures(program)
        written: dict[int, set[Hashable]] = {}
        changed = [index for index, op in enumerate(program.operators) if op is not old[index]]
        for index in changed:
            if _ends(program.operators[index]) != _ends(old[index]):
                return False
            written.setdefault(self.groups[index], set()).add(signatures.written(program.operators[index]))
        others = {group for group, op, was in zip(self.groups, program.operators, old, strict=True) if op is was}
        return all(len(texts) == 1 and group not in others for group, texts in written.items())

    def _kinds(self, program: Program) -> list[int]:
        """Return the number of the structure of each group."""
        origin, numbers = origins(program), dict[Hashable, int]()
        structures = [structure(program, program.operators[index], origin) for index in self.firsts]
        return [numbers.setdefault(one, len(numbers)) for one in structures]


def _ends(op: Operator) -> Sequence[object]:
    return op.inputs, op.outputs


def _ranks(values: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.unique(values, return_inverse=True)[1]
