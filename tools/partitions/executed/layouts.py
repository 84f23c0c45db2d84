"""For every node of a traced graph the layouts in which it reads and makes tensors, by what the solver chose.

Along one mesh dim a node is split as its operator is: a tensor is cut at the first dim that has one of the loops, is
whole where it has none, and a result without them is a sum of parts. Where PyTorch's own kernel cannot run on a part
that way, the node runs whole along that mesh dim, and the reason is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

from torch.fx import Node

from symconfig.graph.layout import PARTIAL, WHOLE
from symconfig.graph.program.net import Option, Place
from symconfig.solve.partition.placements import MeshDim
from tools.partitions.executed.kernels import bias_of, cannot, makes, mean
from tools.partitions.executed.nodes import Dims, NodeSeen, Seen, tensors

# A place here is the number of an axis that is cut, or WHOLE, or PARTIAL: forward, and of the gradient.
EVERYWHERE = Place(WHOLE, WHOLE)


@dataclass(frozen=True, slots=True)
class Layout:
    """factors: of dims that are seen as products (dim, outer sizes), which placements then count apart."""

    placements: tuple[str, ...]
    gradient: tuple[str, ...]
    factors: tuple[tuple[int, tuple[int, ...]], ...] = ()

    def entry(self) -> dict[str, Any]:
        """Return it as plain data; a gradient that lies as its tensor is left out."""
        result: dict[str, Any] = {"placements": list(self.placements)}
        if self.gradient != self.placements:
            result["gradient"] = list(self.gradient)
        if self.factors:
            result["factors"] = {str(dim): list(sizes) for dim, sizes in self.factors}
        return result


@dataclass(frozen=True, slots=True)
class Ran:
    """How a node runs. whole: mesh dims along which it does not run as the solver chose, and why. parts: of a mean, by
    which each rank's own result is divided.
    """

    inputs: tuple[Layout, ...]
    outputs: tuple[Layout, ...]
    whole: tuple[tuple[str, str], ...] = ()
    parts: int = 1


class _Unsayable(Exception):
    """mesh: the number of the mesh dim that cannot be said."""

    def __init__(self, mesh: int, why: str) -> None:
        super().__init__(why)
        self.mesh, self.why = mesh, why


class _Places(NamedTuple):
    """A place of each tensor for each mesh dim."""

    inputs: list[list[Place]]
    outputs: list[list[Place]]


@dataclass
class Layouts:
    """options: of each operator what it does along each mesh dim. made: of each node and result its dims and places.
    laid: of each node how its first result lies."""

    seen: Seen
    mesh: Sequence[MeshDim]
    options: Mapping[str, Sequence[Option]]
    made: dict[str, list[tuple[Dims | None, list[Place]]]] = field(default_factory=dict)
    laid: dict[str, Layout] = field(default_factory=dict)

    @property
    def whole(self) -> Layout:
        words = ("Replicate()",) * len(self.mesh)
        return Layout(words, words)

    def parameter(self, node: str, dims: Dims | None, placed: Sequence[int | None]) -> None:
        """Note how a parameter is kept. placed: for each mesh dim the stored dim that it cuts."""
        words = tuple("Replicate()" if dim is None else f"Shard({dim})" for dim in placed)
        places = [EVERYWHERE] * len(self.mesh)
        for number, dim in enumerate(placed):
            if dim is not None and dims is not None and dims[dim]:
                places[number] = Place(dims[dim][0].axis, dims[dim][0].axis)
        try:
            alike = self._in_words(dims, places).placements == words
        except _Unsayable:
            alike = False  # a view of it cannot be cut there, and reads it whole
        self._note(node, [(dims, places if alike else [EVERYWHERE] * len(self.mesh))], Layout(words, words))

    def fed(self, node: str) -> None:
        """Note a tensor that every rank has."""
        self._note(node, [(None, [EVERYWHERE] * len(self.mesh))], self.whole)

    def taken(self, node: str, source: str, number: int) -> None:
        """Note one of several results."""
        dims, places = self.made[source][number]
        self._note(node, [(dims, places)], self._in_words(dims, places))

    def _note(self, node: str, made: list[tuple[Dims | None, list[Place]]], layout: Layout) -> None:
        self.made[node], self.laid[node] = made, layout

    def run(self, node: Node, results: int) -> Ran:
        """Return how a node runs, and note what it makes."""
        known = self.seen.nodes.get(node.name)
        given = [self.made[source.name][0] for source in tensors(node)]
        refused: dict[int, str] = {}
        while True:
            places = self._places(node, known, given, refused, results)
            try:
                ran = self._ran(node, known, places, refused)
                if not makes(
                    node, [one.entry() for one in ran.inputs], [one.entry() for one in ran.outputs], self.mesh
                ):
                    raise _Unsayable(_first(places, refused), "PyTorch's kernel makes another shape of the part")
            except _Unsayable as error:
                if error.mesh in refused:
                    raise
                refused[error.mesh] = error.why
                continue
            outs = known.outputs if known is not None and len(known.outputs) == results else (None,) * results
            self._note(node.name, list(zip(outs, places.outputs, strict=True)), ran.outputs[0])
            return ran

    def _places(
        self,
        node: Node,
        known: NodeSeen | None,
        given: Sequence[tuple[Dims | None, list[Place]]],
        refused: dict[int, str],
        results: int,
    ) -> _Places:
        places = _Places([[] for _ in given], [[] for _ in range(results)])
        for number in range(len(self.mesh)):
            ins, outs = [EVERYWHERE] * len(given), [EVERYWHERE] * results
            if known is not None and number not in refused and len(known.outputs) == results:
                if known.view and len(given) == 1:
                    ins, outs = [given[0][1][number]], [given[0][1][number]]
                elif known.operator is not None:
                    option = self.options[known.operator][number]
                    why = cannot(node, known, self._loops(option))
                    if why:
                        refused[number] = why
                    else:
                        ins, outs = self._split(node, known, option)
            for some, one in zip((*places.inputs, *places.outputs), (*ins, *outs), strict=True):
                some.append(one)
        return places

    def _loops(self, option: Option) -> frozenset[str]:
        return frozenset(option.split.loops if option.split is not None else ())

    def _split(self, node: Node, known: NodeSeen, option: Option) -> tuple[list[Place], list[Place]]:
        """Split a node along one mesh dim."""
        if option.split is None:
            place = {"pending": Place(WHOLE, PARTIAL), "partial": Place(PARTIAL, WHOLE)}.get(option.name, EVERYWHERE)
            floating = [source.meta["val"].is_floating_point() for source in tensors(node)]
            return [place if real else EVERYWHERE for real in floating], [place] * len(known.outputs)
        loops = self._loops(option)
        axes = [_cut(dims, loops) for dims in (*known.inputs, *known.outputs)]
        if all(axis is None for axis in axes):
            return [EVERYWHERE] * len(known.inputs), [EVERYWHERE] * len(known.outputs)
        outs = axes[len(known.inputs) :]
        partial = outs[0] is None and not _inside(known, loops)
        bias = bias_of(node) if partial else None
        ins = [
            Place(axis, axis) if axis is not None else Place(PARTIAL, WHOLE) if at == bias else Place(WHOLE, PARTIAL)
            for at, axis in enumerate(axes[: len(known.inputs)])
        ]
        rest = Place(PARTIAL, WHOLE) if partial else EVERYWHERE
        made = [
            Place(axis, axis) if axis is not None else rest if dims is not None else EVERYWHERE
            for axis, dims in zip(outs, known.outputs, strict=True)
        ]
        return ins, made

    def _ran(self, node: Node, known: NodeSeen | None, places: _Places, refused: Mapping[int, str]) -> Ran:
        ins = known.inputs if known is not None else (None,) * len(places.inputs)
        outs = known.outputs if known is not None and len(known.outputs) == len(places.outputs) else None
        inputs = tuple(self._in_words(dims, row) for dims, row in zip(ins, places.inputs, strict=True))
        outputs = tuple(
            self._in_words(dims, row)
            for dims, row in zip(outs or (None,) * len(places.outputs), places.outputs, strict=True)
        )
        sums = [n for n, place in enumerate(places.outputs[0]) if mean(node) and place.forward == PARTIAL]
        sums = [n for n in sums if any(row[n].forward >= 0 for row in places.inputs)]
        names = tuple((self.mesh[number].name, why) for number, why in refused.items())
        return Ran(inputs, outputs, names, prod(self.mesh[n].size for n in sums))

    def _in_words(self, dims: Dims | None, places: Sequence[Place]) -> Layout:
        """Write a layout in words. Raises _Unsayable."""
        if all(place == EVERYWHERE for place in places):
            return self.whole
        at: dict[int, tuple[int, int]] = {}
        for position, leaves in enumerate(dims or ()):
            for index, leaf in enumerate(leaves):
                at.setdefault(leaf.axis, (position, index))
        starts: list[set[int]] = [{0} for _ in dims or ()]
        parts: dict[tuple[int, int], int] = {}
        for number, place in enumerate(places):
            for axis in {place.forward, place.backward} - {WHOLE, PARTIAL}:
                if axis not in at:
                    raise _Unsayable(number, "the dim that is cut is not there in this view")
                position, index = at[axis]
                starts[position].add(index)
                parts[at[axis]] = parts.get(at[axis], 1) * self.mesh[number].size
                assert dims is not None
                size = dims[position][index].size
                if size % parts[at[axis]]:
                    raise _Unsayable(number, f"{size} do not divide into {parts[at[axis]]} parts")
        counted: dict[tuple[int, int], int] = {}
        factors = []
        for position, some in enumerate(starts):
            for index in sorted(some):
                counted[position, index] = len(counted)
            if len(some) > 1:
                borders = sorted(some)
                leaves = (dims or ())[position]
                outer = [prod(leaf.size for leaf in leaves[a:b]) for a, b in pairwise(borders)]
                factors.append((position, tuple(outer)))

        def word(place: int) -> str:
            named = {WHOLE: "Replicate()", PARTIAL: "Partial()"}
            return named.get(place) or f"Shard({counted[at[place]]})"

        return Layout(
            tuple(word(place.forward) for place in places),
            tuple(word(place.backward) for place in places),
            tuple(factors),
        )


def _cut(dims: Dims | None, loops: frozenset[str]) -> int | None:
    """Return the first axis that has one of the loops."""
    return next((leaf.axis for leaves in dims or () for leaf in leaves if leaf.loop in loops), None)


def _inside(known: NodeSeen, loops: frozenset[str]) -> bool:
    """Tell whether the node reduces these loops inside itself, and goes on with whole results."""
    return any(split.sums for op in known.steps for split in op.splits if set(split.loops) & loops)


def _first(places: _Places, refused: Mapping[int, str]) -> int:
    """Return the first mesh dim along which something is cut."""
    rows = (*places.inputs, *places.outputs)
    numbers = range(len(rows[0]))
    return next((n for n in numbers if n not in refused and any(row[n] != EVERYWHERE for row in rows)), -1)


def reasons(ran: Mapping[str, Ran]) -> Iterator[tuple[str, str, str]]:
    """Yield node, mesh dim and reason of all that does not run as the solver chose."""
    for name, one in ran.items():
        for mesh, why in one.whole:
            yield name, mesh, why
