"""Repeated parts of a program, found from its structure alone: no names, no paths, no names of dims. They are pieces
that follow each other, alike in structure and in what they read from where.

Operators of one class are alike in all that a cost may depend on, so that the cost of a strategy that is the same for
all of a class is that of the classes and of the links between them, each as often as it occurs: exactly, whatever the
classes. What is a class decides only how much freedom is left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from symconfig.graph.operator import Operator, Use
from symconfig.graph.program.program import Program

Numbers = NDArray[np.int64]
_OCCURRENCES = 16  # how many of an operator's next likes may be its like in the next instance
_NOBODY = -1


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


class Run(NamedTuple):
    """`times` instances of `period` operators each, one after the other."""

    start: int
    period: int
    times: int

    @property
    def end(self) -> int:
        return self.start + self.period * self.times

    def __str__(self) -> str:
        return f"{self.times} x {self.period} operators"


@dataclass(frozen=True, slots=True)
class Chain:
    """Hold a program as arrays. kinds: [operators], equal for operators of equal structure.

    For every input, [operators, inputs]: tensors: the tensor's number; makers: the operator that made it, -1 for
    program inputs and parameters; distance: how many operators back that is, combined with the tensor's position
    there. A program input or parameter counts as made where it is first read, so that an instance's own parameters
    compare equal in every instance. crossing: see `crossing`.
    """

    kinds: Numbers
    tensors: Numbers
    makers: Numbers
    distance: Numbers
    crossing: NDArray[np.float64]

    @staticmethod
    def of(program: Program, kinds: Sequence[int]) -> Chain:
        """Return a program as arrays: of each operator its structure's number (`kinds`); of each input the tensor, its
        maker and its distance, [operators, most inputs]; and the bytes that cross. Absent inputs have tensor 0, maker
        -1 and distance 0.
        """
        width = max((len(op.inputs) for op in program.operators), default=0)
        shape = (len(program.operators), width)
        tensors, makers, distance = np.zeros(shape, np.int64), np.full(shape, _NOBODY), np.zeros(shape, np.int64)
        number: dict[str, int] = {}
        made: dict[str, tuple[int, int]] = {}
        stride = 1 + max((len(op.inputs) + len(op.outputs) for op in program.operators), default=0)
        for index, op in enumerate(program.operators):
            for place, operand in enumerate(op.inputs):
                name = operand.name
                tensors[index, place] = number.setdefault(name, len(number))
                if name in made:
                    maker, at = made[name]
                    makers[index, place] = maker if at < len(program.operators[maker].outputs) else _NOBODY
                else:
                    maker, at = made[name] = (index, len(op.outputs) + place)
                distance[index, place] = (index - maker) * stride + at
            for place, operand in enumerate(op.outputs):
                made[operand.name] = (index, place)
        return Chain(np.array(kinds, np.int64), tensors, makers, distance, crossing(program))

    def alike(self, low: int, high: int, period: int) -> NDArray[np.bool_]:
        """Return, for each operator in [low, high - period), whether the one a period later is alike: equal structure,
        and every input is the same tensor or made at the same distance.
        """
        here, there = slice(low, high - period), slice(low + period, high)
        inputs = (self.distance[here] == self.distance[there]) | (self.tensors[here] == self.tensors[there])
        same: NDArray[np.bool_] = (self.kinds[here] == self.kinds[there]) & inputs.all(axis=1)
        return same


def crossing(program: Program) -> NDArray[np.float64]:
    """Return the bytes of activations that operators before each index make and that are read there or later:
    [operators + 1].
    """
    last = {operand.name: index for index, op in enumerate(program.operators) for operand in op.inputs}
    change = np.zeros(len(program.operators) + 2)
    for index, op in enumerate(program.operators):
        for name in {operand.name for operand in op.outputs} & last.keys():
            amount = program.tensors[name].bytes(program.sizes)
            change[index + 1] += amount
            change[last[name] + 1] -= amount
    return np.asarray(change.cumsum()[:-1])


def runs(chain: Chain) -> tuple[Run, ...]:
    """Return the repeats of a program (first operator, operators per instance, instances) in order, without overlap:
    the one that covers most operators first, then recursively those on both sides of it. Empty if nothing repeats. Of
    equals, the one with the shortest period wins, then the earliest.
    """
    found: list[Run] = []
    left = [(0, len(chain.kinds))]
    while left:
        low, high = left.pop()
        best = max(_candidates(chain, low, high), key=lambda run: (run.end - run.start, -run.period), default=None)
        if best is not None:
            found.append(best)
            left += [(low, best.start), (best.end, high)]
    return tuple(sorted(found))


def _candidates(chain: Chain, low: int, high: int) -> Iterator[Run]:
    """Yield, for each period and each stretch of operators in [low, high) that repeat with it, the run of as many
    instances as fit that begins where the fewest bytes cross; none for a stretch where no such run is chained.
    """
    for period in _periods(chain.kinds[low:high]):
        for start, stop in _stretches(chain.alike(low, high, period), period):
            times, room = divmod(stop - start, period)
            firsts = sorted(range(low + start, low + start + room + 1), key=lambda at: (chain.crossing[at], at))
            starting = (Run(first, period, 1 + times) for first in firsts)
            yield from islice((run for run in starting if _instances_chained(chain, run)), 1)


def _periods(kinds: Numbers) -> list[int]:
    """Return, in ascending order, the distances between operators of equal structure that leave room for two instances.
    Only the next _OCCURRENCES equal operators of each are considered.
    """
    order = np.argsort(kinds, kind="stable")
    periods: set[int] = set()
    for further in range(1, _OCCURRENCES + 1):
        if further >= len(order):
            break
        pairs = kinds[order[further:]] == kinds[order[:-further]]
        periods.update(np.unique((order[further:] - order[:-further])[pairs]).tolist())
    return sorted(period for period in periods if 2 * period <= len(kinds))


def _stretches(same: NDArray[np.bool_], least: int) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) of each maximal run of true values with at least `least` entries."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], same.view(np.int8), [0]))))
    for start, stop in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        if stop - start >= least:
            yield start, stop


def _instances_chained(chain: Chain, run: Run) -> bool:
    """Return whether the second instance reads a tensor that the first one makes, and reads from before both only
    tensors that the first one reads at the same place. Excludes parallel branches and recurrences over two
    instances.
    """
    here, there = (slice(run.start + run.period * number, run.start + run.period * (number + 1)) for number in (0, 1))
    makers = chain.makers[there]
    before = (makers >= 0) & (makers < run.start) & (chain.tensors[here] != chain.tensors[there])
    inside = (makers >= run.start) & (makers < run.start + run.period)
    return bool(inside.any() and not before.any())
