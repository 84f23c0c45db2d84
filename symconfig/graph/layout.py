"""Layouts of a tensor over mesh axes, and the one rule that turns two layouts into collectives: a pair of them by name
of their axes and dims (`moves`), or arrays of many at once (`changes`).

An *axis* is a mesh axis (tp, cp, …); a *dim* is a named tensor dimension. In a layout every axis splits one
dim, leaves partial sums, or does neither (the tensor is whole along it).

ZeRO is layouts, too (`Sharding`): where a weight, its gradient and its optimizer state lie on the ranks that hold the
same weights. Which collectives a step has follows from pairs of these layouts, and how often each runs from where in
the step its pair stands (arXiv 1910.02054; PyTorch's hybrid sharding; DeepSpeed's stages).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache, lru_cache
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from symconfig.graph.dims import ONE, Monomial, product

# Places of an axis in a tensor, beside its dims: by name, or in arrays by position 0, 1, …
WHOLE = -1  # every rank has all of it
PARTIAL = -2  # the sum over the ranks is the tensor
FLAT = -3  # elements in one row, cut regardless of dims: as sharding cuts what a step keeps
Place = str | int
# Places of one axis in many layouts, in arrays that broadcast together; or one place in all of them.
Column = int | NDArray[np.int64]
Truth = bool | NDArray[np.bool_]

INSTANCES = "instances"  # of the optimizer: an axis of ranks that hold the same parts of its state
GTP = "gtp"  # Megatron-LM's weight shards: of the data-parallel ranks, those that each store a part of a linear weight

# Order in which axes are named in a collective; also innermost first in the dense rank grid.
AXES = ("tp", GTP, "cp", "dp", "etp", "ep", "edp", INSTANCES, "pp")


class Kind(StrEnum):
    """Name a kind of communication: a collective, or a halo exchange (SEND)."""

    ALL_REDUCE = "all-reduce"
    REDUCE_SCATTER = "reduce-scatter"
    ALL_GATHER = "all-gather"
    ALL_TO_ALL = "all-to-all"
    SEND = "send to neighbours"  # of the rows that a window needs beside its own

    @property
    def passes(self) -> float:
        """Return the number of times that a ring algorithm moves the larger buffer past each rank: 2 for an all-reduce,
        else 1.
        """
        return 2.0 if self is Kind.ALL_REDUCE else 1.0


@dataclass(frozen=True, slots=True)
class Layout:
    """Hold a place for each axis: a dim's name, PARTIAL or FLAT. Axes that are absent leave the tensor replicated."""

    places: tuple[tuple[str, Place], ...] = ()

    @staticmethod
    def of(places: Mapping[str, Place]) -> Layout:
        return Layout(tuple(sorted(places.items())))

    def where(self, axis: str) -> Place | None:
        return next((place for name, place in self.places if name == axis), None)

    def axes_on(self, place: Place) -> tuple[str, ...]:
        return tuple(axis for axis in AXES if self.where(axis) == place)

    def at(self, axes: Iterable[str], place: Place) -> Layout:
        """Return a layout with these axes at `place` and the others unchanged."""
        return Layout.of({**dict(self.places), **dict.fromkeys(axes, place)})

    @property
    def partial(self) -> tuple[str, ...]:
        return self.axes_on(PARTIAL)

    def parts(self) -> Monomial:
        """Return the number of parts that the tensor is sharded into; partial axes do not count."""
        return product(Monomial.of(axis) for axis, place in self.places if place != PARTIAL)

    def summed(self) -> Layout:
        """Return the layout without partial axes, which is also the layout of the tensor's gradient."""
        return Layout(tuple((axis, place) for axis, place in self.places if place != PARTIAL))


@dataclass(frozen=True, slots=True)
class Move:
    """One collective of a change of layout. `elements`: of the larger buffer on one rank."""

    kind: Kind
    axes: tuple[str, ...]
    elements: Monomial


@lru_cache(maxsize=4096)
def moves(produced: Layout, used: Layout, elements: Monomial) -> tuple[Move, ...]:
    """Return the collectives that turn layout `produced` into `used`, in the order of `changes`; empty if the layouts
    are equal or slices suffice. Cached. elements: of the unsharded tensor. Each Move has all axes of one collective,
    and the elements of its larger buffer on one rank.
    """
    axes = [axis for axis in AXES if produced.where(axis) != used.where(axis)]
    if not axes:
        return ()
    numbers: dict[Place | None, int] = {None: WHOLE, PARTIAL: PARTIAL, FLAT: FLAT}
    given, taken = (
        [numbers.setdefault(place, len(numbers)) for place in map(layout.where, axes)] for layout in (produced, used)
    )
    each = changes(given, taken, elements / produced.parts(), list(map(Monomial.of, axes)))
    return tuple(Move(kind, tuple(axes[axis] for axis, _ in along), larger) for kind, along, larger in each)


