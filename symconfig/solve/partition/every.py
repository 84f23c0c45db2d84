"""All degrees of Megatron and DeepSpeed that the axes of a mesh can carry, and the orders of those axes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod

from symconfig.descriptor.mesh import Axis
from symconfig.solve.partition.degrees import Way, way
from symconfig.solve.partition.roles import Role


def orders(axes: Sequence[Axis]) -> Iterator[tuple[int, ...]]:
    """Yield the orders of axes innermost first. Within a level their order is free; those of equal sizes need not
    change places.
    """
    levels = dict.fromkeys(axis.level for axis in axes)
    of_level = [[index for index, axis in enumerate(axes) if axis.level == level] for level in levels]
    for chosen in product(*(_ways(mine, axes) for mine in of_level)):
        yield tuple(index for indices in chosen for index in indices)


def complexity(one: Way) -> tuple[object, ...]:
    """Return what tells equals apart, the least is taken: fewer degrees above 1, and smaller ones."""
    degrees = one.degrees
    above = sum(value > 1 for value in (degrees.tp, degrees.cp, degrees.ep, degrees.etp))
    return (above, one.sequence_parallel, one.cp_comm == "a2a", degrees.tp, degrees.cp, degrees.etp, degrees.ep)


def _ways(indices: Sequence[int], axes: Sequence[Axis]) -> list[tuple[int, ...]]:
    """Return the orders of these axes that differ in sizes."""
    if not indices:
        return [()]
    firsts = {axes[index].size: index for index in reversed(indices)}
    return [
        (first, *rest)
        for first in firsts.values()
        for rest in _ways([index for index in indices if index != first], axes)
    ]


def _cuts(axes: Sequence[Axis]) -> Iterator[tuple[int, int, int, int]]:
    """Yield inner axes, axes after them, and their ranks: of all ways of cutting the axes into three runs."""
    for inner in range(len(axes) + 1):
        for middle in range(len(axes) - inner + 1):
            first, second = axes[:inner], axes[inner : inner + middle]
            yield inner, middle, prod(axis.size for axis in first), prod(axis.size for axis in second)


def dense(axes: Sequence[Axis]) -> Iterator[tuple[Way, list[Role]]]:
    """Yield the ways outside the experts, with the role of each axis."""
    ranks = prod(axis.size for axis in axes)
    for inner, middle, tp, cp in _cuts(axes):
        for tensor in (Role.TP, Role.TP_SP) if inner else (Role.TP,):
            for context in (Role.CP, Role.ULYSSES) if middle else (Role.CP,):
                roles = [tensor] * inner + [context] * middle + [Role.DP] * (len(axes) - inner - middle)
                comm = "a2a" if context is Role.ULYSSES else "p2p"
                dp = ranks // (tp * cp)
                yield way(tp, cp, dp, sequence_parallel=tensor is Role.TP_SP, cp_comm=comm), roles


def inside(axes: Sequence[Axis], experts: bool) -> Iterator[tuple[Way, list[Role]]]:
    """Yield the ways inside the experts, where there are any."""
    for inner, middle, etp, ep in _cuts(axes):
        if experts or inner + middle == 0:
            rest = len(axes) - inner - middle
            yield way(ep=ep, etp=etp), [Role.ETP] * inner + [Role.EP] * middle + [Role.EDP] * rest
