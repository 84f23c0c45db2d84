"""Repeated parts of a program, found from its structure alone: no names, no paths, no names of dims.

Operators of one class are alike in all that a cost may depend on, so that the cost of a strategy that is the same for
all of a class is that of the classes and of the links between them, each as often as it occurs: exactly, whatever the
classes. What is a class decides only how much freedom is left.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from symconfig.graph.operator import Operator
from symconfig.graph.program.program import Program
from symconfig.graph.program.repeats import Chain, Run, runs
from symconfig.graph.program.signature import Signatures, origins, structure

Choice = TypeVar("Choice")


@dataclass(frozen=True, slots=True)
class Folding:
    """program: the one that was folded; its operators may stand in another order than they were given in.

    of: for each of its operators the class; parameters: for each of its parameters, likewise. operators: for each class
    the first operator of it. groups: for each operator a number that those share which are written alike.
    """

    program: Program
    of: tuple[int, ...]
    parameters: tuple[int, ...]
    operators: tuple[int, ...]
    runs: tuple[Run, ...]
    groups: tuple[int, ...]

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
    groups = tuple([signatures.group(op) for op in program.operators])
    repeats = runs(Chain.of(program, [signatures.of_group[group] for group in groups]))
    first = list(range(len(program.operators)))
    for run in repeats:
        for index in range(run.start + run.period, run.end):
            first[index] = first[index - run.period]
    operators = tuple(dict.fromkeys(first))
    number = {index: position for position, index in enumerate(operators)}
    of = tuple(number[index] for index in first)
    return Folding(program, of, _parameters(program, of), operators, repeats, groups)


def _parameters(program: Program, of: Sequence[int]) -> tuple[int, ...]:
    """Tell which parameters are alike: used alike, by operators of the same classes in the same places."""
    uses: dict[str, list[tuple[int, int]]] = {parameter.tensor.name: [] for parameter in program.parameters}
    for index, op in enumerate(program.operators):
        for place, operand in enumerate(op.inputs):
            if operand.name in uses:
                uses[operand.name].append((of[index], place))
    numbers: dict[object, int] = {}
    return tuple(numbers.setdefault(tuple(sorted(use)) or name, len(numbers)) for name, use in uses.items())


def expand(folding: Folding, choice: Sequence[Choice]) -> tuple[Choice, ...]:
    """Return, for every operator of `folding.program`, what was chosen for its class."""
    return tuple(choice[kind] for kind in folding.of)


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


def validate(program: Program, folding: Folding) -> None:
    """Prove a folding on the whole program, not by how it came about.

    Every operator has the structure of its class's first one, and every class is one place in the instances of one run,
    or one operator. In each place of its inputs it reads from the same class as its likes in other instances; those of
    the first instance may read from before the run. Parameters of a class have equal sizes. Raises AssertionError: then
    the folding is wrong, not the program.
    """
    origin = origins(program)
    operators = folding.program.operators
    assert {op.name: op for op in program.operators} == {op.name: op for op in operators}, "it folds another program"
    like = [structure(program, operators[index], origin) for index in folding.operators]
    made: dict[str, tuple[int, int]] = {}
    places: dict[int, tuple[int, int]] = {}
    links: dict[int, list[tuple[int, int] | None]] = {}
    for index, (op, kind) in enumerate(zip(operators, folding.of, strict=True)):
        assert structure(program, op, origin) == like[kind], f"{op.name} is not like its class"
        instance, place = _place(folding.runs, index)
        assert places.setdefault(kind, place) == place, f"{op.name} has another place than its class"
        if instance > 0:
            read = [made.get(operand.name) for operand in op.inputs]
            assert links.setdefault(kind, read) == read, f"{op.name} reads from other classes than its likes"
        for port, operand in enumerate(op.outputs):
            made[operand.name] = (kind, port)
    sizes: dict[int, tuple[int, ...]] = {}
    for parameter, kind in zip(program.parameters, folding.parameters, strict=True):
        mine = (*(program.sizes[dim] for dim in parameter.tensor.dims), int(parameter.trainable))
        assert sizes.setdefault(kind, mine) == mine, f"{parameter.tensor.name} is not like its class"


def _place(runs: Sequence[Run], index: int) -> tuple[int, tuple[int, int]]:
    """Return the instance of a run of an operator, and which run and where in it; outside of all its own index."""
    for number, run in enumerate(runs):
        if run.start <= index < run.end:
            instance, offset = divmod(index - run.start, run.period)
            return instance, (number, offset)
    return 0, (-1, index)