def changes(
    given: Sequence[Column], taken: Sequence[Column], size: Any, ranks: Sequence[Any]
) -> Iterator[tuple[Kind, list[tuple[int, Truth]], Any]]:
    """Yield the collectives that change a layout, in order: (kind, [(axis, where it happens)], elements of its larger
    buffer on one rank). A kind that happens nowhere is left out.

    First, sharding a replicated axis is a free slice, which shrinks the size. Then partial to sharded is a
    reduce-scatter, sharded to another place an all-to-all, partial to replicated an all-reduce, sharded to replicated
    (or partial) an all-gather. Replicated to partial is free. Arrays broadcast: `where` is then an array of bools.

    Args:
        given: the place of each axis before, as one number or an array over many layouts.
        taken: the place of each axis after.
        size: elements that a rank has before.
        ranks: the number of ranks of each axis.
    """
    moving = [
        (axis, a, b, cut(a), cut(b))
        for axis, (a, b) in enumerate(zip(given, taken, strict=True))
        if isinstance(a, np.ndarray) or isinstance(b, np.ndarray) or a != b
    ]
    for axis, now in _ever((axis, (a == WHOLE) & takes) for axis, a, _, _, takes in moving):
        size = where(now, size / ranks[axis], size)
    scattered = _ever((axis, (a == PARTIAL) & takes) for axis, a, _, _, takes in moving)
    if scattered:
        yield Kind.REDUCE_SCATTER, scattered, size
        size = size / _all_ranks(scattered, ranks)
    exchanged = _ever((axis, gives & takes & (a != b)) for axis, a, b, gives, takes in moving)
    if exchanged:
        yield Kind.ALL_TO_ALL, exchanged, size
    reduced = _ever((axis, (a == PARTIAL) & (b == WHOLE)) for axis, a, b, _, _ in moving)
    if reduced:
        yield Kind.ALL_REDUCE, reduced, size
    gathered = _ever((axis, gives > takes) for axis, _, _, gives, takes in moving)
    if gathered:
        yield Kind.ALL_GATHER, gathered, size * _all_ranks(gathered, ranks)


def cut(place: Column) -> Truth:
    """Return whether a place shards the tensor: along a dim or flat; elementwise for an array."""
    return (place >= 0) | (place == FLAT)


def where(condition: Truth, yes: Any, no: Any) -> Any:
    """Return np.where(condition, yes, no) for an array; for a single bool, `yes` or `no` unchanged."""
    if isinstance(condition, np.ndarray):
        return np.where(condition, yes, no)
    return yes if condition else no


def ever(now: Truth) -> bool:
    """Return whether any element is true."""
    return bool(now.any()) if isinstance(now, np.ndarray) else now


def _ever(along: Iterable[tuple[int, Truth]]) -> list[tuple[int, Truth]]:
    return [(axis, now) for axis, now in along if ever(now)]


def _all_ranks(along: Sequence[tuple[int, Truth]], ranks: Sequence[Any]) -> Any:
    count: Any = 1
    for axis, now in along:
        count = where(now, ranks[axis] * count, count)
    return count


DATA = ("dp", "cp", "edp", INSTANCES)  # axes whose ranks hold the same weights and see other tokens

T = TypeVar("T")


class Phase(StrEnum):
    """Name the phase in which a tensor changes its layout: REDUCTION and UPDATE once a step, the others with every
    microbatch.
    """

    FORWARD = "forward"
    RECOMPUTED = "recomputed forward"
    KEPT = "backward, gathered again"
    BACKWARD = "backward"
    REDUCTION = "gradient reduction"
    UPDATE = "updated weights"

    @property
    def once(self) -> bool:
        return self in (Phase.REDUCTION, Phase.UPDATE)


@dataclass(frozen=True, slots=True)
class Way(Generic[T]):
    """Describe a change of layout in a step, of the weight or (`gradient`) of its gradient, from `given` to `taken`."""

    phase: Phase
    gradient: bool
    given: T
    taken: T


@dataclass(frozen=True, slots=True)
class Layouts(Generic[T]):
    """Hold all layouts of one weight, in the form of `moves` or as arrays of places.

    stored: the weight between uses. used: as operators read it. produced: its gradient after a backward. between:
    the gradient between microbatches. reduced: the gradient for the optimizer, summed over data-parallel ranks.
    state: the optimizer's state, and the updated weight before it is gathered.
    """

    stored: T
    used: T
    produced: T
    between: T
    reduced: T
    state: T

    def ways(self) -> tuple[Way[T], ...]:
        """Return the five changes of layout of a step, in order: the weight from stored to used (FORWARD, and KEPT:
        gathered again for the backward), its gradient to that between microbatches (BACKWARD) and to the reduced one
        (REDUCTION), the weight from the state's shards to stored (UPDATE). Both sides of a change may be equal.
        """
        return (
            Way(Phase.FORWARD, False, self.stored, self.used),
            Way(Phase.KEPT, False, self.stored, self.used),
            Way(Phase.BACKWARD, True, self.produced, self.between),
            Way(Phase.REDUCTION, True, self.between, self.reduced),
            Way(Phase.UPDATE, False, self.state, self.stored),
        )


