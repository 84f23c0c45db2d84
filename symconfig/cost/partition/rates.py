"""The cost of collectives along the axes of a mesh: seconds, or elements as the source paper counts them.

Also the collectives that bring a tensor from one layout into another, for many pairs of layouts at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import accumulate
from operator import mul
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from symconfig.cost import formulas
from symconfig.cost.machine import LEVELS, Number, constants, levels_of
from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.mesh import Axis, Mesh
from symconfig.graph.layout import Column, Kind, Truth, changes, cut, ever, where

Array = NDArray[np.float64]
Group = int | NDArray[np.int64]  # numbers of `Groups`; 0: of no axis
_MANY = 1e18  # bytes of which the latency is no part


@dataclass(frozen=True, slots=True)
class Prices:
    """Costs of one kind of collective over each group of axes, or of a message: fixed + each * amount, [groups]."""

    fixed: tuple[float, ...]
    each: tuple[float, ...]
    arrays: tuple[Array, Array] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "arrays", (np.array(self.fixed), np.array(self.each)))

    def __call__(self, amount: Array | float, group: Group = 0) -> Array:
        fixed, each = (of[group] for of in self.arrays)
        result: Array = fixed + each * np.asarray(amount)
        return result


@dataclass(frozen=True, slots=True)
class Rate:
    """Costs of collectives along one axis of `size` ranks; amounts are of the larger buffer on one rank.

    A collective over several axes is one collective over all of their ranks, as libraries run it. An axis therefore
    costs what the collective over it and the axes of `group` costs beyond that over `group` alone. step: what the axis
    adds to a group's number. by_ring: an all-gather or a reduce-scatter. send: to a neighbour.
    """

    size: int
    step: int
    by_ring: Prices
    by_all_reduce: Prices
    by_all_to_all: Prices
    send: Prices

    def cost(self, kind: Kind, amount: Array | float, group: Group = 0) -> Array:
        """Return the cost of a collective over the axis and `group`, less that over `group` alone: the shape of both.

        group: the number of a group of other axes, the sum of their steps; 0 for none. Kinds other than ALL_REDUCE and
        ALL_TO_ALL cost as all-gathers, SEND too.
        """
        prices = self.prices(kind)
        return prices(amount, group + self.step) - prices(amount, group)

    def prices(self, kind: Kind) -> Prices:
        return {Kind.ALL_REDUCE: self.by_all_reduce, Kind.ALL_TO_ALL: self.by_all_to_all}.get(kind, self.by_ring)


@dataclass(frozen=True, slots=True)
class Groups:
    """All groups that subsets of the axes make up, by number; axes of one level and size are interchangeable.

    steps: what each axis adds to a group's number. members: ranks of each group by level, [groups] each.
    """

    steps: tuple[int, ...]
    members: dict[str, NDArray[np.int64]]

    @classmethod
    def of(cls, axes: Sequence[Axis]) -> Groups:
        """Return the groups of these axes; a group's number is the sum of its axes' steps, 0 for no axis."""
        alike = Counter((axis.level, axis.size) for axis in axes)
        step, count, members = dict[tuple[str, int], int](), 1, {level: np.ones(1, np.int64) for level, _ in alike}
        for (level, size), times in alike.items():
            step[level, size], count = count, count * (times + 1)
            members = {
                name: np.concatenate([some * (size**taken if name == level else 1) for taken in range(times + 1)])
                for name, some in members.items()
            }
        return cls(tuple(step[axis.level, axis.size] for axis in axes), members)

    @property
    def ranks(self) -> NDArray[np.int64]:
        return reduce(np.multiply, self.members.values(), np.ones(1, np.int64))


def levels(mesh: Mesh, cluster: ClusterDescriptor) -> dict[str, Number]:
    """Return the collective formulas' arguments for a mesh (`machine.levels_of`); {} for a single GPU."""
    within = accumulate((level.size for level in mesh.levels), mul)
    each = [(one.name, float(size), one.bandwidth_bytes_per_s, 1.0, one.latency_s, one.mesh)
            for one, size in zip(mesh.levels, within, strict=True)]  # fmt: skip
    return levels_of(each, constants(cluster.kernels))


def seconds(axes: Sequence[Axis], mesh: Mesh, cluster: ClusterDescriptor) -> tuple[Rate, ...]:
    """Return the rate of each axis in seconds, amounts in bytes; () without axes.

    The formulas are affine in the amount: each is evaluated at 0 bytes (fixed part) and at 1e18 (slope), for every
    group of axes. Groups of one rank cost 0.
    """
    numbers, groups = levels(mesh, cluster), Groups.of(axes)
    if not axes:
        return ()
    ranks, stride, within = _group_levels(mesh, groups, numbers)

    def fitted(formula: Any, *arguments: object) -> Prices:
        none, many = (np.where(ranks > 1, formula(amount, *arguments, **within), 0.0) for amount in (0.0, _MANY))
        return Prices(tuple(none.tolist()), tuple((many / _MANY).tolist()))

    ring = fitted(formulas.ring_s, 1.0, ranks, stride)
    all_reduce = fitted(formulas.ring_s, 2.0, ranks, stride)
    all_to_all = fitted(formulas.all_to_all_s, ranks, stride, 1.0, 0.0, 1.0, 1.0)
    return tuple(
        Rate(axis.size, step, ring, all_reduce, all_to_all, _message_s(axis.size, axis.stride, numbers))
        for axis, step in zip(axes, groups.steps, strict=True)
    )


