"""Way and orders of axes are counted out."""

from __future__ import annotations

from itertools import pairwise, permutations
from math import comb, prod

import pytest

from symconfig.descriptor.mesh import Axis, Mesh, MeshLevel
from symconfig.solve.partition.degrees import way
from symconfig.solve.partition.every import complexity, dense, inside, orders
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
    for asked, roles in outside:
        assert asked.degrees.world_size == whole
        tensor = Role.TP_SP if asked.sequence_parallel else Role.TP
        context = Role.ULYSSES if asked.cp_comm == "a2a" else Role.CP
        assert (asked.degrees.tp, asked.degrees.cp) == (ranks(axes, roles, tensor), ranks(axes, roles, context))
        assert set(roles) <= {tensor, context, Role.DP}
        assert roles == sorted(roles, key=[tensor, context, Role.DP].index)
        assert asked.degrees.tp > 1 or not asked.sequence_parallel
        assert asked.degrees.cp > 1 or asked.cp_comm == "p2p"
    for asked, roles in within:
        assert (asked.degrees.etp, asked.degrees.ep) == (ranks(axes, roles, Role.ETP), ranks(axes, roles, Role.EP))
        assert roles == sorted(roles, key=[Role.ETP, Role.EP, Role.EDP].index)


def test_without_experts_nothing_lies_inside_them() -> None:
    assert list(inside(EVEN, experts=False)) == [(way(), [Role.EDP] * 3)]


def test_the_plainest_has_fewest_degrees_above_one() -> None:
    rising = [
        way(dp=8), way(tp=2, dp=4), way(cp=2, dp=4), way(tp=4, dp=2), way(dp=8, etp=2),
        way(dp=8, ep=2), way(cp=2, dp=4, cp_comm="a2a"), way(tp=2, dp=4, sequence_parallel=True),
        way(tp=2, cp=2, dp=2), way(tp=2, dp=4, ep=2), way(tp=2, cp=2, dp=2, ep=2, etp=2),
    ]  # fmt: skip
    known = sorted(rising, key=complexity)
    each = [(one.degrees.tp, one.degrees.cp, one.degrees.ep, one.degrees.etp) for one in known]
    counts = [sum(degree > 1 for degree in degrees) for degrees in each]
    assert counts == sorted(counts)
    assert known[0] == way(dp=8)
    assert known.index(way(tp=2, dp=4)) < known.index(way(tp=2, dp=4, sequence_parallel=True))
    assert known.index(way(cp=2, dp=4)) < known.index(way(cp=2, dp=4, cp_comm="a2a"))
    assert known.index(way(tp=2, dp=4)) < known.index(way(tp=4, dp=2))
