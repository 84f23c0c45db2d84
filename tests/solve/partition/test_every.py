"""Degrees and orders of axes are counted out."""

from __future__ import annotations

from itertools import pairwise, permutations
from math import comb, prod

import pytest

from symconfig.descriptor.mesh import Axis, Mesh, MeshLevel
from symconfig.solve.partition.degrees import Degrees
from symconfig.solve.partition.every import dense, inside, orders, plainness
from symconfig.solve.partition.roles import Role

UNEVEN = Mesh((MeshLevel("nvlink", 12, 1e11, 1e-6), MeshLevel("rail", 6, 1e10, 1e-5))).axes()  # 2 x 2 x 3 and 2 x 3
EVEN = Mesh((MeshLevel("nvlink", 4, 1e11, 1e-6), MeshLevel("rail", 2, 1e10, 1e-5))).axes()


def ranks(axes: tuple[Axis, ...], roles: list[Role], *wanted: Role) -> int:
    return prod(axis.size for axis, role in zip(axes, roles, strict=True) if role in wanted)


@pytest.mark.parametrize("axes", [UNEVEN, EVEN, EVEN[:1], ()], ids=len)
def test_orders_are_all_that_differ_in_sizes_with_inner_levels_inside(axes: tuple[Axis, ...]) -> None:
    levels = [axis.level for axis in axes]
    distinct = {
        tuple(axes[index].size for index in order)
        for order in permutations(range(len(axes)))
        if [axes[index].level for index in order] == levels
    }
    found = list(orders(axes))
    assert sorted(tuple(axes[index].size for index in order) for order in found) == sorted(distinct)
    for order in found:
        same = [(axes[index].level, axes[index].size, place) for place, index in enumerate(order)]
        by_kind = [order[place] for _, _, place in sorted(same)]
        assert all(
            a < b for a, b in pairwise(by_kind) if (axes[a].level, axes[a].size) == (axes[b].level, axes[b].size)
        )


@pytest.mark.parametrize("axes", [UNEVEN, EVEN, EVEN[:1], ()], ids=len)
def test_degrees_are_those_of_three_runs_of_axes(axes: tuple[Axis, ...]) -> None:
    """Of n axes the runs of tp and cp end at any two of n + 1 places; where they are not empty, in two ways each."""
    n, whole = len(axes), prod(axis.size for axis in axes)
    outside, within = list(dense(axes)), list(inside(axes, experts=True))
    assert len(outside) == 1 + 2 * 2 * n + 4 * comb(n, 2)
    assert len(within) == comb(n + 2, 2)
    for degrees, roles in outside:
        assert degrees.ranks == whole
        tensor = Role.TP_SP if degrees.sequence_parallel else Role.TP
        context = Role.ULYSSES if degrees.cp_comm == "a2a" else Role.CP
        assert (degrees.tp, degrees.cp) == (ranks(axes, roles, tensor), ranks(axes, roles, context))
        assert set(roles) <= {tensor, context, Role.DP}
        assert roles == sorted(roles, key=[tensor, context, Role.DP].index)
        assert degrees.tp > 1 or not degrees.sequence_parallel
        assert degrees.cp > 1 or degrees.cp_comm == "p2p"
    for degrees, roles in within:
        assert (degrees.etp, degrees.ep) == (ranks(axes, roles, Role.ETP), ranks(axes, roles, Role.EP))
        assert roles == sorted(roles, key=[Role.ETP, Role.EP, Role.EDP].index)


def test_without_experts_nothing_lies_inside_them() -> None:
    assert list(inside(EVEN, experts=False)) == [(Degrees(), [Role.EDP] * 3)]


def test_the_plainest_has_fewest_degrees_above_one() -> None:
    rising = [
        Degrees(dp=8), Degrees(tp=2, dp=4), Degrees(cp=2, dp=4), Degrees(tp=4, dp=2), Degrees(dp=8, etp=2),
        Degrees(dp=8, ep=2), Degrees(cp=2, dp=4, cp_comm="a2a"), Degrees(tp=2, dp=4, sequence_parallel=True),
        Degrees(tp=2, cp=2, dp=2), Degrees(tp=2, dp=4, ep=2), Degrees(tp=2, cp=2, dp=2, ep=2, etp=2),
    ]  # fmt: skip
    known = sorted(rising, key=plainness)
    counts = [sum(degree > 1 for degree in (one.tp, one.cp, one.ep, one.etp)) for one in known]
    assert counts == sorted(counts)
    assert known[0] == Degrees(dp=8)
    assert known.index(Degrees(tp=2, dp=4)) < known.index(Degrees(tp=2, dp=4, sequence_parallel=True))
    assert known.index(Degrees(cp=2, dp=4)) < known.index(Degrees(cp=2, dp=4, cp_comm="a2a"))
    assert known.index(Degrees(tp=2, dp=4)) < known.index(Degrees(tp=4, dp=2))