def between_stages(mesh: Mesh, cluster: ClusterDescriptor) -> Prices:
    """Return the seconds of a message between GPUs of two pipeline stages, over the mesh's outermost level."""
    outer = mesh.levels[-1].size
    return _message_s(outer, mesh.gpus // outer, levels(mesh, cluster))


def _message_s(size: int, stride: int, numbers: dict[str, Number]) -> Prices:
    none, many = (float(formulas.send_s(amount, float(size), float(stride), **numbers)) for amount in (0.0, _MANY))
    return Prices((none,), (many / _MANY,))


def _group_levels(mesh: Mesh, groups: Groups, numbers: dict[str, Number]) -> tuple[Array, Array, dict[str, Number]]:
    """Return ranks and stride of each group, [groups], and the levels' arguments with sizes of each group from level 1.

    The formulas take ranks at even distances. The stride is the innermost domain's size over the group's members in it;
    the size of an outer level is that stride times the group's members up to the level, not all GPUs of the level.
    """
    none = np.ones(len(groups.ranks), dtype=np.int64)
    ranks = groups.ranks.astype(np.float64)
    inside = [groups.members.get(level.name, none) for level in mesh.levels]
    stride = mesh.levels[0].size / inside[0]
    result, reach = dict(numbers), inside[0]
    for index in range(1, LEVELS):
        if index < len(mesh.levels):
            reach = reach * inside[index]
        result[f"level{index}_size"] = stride * reach
    return ranks, stride, result


def buffered(rates: Sequence[Rate]) -> tuple[Rate, ...]:
    """Return the rates, without fixed parts but of sends, of a tensor that shares messages with many others."""

    def without(prices: Prices) -> Prices:
        return Prices((0.0,) * len(prices.each), prices.each)

    return tuple(
        replace(
            rate,
            by_ring=without(rate.by_ring),
            by_all_reduce=without(rate.by_all_reduce),
            by_all_to_all=without(rate.by_all_to_all),
        )
        for rate in rates
    )


def elements(axes: Sequence[Axis]) -> tuple[Rate, ...]:
    """Return the rate of each axis in elements sent, the source paper's Cost_comm, without a fixed part.

    Of a group of n ranks a share (n - 1) / n of the amount, twice for an all-reduce; for a send the whole amount.
    """
    groups = Groups.of(axes)
    shares = 1.0 - 1.0 / groups.ranks
    none = (0.0,) * len(shares)
    once, twice = (Prices(none, tuple((times * shares).tolist())) for times in (1, 2))
    return tuple(
        Rate(axis.size, step, once, twice, once, Prices((0.0,), (1.0,)))
        for axis, step in zip(axes, groups.steps, strict=True)
    )


class Move(NamedTuple):
    """A collective along one axis.

    happens: for which pairs of layouts. amount: of the larger buffer on one rank, in bytes or elements. whole: that
    before the axes in front of it, whose group's number is `group`.
    """

    kind: Kind
    axis: int
    happens: Truth
    amount: Array | float
    cost: Array | float
    whole: Array | float = 0.0
    group: Group = 0


def local(places: Sequence[Column], rates: Sequence[Rate]) -> Array | float:
    """Return one rank's share of a tensor: 1 / (product of the sizes of the axes that it is sharded over)."""
    share: Array | float = 1.0
    for place, rate in zip(places, rates, strict=True):
        share = share * np.where(cut(place), 1.0 / rate.size, 1.0)
    return share


def total(run: Iterable[Move]) -> Array | float:
    """Return the sum of the costs of moves, each counted only where it happens; 0.0 for none."""
    cost: Any = 0.0
    for move in run:
        cost = cost + where(move.happens, move.cost, 0.0)
    result: Array | float = cost
    return result


def moves(
    given: Sequence[Column], taken: Sequence[Column], amount: Array | float, rates: Sequence[Rate]
) -> Iterator[Move]:
    """Yield the moves that bring a tensor from layout `given` into `taken`, one per collective and axis, in order.

    given, taken: by axis the dim's index that it shards, WHOLE, PARTIAL or FLAT. amount: of the whole tensor, in bytes
    or elements. Moves of one kind are one collective over several axes; each costs what its axis adds to it. An
    all-to-all takes the outermost axis first.
    """
    sizes = [rate.size for rate in rates]
    for kind, axes, larger in changes(given, taken, local(given, rates) * amount, sizes):
        # What stays within an outer axis' part is left for the inner ones: each element crosses one of them only.
        order = reversed(axes) if kind is Kind.ALL_TO_ALL else axes
        yield from together(kind, ((axis, rates[axis], now) for axis, now in order), larger)


def together(kind: Kind, along: Iterable[tuple[int, Rate, Truth]], whole: Array | float) -> Iterator[Move]:
    """Yield the moves of one collective over several axes; axes on which it happens nowhere are skipped.

    along: (axis, its rate, where it happens). whole: the larger buffer on one rank. A move's cost is what its axis adds
    to the collective over the axes before it, on `whole`; its amount is `whole` divided by the sizes of those axes.
    """
    group: Any = 0
    amount: Any = whole
    for axis, rate, now in along:
        if ever(now):
            yield Move(kind, axis, now, amount, rate.cost(kind, whole, group), whole, group)
            group = where(now, group + rate.step, group)
            amount = where(now, amount / rate.size, amount)
