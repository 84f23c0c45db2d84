"""The space: every strategy of a node on the axes of a mesh, as rows of options; and what a row means, as text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np
from numpy.typing import NDArray

from symconfig.cost.partition.costs import Costs
from symconfig.cost.partition.work import Rows, counted
from symconfig.descriptor.mesh import Axis
from symconfig.errors import InputError
from symconfig.graph.layout import FLAT, PARTIAL
from symconfig.graph.operator import Work
from symconfig.graph.program.net import Net, Node, Port

Array = NDArray[np.float64]
MOST = 20_000  # rows of one node before the exact solver refuses it: pairs of rows would not fit in memory
MOST_ROWS = 200_000  # combinations of one node's options, that are priced at once


def spaces(costs: Costs, axes: Sequence[Axis]) -> list[Rows] | None:
    """Return every node's rows, [rows, axes], that its dims and pins allow; None if a node has none.

    Operators and copies have the rows of `every_row` and `shared_out`, parameters those of `_parameter_rows`. Raise
    InputError if a node has more than MOST rows.
    """
    nodes, result = costs.net.nodes, [np.zeros((1, len(axes)), dtype=np.int64)] * len(costs.net.nodes)
    for index, node in enumerate(nodes):
        if node.parameter is None:
            result[index] = shared_out(costs, node, every_row(node, costs.net, axes))
            if len(result[index]) > MOST:
                raise InputError(
                    f"{node.name} can be split in more ways than can be compared in pairs",
                    got=f"{len(result[index]):,}",
                    need=f"at most {MOST:,}",
                    hint="--solver adaptive, or fewer and larger mesh axes",
                )
    for index, node in enumerate(nodes):
        if node.parameter is not None:
            result[index] = _parameter_rows(index, costs, axes, result)
    return result if all(map(len, result)) else None


def allowed(net: Net, node: Node, rows: Rows, axes: Sequence[Axis]) -> NDArray[np.bool_]:
    """Return for each row (an option per mesh axis) whether its parts divide the sizes of all loops and dims: [rows].

    The parts of a loop or dim are the product of the axes that split it. Options without parts (whole, flat, pending,
    partial) are always allowed.
    """
    members: dict[str, NDArray[np.bool_]] = {}
    for index, option in enumerate(node.options):
        for loop in option.split.loops if option.split else (option.name,) if option.parts else ():
            members.setdefault(loop, np.zeros(len(node.options), dtype=bool))[index] = True
    if not members:
        return np.ones(len(rows), dtype=bool)
    sizes = np.array([net.program.sizes[loop] for loop in members])
    fits: NDArray[np.bool_] = (sizes[:, None] % counted(np.array([*members.values()]), rows, axes) == 0).all(axis=0)
    return fits


def shared_out(costs: Costs, node: Node, rows: Rows) -> Rows:
    """Return the rows that split an operator's products into the most parts, for the objective symtensor only.

    That objective has no computation cost, so repeated products would look free. All rows are returned for the
    objective `time`, and for parameters, copies and memory-bound operators.
    """
    if costs.timed or node.operator is None or node.operator.work is Work.MEMORY:
        return rows
    splits = np.array([option.split is not None for option in node.options])
    parts = counted(splits, rows, costs.rates)
    fewest: Rows = rows[parts == parts.max()]
    return fewest


def as_fixed(node: Node, rows: Rows, axes: Sequence[Axis]) -> NDArray[np.bool_]:
    """Return for each row (an option per mesh axis) whether it satisfies all pins of the node: [rows].

    A pin: the product of the axes (of its level) that take one of its options is `parts`. All True without pins.
    """
    fits = np.ones(len(rows), dtype=bool)
    for fixed in node.fixed:
        sizes = [axis.size if fixed.level in ("", axis.level) else 1 for axis in axes]
        fits &= np.where(np.array(fixed.options)[rows], np.array(sizes, dtype=np.int64), 1).prod(axis=1) == fixed.parts
    return fits


def all_rows(node: Node, axes: Sequence[Axis]) -> Rows:
    """Return every combination of a node's options, one for each axis, the first axis fastest: [options^axes, axes].

    Raise InputError if they are more than MOST_ROWS.
    """
    options = len(node.options)
    count = options ** len(axes)
    if count > MOST_ROWS:
        raise InputError(
            f"{node.name} can be split in more ways than can be priced at once",
            got=f"{count:,} on {len(axes)} axes of the mesh",
            need=f"at most {MOST_ROWS:,}",
            hint="a mesh with fewer levels",
        )
    return np.arange(count)[:, None] // options ** np.arange(len(axes), dtype=np.int64) % options


def every_row(node: Node, net: Net, axes: Sequence[Axis]) -> Rows:
    """Return all rows of a node, an option per mesh axis, that the dims' divisors and the pins allow: [rows, axes]."""
    rows = all_rows(node, axes)
    return rows[allowed(net, node, rows, axes) & as_fixed(node, rows, axes)]


