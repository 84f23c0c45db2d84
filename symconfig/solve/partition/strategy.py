"""What a row of options means: into how many parts a tensor's dims are cut, and which level carries each part."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from symconfig.descriptor.mesh import Axis
from symconfig.graph.layout import FLAT, PARTIAL
from symconfig.graph.program.net import Node, Port

WORDS = {"whole": "the same", "pending": "gradient in sums", "partial": "in sums"}


@dataclass(frozen=True, slots=True)
class Part:
    """The axes of one level that do the same, together."""

    level: str
    size: int


@dataclass(frozen=True, slots=True)
class Layout:
    """A tensor's layout on the ranks. parts: of each dim. partial: ranks hold sums that add up to it. flat: elements in
    one row, cut regardless of dims. Along other axes all ranks have the same.
    """

    tensor: str
    dims: tuple[str, ...]
    parts: tuple[tuple[Part, ...], ...]
    partial: tuple[Part, ...] = ()
    flat: tuple[Part, ...] = ()

    @property
    def strategy(self) -> tuple[int, ...]:
        """Return the number of parts of each dim."""
        return tuple(prod(part.size for part in parts) for parts in self.parts)

    def text(self, names: Mapping[str, str] | None = None) -> str:
        """Return the layout as text, `y[b/8·rail, s, f/8·nvlink]`, with partial sums and flat storage appended.

        names: display names of dims; a dim without one keeps its own.
        """
        dims = [
            (names or {}).get(dim, dim) + "".join(f"/{part.size}·{part.level}" for part in parts)
            for dim, parts in zip(self.dims, self.parts, strict=True)
        ]
        result = f"{self.tensor}[{', '.join(dims)}]"
        for word, parts in (("sums over", self.partial), ("flat over", self.flat)):
            if parts:
                result += f" {word} " + ", ".join(f"{part.size}·{part.level}" for part in parts)
        return result


def layout(port: Port, row: Sequence[int], axes: Sequence[Axis], backward: bool = False) -> Layout:
    """Return the layout of the port's tensor under a row, or with `backward` that of its gradient."""

    def place(option: int) -> int:
        return port.places[option].backward if backward else port.places[option].forward

    def parts(wanted: int) -> tuple[Part, ...]:
        return gathered(axes, [place(option) == wanted for option in row])

    dims = tuple(parts(position) for position in range(len(port.sizes)))
    return Layout(port.tensor.name, port.tensor.dims, dims, parts(PARTIAL), parts(FLAT))


def gathered(axes: Sequence[Axis], those: Sequence[bool]) -> tuple[Part, ...]:
    """Return the selected axes joined to one part per level, innermost first. those: whether each axis is selected."""
    sizes: dict[str, int] = {}
    for axis, mine in zip(axes, those, strict=True):
        if mine:
            sizes[axis.level] = sizes.get(axis.level, 1) * axis.size
    return tuple(Part(level, size) for level, size in sizes.items())


def does(node: Node, row: Sequence[int], axes: Sequence[Axis]) -> tuple[tuple[str, tuple[Part, ...]], ...]:
    """Return the options in a row, each with the parts (level and ranks) that take it; the unsplit option is last."""
    taken = sorted(set(row), key=lambda option: (option == 0, option))
    return tuple((node.options[o].name, gathered(axes, [option == o for option in row])) for o in taken)


def worded(node: Node, row: Sequence[int], axes: Sequence[Axis], name: Callable[[str], str] = str) -> str:
    """Return a row as text, `batch over 8·rail, heads over 8·nvlink`, or "one rank" without axes.

    name: maps an option's name to its display name.
    """
    uses = [
        f"{WORDS.get(option, name(option))} over " + ", ".join(f"{part.size}·{part.level}" for part in parts)
        for option, parts in does(node, row, axes)
        if parts
    ]
    return ", ".join(uses) or "one rank"
