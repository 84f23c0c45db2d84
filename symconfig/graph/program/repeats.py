"""Repeats in a row of operators: pieces that follow each other, alike in structure and in what they read from where."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from symconfig.graph.program.program import Program

Numbers = NDArray[np.int64]
_OCCURRENCES = 16  # how many of an operator's next likes may be its like in the next instance
_NOBODY = -1
NEVER = 2**62


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

    def alike(self, low: int, high: int, period: int) -> tuple[NDArray[np.bool_], Numbers]:
        """Compare each operator in [low, high - period) with the one a period later; return two arrays [high - low -
        period].

        The first: whether structures are equal. The second: the earliest start of a run that may contain both, the
        largest over inputs: 0 for one from the same distance; for one tensor that both read the index after its maker
        (0 if no operator made it); else NEVER. If no structures are equal, the second is 0.
        """
        here, there = slice(low, high - period), slice(low + period, high)
        same: NDArray[np.bool_] = self.kinds[here] == self.kinds[there]
        if not same.any():
            return same, np.zeros(len(same), np.int64)
        as_far = self.distance[here] == self.distance[there]
        shared = self.tensors[here] == self.tensors[there]
        after = np.where(as_far, 0, np.where(shared, self.makers[here] + 1, NEVER))
        return same, after.max(axis=1, initial=0)


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
    the one that covers most operators first, then recursively those on both sides of it. Empty if nothing repeats.

    Of equals, the one with the shortest period wins, then the earliest; it is shifted by less than a period to begin
    where the fewest bytes cross.
    """
    longest: list[Run] = []
    left = [(0, len(chain.kinds))]
    while left:
        low, high = left.pop()
        best = max(_candidates(chain, low, high), key=lambda pair: pair[0], default=None)
        if best is not None:
            run = _shifted(chain, best[1], high)
            longest.append(run)
            left += [(low, run.start), (run.end, high)]
    return tuple(sorted(longest))


def _candidates(chain: Chain, low: int, high: int) -> Iterator[tuple[tuple[int, int, int], Run]]:
    """Yield (rank, run) for every run within [low, high); the largest rank (operators covered, -period, -start) is the
    best.
    """
    for period in _periods(chain.kinds[low:high]):
        same, after = chain.alike(low, high, period)
        for start, stop in _stretches(same, period):
            at = np.flatnonzero(after[start:stop]) + start
            odd = dict(zip((at + low).tolist(), after[at].tolist(), strict=True))
            yield from _runs_in_stretch(chain, start + low, stop + low, period, odd)


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


def _runs_in_stretch(
    chain: Chain, start: int, stop: int, period: int, odd: Mapping[int, int]
) -> Iterator[tuple[tuple[int, int, int], Run]]:
    """Yield (rank, run) for runs within [start, stop), where every operator has the structure of the one a period
    later.

    odd: by operator whose inputs do not all come from the same distance as those a period later, the earliest start
    of a run that may contain both. Only operators of the first instance may be odd.
    """
    never = [position for position, after in odd.items() if after == NEVER]
    firsts = {start, *(at for position in never for at in (position - period + 1, position, position + 1))}
    for first in sorted(firsts | set(odd.values())):
        if first < start or first + period > stop:
            continue
        wrong = [position for position, after in odd.items() if after > first <= position]
        later = next((position for position in wrong if position >= first + period), stop)
        run = Run(first, period, _steady_instances(chain, Run(first, period, 1 + (later - first) // period)))
        entering = [position for position in wrong if position < first + period]
        if _inputs_correspond(chain, run, entering) and _instances_chained(chain, run):
            yield (run.period * run.times, -period, -first), run


def _shifted(chain: Chain, run: Run, high: int) -> Run:
    """Return the run shifted by less than one period to where the fewest bytes cross (the earliest of equals), such
    that it is still a valid run and ends at or before `high`.
    """
    firsts = range(run.start, min(run.start + run.period, high - run.period * run.times + 1))
    others = (Run(first, run.period, run.times) for first in sorted(firsts, key=lambda at: (chain.crossing[at], at)))
    return next(other for other in others if other == run or _is_run(chain, other))


def _is_run(chain: Chain, run: Run) -> bool:
    """Return whether the run is valid: equal structure, inputs that correspond, and each instance reading from the one
    before.
    """
    same, after = chain.alike(run.start, run.end, run.period)
    odd = (np.flatnonzero(after > run.start) + run.start).tolist()
    first = all(position < run.start + run.period for position in odd)
    return (
        bool(same.all())
        and first
        and _inputs_correspond(chain, run, odd)
        and _instances_chained(chain, run)
        and (_steady_instances(chain, run) == run.times)
    )


def _inputs_correspond(chain: Chain, run: Run, odd: Sequence[int]) -> bool:
    """Return whether the inputs of the first instance correspond to those of the second one: an input of the operators
    `odd` that is not made at the same distance must come from before the run in the first instance, and in the second
    be the same tensor, or one that the first instance makes.

    A tensor of the first instance may stand for one tensor from before the run only.
    """
    outside: dict[int, int] = {}
    for position in odd:
        there = position + run.period
        for place in range(chain.tensors.shape[1]):
            if chain.distance[position, place] == chain.distance[there, place]:
                continue
            if chain.makers[position, place] >= run.start:
                return False
            mine, theirs = int(chain.tensors[position, place]), int(chain.tensors[there, place])
            inside = run.start <= chain.makers[there, place] < run.start + run.period
            if mine != theirs and (not inside or outside.setdefault(theirs, mine) != mine):
                return False
    return True


def _steady_instances(chain: Chain, run: Run) -> int:
    """Return the number of leading instances, at least 2, from the second of which on each input stays of one kind: one
    tensor for all instances, or made at the same distance.

    2 if the second and third read different tensors that operators before the run made. A run of fewer than three
    instances is not checked: its `times`.
    """
    if run.times < 3:
        return run.times
    here, there = (slice(run.start + run.period * (1 + more), run.end - run.period * (1 - more)) for more in (0, 1))
    shape = (run.times - 2, run.period, -1)
    shared = (chain.tensors[here] == chain.tensors[there]).reshape(shape)
    as_far = (chain.distance[here] == chain.distance[there]).reshape(shape)
    makers = chain.makers[here].reshape(shape)[0]
    outside = (makers >= 0) & (makers < run.start) & ~shared[0]
    good = (np.where(shared[0], shared, as_far) & ~outside).all(axis=(1, 2))
    return 2 + (len(good) if good.all() else int(good.argmin()))


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
