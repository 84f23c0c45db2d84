"""Layouts of a tensor over mesh axes, and the one rule that turns two layouts into collectives.

An *axis* is a mesh axis (tp, cp, …); a *dim* is a named tensor dimension. In a layout every axis splits one
dim, leaves partial sums, or does neither (the tensor is whole along it).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from symconfig.graph.monomial import Monomial, product

FLAT = "flat"  # pseudo-dim: a weight's elements in one row, as sharded states cut them
PARTIAL = "+"  # place of an axis along which only the sum over its ranks is the tensor

INSTANCES = "instances"  # of the optimizer: an axis of ranks that hold the same parts of its state

# Order in which axes are named in a collective; also innermost first in the dense rank grid.
AXES = ("tp", "cp", "dp", "etp", "ep", "edp", INSTANCES, "pp")


class Kind(StrEnum):
    ALL_REDUCE = "all-reduce"
    REDUCE_SCATTER = "reduce-scatter"
    ALL_GATHER = "all-gather"
    ALL_TO_ALL = "all-to-all"
    SEND = "send to neighbours"  # of the rows that a window needs beside its own

    @property
    def passes(self) -> float:
        """Return how often a ring brings the larger buffer past every rank."""
        return 2.0 if self is Kind.ALL_REDUCE else 1.0


@dataclass(frozen=True, slots=True)
class Layout:
    """A place for each axis: `places[axis]` is a dim's name or PARTIAL. Axes that are absent leave the tensor whole."""

    places: tuple[tuple[str, str], ...] = ()

    @staticmethod
    def of(places: Mapping[str, str]) -> Layout:
        return Layout(tuple(sorted(places.items())))

    def where(self, axis: str) -> str | None:
        return next((place for name, place in self.places if name == axis), None)

    def axes_on(self, place: str) -> tuple[str, ...]:
        return tuple(axis for axis in AXES if self.where(axis) == place)

    def at(self, axes: Iterable[str], place: str) -> Layout:
        """Return the layout with these axes at one place, and the others where they are."""
        return Layout.of({**dict(self.places), **dict.fromkeys(axes, place)})

    @property
    def partial(self) -> tuple[str, ...]:
        return self.axes_on(PARTIAL)

    def parts(self) -> Monomial:
        """Number of parts that the tensor is cut into."""
        return product(Monomial.of(axis) for axis, place in self.places if place != PARTIAL)

    def summed(self) -> Layout:
        """Return the layout without partial sums: what a gradient of the tensor must look like."""
        return Layout(tuple((axis, place) for axis, place in self.places if place != PARTIAL))

    def __str__(self) -> str:
        return (
            ", ".join(f"{place}/{axis}" if place != PARTIAL else f"partial({axis})" for axis, place in self.places)
            or "whole"
        )


@dataclass(frozen=True, slots=True)
class Move:
    """One collective of a change of layout. `elements`: of the larger buffer on one rank."""

    kind: Kind
    axes: tuple[str, ...]
    elements: Monomial


def moves(produced: Layout, used: Layout, elements: Monomial) -> tuple[Move, ...]:
    """Return the collectives that turn `produced` into `used` for a tensor of `elements` elements in all.

    partial -> whole is an all-reduce, partial -> split a reduce-scatter, split -> whole an all-gather, split on
    one dim -> split on another an all-to-all, whole -> split a free slice. Slices come first, since they shrink
    what moves, gathers last.
    """
    changes: dict[Kind | None, list[str]] = {}
    for axis in AXES:
        before, after = produced.where(axis), used.where(axis)
        if before == after:
            continue
        changes.setdefault(_kind(before, after), []).append(axis)
    places = dict(produced.places)
    result = []
    for kind in (None, Kind.REDUCE_SCATTER, Kind.ALL_TO_ALL, Kind.ALL_REDUCE, Kind.ALL_GATHER):
        axes = tuple(changes.get(kind, ()))
        if not axes:
            continue
        larger = elements / Layout.of(places).parts()
        for axis in axes:
            after = used.where(axis)
            if after is None:
                places.pop(axis, None)
            else:
                places[axis] = after
        if kind is None:
            continue
        if kind is Kind.ALL_GATHER:
            larger = elements / Layout.of(places).parts()
        result.append(Move(kind, axes, larger))
    return tuple(result)


def _kind(before: str | None, after: str | None) -> Kind | None:
    if before == PARTIAL:
        return Kind.ALL_REDUCE if after is None else Kind.REDUCE_SCATTER
    if before is None:
        return None
    return Kind.ALL_GATHER if after is None else Kind.ALL_TO_ALL