@dataclass(frozen=True, slots=True)
class Sharding:
    """Say which layouts of a weight are sharded flat over the ranks that would otherwise hold replicas.

    weight: as stored. gradient: between microbatches; else each rank accumulates its own until the end of the step.
    state: of the optimizer. whole_gradients: every rank gets the whole summed gradient though it needs only its
    shard. over_tensor: flat shards extend over tensor-parallel ranks that hold replicas, too. instances: ranks form
    several groups, each with all shards.
    """

    weight: bool = False
    gradient: bool = False
    state: bool = False
    whole_gradients: bool = False
    over_tensor: bool = False
    instances: bool = False

    @staticmethod
    @cache
    def of(stage: int, *, whole_gradients: bool, over_tensor: bool, instances: bool) -> Sharding:
        """Return the sharding of a ZeRO stage: the optimizer's state is sharded from stage 1 on, gradients from 2,
        weights at 3. `whole_gradients` has no effect at stage 3, `over_tensor` only at stage 3, `instances` none at
        stage 0. Cached.
        """
        weight, gradient, state = (stage >= least for least in (3, 2, 1))
        return Sharding(
            weight, gradient, state, whole_gradients and not weight, over_tensor and weight, instances and state
        )

    @property
    def each_microbatch(self) -> bool:
        """Return whether weights or gradients are communicated with every microbatch."""
        return self.weight or self.gradient

    def layouts(self, used: Layout, summed: tuple[str, ...], over_gtp: bool = False) -> Layouts[Layout]:
        """Return the layouts of a weight. used: as operators read it. summed: axes over which its gradient is partial.

        over_gtp: the weight is cut FLAT over GTP, too, if its gradient is partial there: it is stored so whatever the
        stage, and its gradient is summed and cut so after every backward.

        A shard is `used` cut FLAT over the data axes of `summed` but INSTANCES and, with `over_tensor`, over tp if the
        weight is no expert's (no edp) and not split over tp. stored and state are a shard if `weight` or `state` is
        set, else `used`. The gradient is reduced to a shard if `state` is set without `whole_gradients`, else to
        `used`, and stays partial over the axes of `summed` that are not data axes or cut. Between microbatches it is
        the reduced one if `gradient` is set, else as produced.
        """
        data = tuple(axis for axis in summed if axis in DATA)
        cut = [axis for axis in data if axis != INSTANCES]
        shard = used.at([GTP], FLAT) if over_gtp and GTP in summed else used
        if self.over_tensor and "edp" not in data and used.where("tp") is None:
            cut.append("tp")
        parted, produced = shard.at(cut, FLAT), used.at(summed, PARTIAL)
        reduced = parted if self.state and not self.whole_gradients else shard
        rest = [axis for axis in summed if shard.where(axis) is None]  # partial after each backward
        reduced = reduced.at((axis for axis in rest if axis not in (*data, *cut)), PARTIAL)
        return Layouts(
            stored=parted if self.weight else shard,
            used=used,
            produced=produced,
            between=reduced if self.gradient else shard.at(rest, PARTIAL),
            reduced=reduced,
            state=parted if self.state else shard,
        )

    def ways(
        self, used: Layout, summed: tuple[str, ...], trained: bool = True, over_gtp: bool = False
    ) -> tuple[Way[Layout], ...]:
        """Return a weight's changes of layout in a step, in order; if not `trained`, only those of the weight itself in
        FORWARD and KEPT. A trained one also has a REDUCTION of its gradient over the axes that are still partial,
        between the gradient reduction and UPDATE. used: the layout in which operators read the weight. summed: axes
        over which its gradient is partial. over_gtp: it is stored in shards over GTP, too.
        """
        layouts = self.layouts(used, summed, over_gtp)
        *ways, update = layouts.ways()
        rest = Way(Phase.REDUCTION, True, layouts.reduced, layouts.reduced.summed())
        return (*ways, rest, update) if trained else tuple(way for way in ways if not way.gradient)


@cache
def over_replicas(sharding: Sharding) -> tuple[tuple[Way[Layout], tuple[Move, ...]], ...]:
    """Return the (change of layout, its collectives) of a weight of one element that is replicated over dp only, or
    over dp and INSTANCES if `sharding.instances`. Cached. Changes without collectives are left out; `over_tensor` is
    ignored.
    """
    replicas = ("dp", INSTANCES) if sharding.instances else ("dp",)
    ways = replace(sharding, over_tensor=False).ways(Layout(), replicas)
    every = tuple((way, moves(way.given, way.taken, ONE)) for way in ways)
    return tuple((way, some) for way, some in every if some)
