"""Repeated parts of a program, found from its structure alone: no names, no paths, no names of dims.

Operators of one class are alike in all that a cost may depend on, so that the cost of a strategy that is the same for
all of a class is that of the classes and of the links between them, each as often as it occurs: exactly, whatever the
classes. What is a class decides only how much freedom is left.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from symconfig.graph.operator import Operator
from symconfig.graph.program.program import Program
from symconfig.graph.program.repeats import Chain, Run, runs
from symconfig.graph.program.signature import Signatures


@dataclass(frozen=True, slots=True)
class Folding:
    """program: the one that was folded; its operators may stand in another order than they were given in.

    of: for each of its operators the class. operators: for each class the first operator of it.
    """

    program: Program
    of: tuple[int, ...]
    operators: tuple[int, ...]
    runs: tuple[Run, ...]

    @property
    def folded(self) -> int:
        """Return the operators that the classes stand for beside themselves."""
        return len(self.of) - len(self.operators)


def fold(program: Program) -> Folding:
    """Return the classes of a program. Where its order shows no repeat over most of it, an order is tried that depends
    on its structure only.
    """
    given = _folded(program)
    if 2 * given.folded >= len(given.of):
        return given
    other = _folded(replace(program, operators=tuple(in_structural_order(program))))
    return other if other.folded > given.folded else given


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