def _parameter_rows(index: int, costs: Costs, axes: Sequence[Axis], spaces: Sequence[Rows]) -> Rows:
    """Return a parameter's rows, [rows, axes]: each axis split as in a row of one of its consumers, else whole or flat.

    spaces: rows of the other nodes. A parameter without consumers is whole or flat on every axis; a pinned one has
    every row that its pins allow. Rows with flat (ZeRO) options are left out unless `costs.flat`.
    """
    net, node = costs.net, costs.net.nodes[index]
    if node.fixed:
        every = every_row(node, net, axes)
        return (
            every if costs.flat else every[~np.array([option.zero > 0 for option in node.options])[every].any(axis=1)]
        )
    free = [n for n, option in enumerate(node.options) if not option.parts and (costs.flat or not option.zero)]
    at = {place.forward: n for n, place in enumerate(node.ports[0].places) if node.options[n].parts}
    uses: set[tuple[int, ...]] = set()
    for number in net.links_of[index]:
        link = net.links[number]
        port, rows = net.nodes[link.consumer].ports[link.taken], spaces[link.consumer]
        # -1: not split there
        code = np.array([at[p.forward] if p.forward in at and p.forward != FLAT else -1 for p in port.places])
        uses.update(map(tuple, np.unique(code[rows], axis=0).tolist()))
    if not uses:
        uses = {(-1,) * len(axes)}
    result: set[tuple[int, ...]] = set()
    for use in uses:
        result.update(product(*(free if at < 0 else (at,) for at in use)))
    return np.array(sorted(result), dtype=np.int64)


WORDS = {"whole": "the same", "pending": "gradient in sums", "partial": "in sums"}


@dataclass(frozen=True, slots=True)
class Part:
    """The axes of one level that do the same, together."""

    level: str
    size: int

    def __str__(self) -> str:
        """Return `8·nvlink`."""
        return f"{self.size}·{self.level}"


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
            (names or {}).get(dim, dim) + "".join(f"/{part}" for part in parts)
            for dim, parts in zip(self.dims, self.parts, strict=True)
        ]
        result = f"{self.tensor}[{', '.join(dims)}]"
        for word, parts in (("sums over", self.partial), ("flat over", self.flat)):
            if parts:
                result += f" {word} {', '.join(map(str, parts))}"
        return result


def layout(port: Port, row: Sequence[int], axes: Sequence[Axis], backward: bool = False) -> Layout:
    """Return the layout of the port's tensor under a row (an option per mesh axis); `backward`: that of its gradient.

    Axes of one level on one dim are joined to one part.
    """

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
    """Return (option's name, parts) for each option in a row (an option per mesh axis); option 0 (whole) is last.

    parts: per level the ranks of the axes that take the option.
    """
    taken = sorted(set(row), key=lambda option: (option == 0, option))
    return tuple((node.options[o].name, gathered(axes, [option == o for option in row])) for o in taken)


def worded(node: Node, row: Sequence[int], axes: Sequence[Axis], name: Callable[[str], str] = str) -> str:
    """Return a row (an option per mesh axis) as text, such as `batch over 8·rail, heads over 8·nvlink`.

    It is "one rank" without axes. The options whole, pending and partial are named by WORDS. name: maps any other
    option's name to its display name.
    """
    uses = [
        f"{WORDS.get(option, name(option))} over {', '.join(map(str, parts))}"
        for option, parts in does(node, row, axes)
        if parts
    ]
    return ", ".join(uses) or "one rank"
