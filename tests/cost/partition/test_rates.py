"""Seconds along one axis of a mesh, by the oracle's arithmetic of messages."""

from __future__ import annotations

import numpy as np
import pytest

from symconfig.cost.partition import rates
from symconfig.descriptor.load import load_cluster
from symconfig.descriptor.mesh import Mesh, MeshLevel, of_cluster
from symconfig.graph.layout import Kind
from tests.oracle import given, seconds
from tests.oracle.judged import cluster

MESH = of_cluster(cluster(), 4 * given.NODE)
AXES = MESH.axes()
SPEEDS = rates.seconds(AXES, MESH, cluster())
AMOUNTS = 10.0 ** np.arange(11)


@pytest.mark.parametrize("index", range(len(AXES)), ids=[axis.name for axis in AXES])
def test_collectives_take_what_the_oracle_counts_from_a_byte_to_ten_billion(index: int) -> None:
    axis, rate = AXES[index], SPEEDS[index]
    for amount in AMOUNTS.tolist():
        assert rate.cost(Kind.ALL_GATHER, amount) == pytest.approx(seconds.ring(amount, axis.size, axis.stride))
        assert rate.cost(Kind.ALL_REDUCE, amount) == pytest.approx(
            seconds.ring(amount, axis.size, axis.stride, passes=2)
        )
        assert rate.cost(Kind.ALL_TO_ALL, amount) == pytest.approx(seconds.all_to_all(amount, axis.size, axis.stride))
        assert rate.send(amount) == pytest.approx(seconds.send(amount, axis.size, axis.stride))


def test_the_axes_are_of_both_levels() -> None:
    assert {axis.level for axis in AXES} == {"nvlink", "spine"}
    assert [rate.size for rate in SPEEDS] == [axis.size for axis in AXES]


def test_links_between_pairs_are_a_mesh() -> None:
    amd = load_cluster("mi300x")
    found = rates.levels(of_cluster(amd, 16), amd)
    assert [found[f"level{index}_mesh"] for index in (0, 1)] == [1.0, 0.0]


def test_one_gpu_has_no_links() -> None:
    assert rates.levels(of_cluster(cluster(), 1), cluster()) == {}


def test_elements_that_leave_a_rank_do_not_depend_on_the_link() -> None:
    for axis, rate in zip(AXES, rates.elements(AXES), strict=True):
        share = (axis.size - 1) / axis.size
        prices = [float(rate.cost(kind, 60.0)) for kind in (Kind.ALL_GATHER, Kind.ALL_REDUCE, Kind.ALL_TO_ALL)]
        assert [*prices, float(rate.send(60.0))] == [60 * share, 120 * share, 60 * share, 60.0]


def test_a_collective_over_several_axes_is_the_oracles_over_all_of_their_ranks() -> None:
    """Neighbours from the first axis on, of several levels too: one axis after the other adds up to it."""
    for amount in AMOUNTS.tolist():
        group, sums = 0, dict.fromkeys((Kind.ALL_GATHER, Kind.ALL_REDUCE, Kind.ALL_TO_ALL), 0.0)
        for index, rate in enumerate(SPEEDS):
            sums = {kind: sums[kind] + float(rate.cost(kind, amount, group)) for kind in sums}
            group += rate.step
            ranks = AXES[index].stride * AXES[index].size
            assert sums[Kind.ALL_GATHER] == pytest.approx(seconds.ring(amount, ranks, 1))
            assert sums[Kind.ALL_REDUCE] == pytest.approx(seconds.ring(amount, ranks, 1, passes=2))
            assert sums[Kind.ALL_TO_ALL] == pytest.approx(seconds.all_to_all(amount, ranks, 1))


def test_a_group_with_gaps_in_two_levels_has_the_time_of_its_members_alone() -> None:
    """Every second GPU of a node and every node: half of the node's links cross the border."""
    inner, outer = SPEEDS[1:3], SPEEDS[3:]
    size, group, total = 1, 0, 0.0
    for rate in (*inner, *outer):
        total, group, size = total + float(rate.cost(Kind.ALL_GATHER, 1e10, group)), group + rate.step, size * rate.size
    assert total == pytest.approx(seconds.ring(1e10, size, 2))


def test_on_links_between_pairs_a_group_of_all_has_all_links() -> None:
    """Eight GPUs with a link between each two: a group of n has n - 1 of seven links, however the mesh is cut."""
    bandwidth = 7e11
    mesh = Mesh((MeshLevel("xgmi", 8, bandwidth, 0.0, mesh=True),))
    share = cluster().kernels.link_efficiency.value
    for cuts in (((8,),), ((2, 4),), ((2, 2, 2),)):
        group, total = 0, 0.0
        for rate in rates.seconds(mesh.axes(cuts), mesh, cluster()):
            total, group = total + float(rate.cost(Kind.ALL_GATHER, 1e10, group)), group + rate.step
        assert total == pytest.approx(7 / 8 * 1e10 / (bandwidth * share))
