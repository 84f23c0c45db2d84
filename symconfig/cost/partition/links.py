"""What a link costs and keeps, for all pairs of layouts at once.

A pair of layouts is a decimal number: the digit of each axis says what becomes of the tensor along it. What a change of
layouts moves, costs and keeps depends on these digits alone, so that all pairs of rows of a link read from one table
with an entry for each number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from symconfig.cost.partition.rates import Array, Rate, local, moves
from symconfig.cost.partition.work import Rows
from symconfig.graph.layout import FLAT, PARTIAL, WHOLE, Column, Layouts, Phase, cut
from symconfig.graph.program.net import Node, Port

Numbers = NDArray[np.int64]
BASE = 10
_MOST_KNOWN = 128  # arrays that are cached of a kind: some 10 MB
FORBIDDEN = 9  # the digit of what is ruled out
# By digit, one pair of places that stands for all that are alike: (given, taken).
PAIRS = (
    (WHOLE, WHOLE),  # nothing changes, and nothing is cut
    (0, 0),  # nothing changes
    (WHOLE, PARTIAL),
    (WHOLE, 0),
    (PARTIAL, 0),
    (0, 1),
    (PARTIAL, WHOLE),
    (0, WHOLE),
    (0, PARTIAL),
    (WHOLE, WHOLE),  # forbidden
)
_HELD, _EXCHANGED, _GATHERED = 1, 5, 7
_DIGIT_OF = np.array([[0, 2, 3], [6, 0, 4], [7, 8, 1]])  # [given, taken]: whole, partial, cut the same way


def digits(given: Numbers, taken: Numbers) -> Numbers:
    """Return the digit (0 to 8) of each pair of places of a mesh axis before and after, in the arrays' broadcast shape.

    A place is the index of the dim that the axis shards, WHOLE, PARTIAL or FLAT. A digit is an index of PAIRS: 0 and 1
    where nothing changes (whole, sharded), 5 for two different sharded places, FLAT too, 7 for a gather. Never
    FORBIDDEN.
    """
    first, second = np.asarray(cut(given)), np.asarray(cut(taken))
    result: Numbers = _DIGIT_OF[np.where(first, 2, WHOLE - given), np.where(second, 2, WHOLE - taken)]
    return np.where(first & second & (given != taken), _EXCHANGED, result)


def is_gather(digits: Sequence[int]) -> bool:
    """Return whether the change with these digits, one for each axis, is an all-gather along some axis and no more."""
    return _GATHERED in digits and all(digit <= _HELD or digit == _GATHERED for digit in digits)


def codes(table: Numbers, given: Rows, taken: Rows) -> Numbers:
    """Return the number of every pair of rows: the digit of axis i times 10^i, summed. [given, taken]

    table: digits, [options of the producer, options of the consumer]. given, taken: [rows, axes].
    """
    total = np.zeros((len(given), len(taken)), dtype=np.int64)
    two = (table[None, :, None, :] + BASE * table[:, None, :, None]).reshape([size**2 for size in table.shape])
    for axis in range(0, given.shape[1], 2):  # two axes are read at once
        both = axis + 1 < given.shape[1]
        row, column = (
            rows[:, axis] + size * rows[:, axis + 1] if both else rows[:, axis]
            for rows, size in zip((given, taken), table.shape, strict=True)
        )
        total += (BASE**axis * (two if both else table))[row].take(column, axis=1)
    return total


@dataclass(frozen=True, eq=False)
class Table:
    """Properties of all numbers of layout pairs, [numbers], each its own index. `every` makes one for equal rates."""

    rates: tuple[Rate, ...]

    @cached_property
    def digits(self) -> Numbers:
        """Return the digit of each axis: [axes, numbers]."""
        axes = len(self.rates)
        return np.arange(BASE**axes) // BASE ** np.arange(axes)[:, None] % BASE

    @cached_property
    def places(self) -> tuple[list[Column], list[Column]]:
        """Return the places before and after, a list with an array [numbers] per axis each."""
        given, taken = (list(np.array(of, dtype=np.int64)[self.digits]) for of in zip(*PAIRS, strict=True))
        return given, taken

    @cached_property
    def forbidden(self) -> NDArray[np.bool_]:
        return np.asarray((self.digits == FORBIDDEN).any(axis=0))

    @cached_property
    def prices(self) -> list[tuple[Array, ...]]:
        """Return of each move of the changes of layout, in order, the share of the tensor in the larger buffer, and the
        fixed and the proportional price with the move's axis and without it: [numbers] each, 0 where it does not
        happen.
        """
        result = []
        for move in moves(*self.places, 1.0, self.rates):
            rate = self.rates[move.axis]
            of = [
                part[group] for group in (move.group + rate.step, move.group) for part in rate.prices(move.kind).arrays
            ]
            result.append(tuple(np.where(move.happens, part, 0.0) for part in (move.whole, *of)))
        return result

    @cached_property
    def same(self) -> NDArray[np.bool_]:
        """Return where the layout changes along no axis: [numbers]."""
        return np.asarray((self.digits <= _HELD).all(axis=0))

    @cached_property
    def gathered(self) -> NDArray[np.bool_]:
        """Return where the tensor is all-gathered along one axis or more, and no other change happens: [numbers]."""
        plain = (self.digits <= _HELD) | (self.digits == _GATHERED)
        return np.asarray(plain.all(axis=0) & ~self.same)

    @cached_property
    def shares(self) -> tuple[Array, Array]:
        """Return the share of the tensor that one rank has before and after the change of layout: [numbers] each."""
        ones = np.ones(self.digits.shape[1])
        given, taken = self.places
        return ones * local(given, self.rates), ones * local(taken, self.rates)


@lru_cache(maxsize=8)
def every(rates: tuple[Rate, ...]) -> Table:
    """Return the table of all numbers with as many digits as there are axes, cached."""
    return Table(rates)


@lru_cache(maxsize=_MOST_KNOWN)
def moved_cost(table: Table, amount: float) -> Array:
    """Return the cost of each number's change of layout for a tensor of `amount` in all, bytes or elements: [numbers].

    Infinite where a digit is FORBIDDEN. Cached: every caller gets the same array.
    """
    total = np.where(table.forbidden, np.inf, 0.0)
    for share, fixed, each, fixed_before, each_before in table.prices:
        whole = share * amount
        total += (fixed + each * whole) - (fixed_before + each_before * whole)
    return total


@lru_cache(maxsize=_MOST_KNOWN)
def legs_cost(table: Table, legs: tuple[Leg, ...], times: float) -> Array:
    """Return the cost per step of a link's collectives (legs) for each pair of layouts in `table`, in its order.

    times: how often the link occurs in the graph. A `gathered` leg counts only where the layouts change by
    an all-gather alone. Cached; zeros without legs.
    """
    total = np.zeros(table.digits.shape[1])
    for leg in legs:
        cost = leg.times * moved_cost(table, leg.amount)
        total = total + (np.where(table.gathered, cost, 0.0) if leg.gathered else cost)
    return times * total


@lru_cache(maxsize=_MOST_KNOWN)
def held_bytes(table: Table, kept: Kept | None) -> Array:
    """Return the bytes that a consumer keeps on a rank for its backward, by number of the layout pair: [numbers].

    `kept.size` times the share after the change of layout, or with `kept.shards` the share before it where the tensor
    is all-gathered. If the producer's copy is kept, too (`covered`), 0 where that copy serves: the layout does not
    change or, with `shards`, is only gathered. Cached; zeros if nothing is kept.
    """
    if kept is None:
        return np.zeros(table.digits.shape[1])
    (given, share), same = table.shares, table.same
    if kept.shards:
        share, same = np.where(table.gathered, given, share), same | table.gathered
    return kept.size * (np.where(same, 0.0, share) if kept.covered else share)


class Leg(NamedTuple):
    """A transfer of an activation, or of its gradient, over a link.

    backward: of the gradient, from consumer to producer. amount: of the whole tensor, in bytes or elements. times: per
    step. gathered: it happens only where the change of layout is nothing but an all-gather.
    """

    phase: Phase
    backward: bool
    amount: float
    times: float
    gathered: bool = False


class Kept(NamedTuple):
    """What the consumer of an activation keeps for its backward.

    size: bytes of the whole tensor, of all instances. shards: a gathered tensor is kept as its shard. covered: without
    a change of layout the producer's own copy serves both.
    """

    size: float
    shards: bool
    covered: bool


@dataclass(frozen=True, slots=True)
class Activation:
    """The link of an activation.

    there, back: digits of the tensor's and the gradient's change of layout, [options of the producer, options of the
    consumer]. kept: None if the consumer keeps nothing. times: instances of the link.
    """

    there: Numbers
    back: Numbers
    legs: tuple[Leg, ...]
    kept: Kept | None
    times: float


@dataclass(frozen=True, slots=True)
class Weight:
    """The link of a parameter to an operator that uses it.

    transfers: digits, [options of the parameter, options of the operator], and amounts of its four changes of layout in
    the order of `Layouts.ways`: gather, gradient's turn, reduction, update. trainable: all but the gather happen.
    regathers: the backward gathers the weight again. turns: microbatches per step. times: instances of the link.
    """

    transfers: tuple[tuple[Numbers, float], ...]
    trainable: bool
    regathers: bool
    turns: float
    times: float


class Exchange(NamedTuple):
    """Changes of layout that follow one another. transfers: their indices in `Weight.transfers`. times: per step, for
    one link. overlapped: the work that each execution can overlap with.
    """

    phase: Phase
    transfers: tuple[int, ...]
    times: float
    overlapped: Array | float


def exchanges(
    rule: Weight, moved: Sequence[Array | float], ahead: Array | float, behind: Array | float
) -> Iterator[Exchange]:
    """Yield the exchanges of a weight: in every microbatch its gather, beside the forward's work `ahead`; and a second
    gather (if regathers) with the gradient's change of layout (if trainable), beside the backward's work `behind`. Once
    a step, if trainable, the reduction and the update, beside the work that the backward's and the forward's exchange
    leave. moved: the cost of each of the four transfers.
    """
    back = (0,) * rule.regathers + (1,) * rule.trainable
    yield Exchange(Phase.FORWARD, (0,), rule.turns, ahead)
    yield Exchange(Phase.BACKWARD, back, rule.turns, behind)
    if rule.trainable:
        yield Exchange(Phase.REDUCTION, (2,), 1.0, np.maximum(behind - sum(moved[way] for way in back), 0.0))
        yield Exchange(Phase.UPDATE, (3,), 1.0, np.maximum(ahead - moved[0], 0.0))


def exposed_cost(rule: Weight, moved: Sequence[Array], ahead: Array | float, behind: Array | float) -> Array:
    """Return the exposed cost per step of a weight's transfers, element by element: of each exchange what is beyond the
    work that it can overlap with. Arguments: see `exchanges`.
    """
    result: Array = np.zeros(())
    for _, transfers, times, overlapped in exchanges(rule, moved, ahead, behind):
        result = result + times * np.maximum(sum(moved[way] for way in transfers) - overlapped, 0.0)
    return result


def transfers(
    source: Node, use: Port, *, flat: bool, amounts: tuple[float, float]
) -> tuple[tuple[Numbers, float], ...]:
    """Return digits and amounts of a parameter's four transfers to the port that uses it (see `Weight`).

    amounts: of the whole weight and of its whole gradient. The gradient is kept sharded where the parameter's option
    shards it, else partial where the backward leaves it partial. A pair gets FORBIDDEN in the forward transfer if the
    operator uses the weight sharded but the state is sharded otherwise (FLAT, too), and without `flat` also if the
    operator uses it unsharded and the state is sharded.
    """
    stored, summed_at, state = (at[:, None] for at in states(source, np.arange(len(source.options))))
    summed = np.where(cut(summed_at), summed_at, np.where(use.backward == PARTIAL, PARTIAL, WHOLE))
    senseless = cut(state) & (cut(use.forward) | (not flat)) & (state != use.forward)
    result = []
    for way in Layouts(stored, use.forward, use.backward, summed, state, state).ways():
        if way.phase is not Phase.KEPT:  # as FORWARD
            pairs = np.broadcast_to(digits(way.given, way.taken), summed.shape)
            forbidden = senseless & (way.phase is Phase.FORWARD)
            result.append((np.where(forbidden, FORBIDDEN, pairs), amounts[way.gradient]))
    return tuple(result)


def states(node: Node, rows: Rows) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the places of a parameter's weight, gradient and optimizer state, in the shape of `rows` each.

    rows: options, of any shape. A place: the index of the dim that the axis shards, WHOLE, PARTIAL or FLAT. The state
    is FLAT where the option has a ZeRO stage (1 to 3), else placed as the weight.
    """
    port = node.ports[0]
    flat = np.array([option.zero > 0 for option in node.options])
    weight, gradient = port.forward[rows], port.backward[rows]
    return weight, gradient, np.where(flat[rows], FLAT, weight)
