"""The space: every strategy of a node on the axes of a mesh, as rows of options."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from symconfig.cost.partition.costs import Costs
from symconfig.cost.partition.work import Rows
from symconfig.descriptor.mesh import Axis
from symconfig.errors import InputError, Problem
from symconfig.tensors.net import FLAT, Net, Node

ROUNDING = 1e-9
MOST = 60_000  # rows of one node before it is refused: pairs of rows would not fit in memory


def spaces(costs: Costs, axes: Sequence[Axis]) -> list[Rows]:
    """For every node all its rows, [rows, axes].

    Equal axes of one level are taken in the order of a node's dims, so that a row says how many parts of each dim lie
    on which level, and which of equal axes carries which has one answer. A parameter is split as one of its operators
    uses it; along its other axes it is whole or flat, alike on all of one level.
    """
    net = costs.net
    rank = {dim: position for position, dim in enumerate(net.program.sizes)}
    result: list[Rows | None] = [None] * len(net.nodes)
    for index, node in enumerate(net.nodes):
        if node.parameter is None:
            result[index] = _operator_rows(node, net, axes, rank)
    for index, node in enumerate(net.nodes):
        if node.parameter is not None:
            result[index] = _parameter_rows(index, costs, axes, result)
    return [rows for rows in result if rows is not None]


def within(costs: Costs, rows: Sequence[Rows], upper: float, gamma: float) -> list[Rows] | None:
    """Those rows with which a partition may still cost no more than `upper`, by the costs of nodes alone; None: none."""
    alone = []
    for index, some in enumerate(rows):
        cost, _, _, relative = costs.node(index, some)
        alone.append(cost + relative / gamma)
    least = [float(cost.min()) for cost in alone]
    spare = upper * (1 + ROUNDING) - sum(least)
    if spare < 0:
        return None
    return [some[cost <= low + spare] for some, cost, low in zip(rows, alone, least, strict=True)]


def allowed(net: Net, node: Node, rows: Rows, axes: Sequence[Axis]) -> np.ndarray:
    """[rows] whether the parts of every loop, or of every dim, divide it."""
    sizes, members = net.program.sizes, dict[str, list[int]]()
    for index, option in enumerate(node.options):
        for loop in option.split.loops if option.split else (option.name,) if option.parts else ():
            members.setdefault(loop, []).append(index)
    fits = np.ones(len(rows), dtype=bool)
    parts = np.array([axis.size for axis in axes], dtype=np.int64)
    for loop, mine in members.items():
        those = np.zeros(len(node.options), dtype=bool)
        those[mine] = True
        fits &= sizes[loop] % np.where(those[rows], parts, 1).prod(axis=1) == 0
    return fits


def _operator_rows(node: Node, net: Net, axes: Sequence[Axis], rank: dict[str, int]) -> Rows:
    order = sorted(range(len(node.options)), key=lambda index: _rank(node, index, rank))
    position = np.argsort(order)
    rows = np.zeros((1, 0), dtype=np.int64)
    for at, axis in enumerate(axes):
        rows = np.concatenate(
            [np.column_stack([rows, np.full(len(rows), option)]) for option in range(len(node.options))]
        )
        before = axes[at - 1] if at else None
        if before is not None and (before.level, before.size) == (axis.level, axis.size):
            rows = rows[position[rows[:, at]] >= position[rows[:, at - 1]]]
        rows = rows[allowed(net, node, rows, axes[: at + 1])]
        if len(rows) > MOST:
            raise InputError(
                Problem(
                    f"{node.name} can be split in more ways than can be weighed at once",
                    got=f"{len(rows)} on {at + 1} of {len(axes)} axes",
                    need=f"at most {MOST}",
                    hint="--solver adaptive, or fewer and larger mesh axes",
                )
            )
    return rows


def _rank(node: Node, index: int, rank: dict[str, int]) -> tuple[int, int]:
    """Dims as the program lists them, then what splits none."""
    option = node.options[index]
    first = option.split.loops[0] if option.split else option.name if option.parts else None
    return (rank[first], index) if first is not None else (len(rank), index)


def _parameter_rows(index: int, costs: Costs, axes: Sequence[Axis], spaces: Sequence[Rows | None]) -> Rows:
    """Split where an operator splits it, and elsewhere whole or flat."""
    net, node = costs.net, costs.net.nodes[index]
    free = [n for n, option in enumerate(node.options) if not option.parts and (costs.flat or not option.zero)]
    at = {place.forward: n for n, place in enumerate(node.ports[0].places) if node.options[n].parts}
    uses: set[tuple[int, ...]] = set()
    for number in net.links_of[index]:
        link = net.links[number]
        port, rows = net.nodes[link.consumer].ports[link.taken], spaces[link.consumer]
        assert rows is not None
        # -1: not split there
        code = np.array([at[p.forward] if p.forward in at and p.forward != FLAT else -1 for p in port.places])
        uses.update(map(tuple, np.unique(code[rows], axis=0).tolist()))
    if not uses:
        uses = {(-1,) * len(axes)}
    levels = list(dict.fromkeys(axis.level for axis in axes))
    result = set()
    for use in uses:
        open_levels = [
            level for level in levels if any(u < 0 and a.level == level for u, a in zip(use, axes, strict=True))
        ]
        for choice in product(free, repeat=len(open_levels)):
            given = dict(zip(open_levels, choice, strict=True))
            result.add(tuple(given[axis.level] if u < 0 else u for u, axis in zip(use, axes, strict=True)))
    return np.array(sorted(result), dtype=np.int64)
