"""Seconds along one axis of a mesh, by the oracle's arithmetic of messages."""

from __future__ import annotations

import itertools
from math import prod

import numpy as np
import pytest

from symconfig.cost.partition import rates
from symconfig.descriptor.mesh import Mesh, MeshLevel, of_cluster
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
        assert rate.ring(amount) == pytest.approx(seconds.ring(amount, axis.size, axis.stride))
        assert rate.all_reduce(amount) == pytest.approx(seconds.ring(amount, axis.size, axis.stride, passes=2))
        assert rate.all_to_all(amount) == pytest.approx(seconds.all_to_all(amount, axis.size, axis.stride))
        assert rate.send(amount) == pytest.approx(seconds.send(amount, axis.size, axis.stride))


def test_the_axes_are_of_both_levels() -> None:
    assert {axis.level for axis in AXES} == {"nvlink", "spine"}
    assert [rate.size for rate in SPEEDS] == [axis.size for axis in AXES]


def test_one_gpu_has_no_links() -> None:
    assert rates.levels(of_cluster(cluster(), 1), cluster()) == {}


def test_elements_that_leave_a_rank_do_not_depend_on_the_link() -> None:
    for axis, rate in zip(AXES, rates.elements(AXES), strict=True):
        share = (axis.size - 1) / axis.size
        prices = [float(of(60.0)) for of in (rate.ring, rate.all_reduce, rate.all_to_all, rate.send)]
        assert prices == [60 * share, 120 * share, 60 * share, 60.0]


def test_elements_weigh_by_the_level_that_they_cross() -> None:
    """Counted rank by rank: who sends what to whom, when outer levels are gone through first."""
    axes = Mesh((MeshLevel("node", 4, 1e11, 1e-6), MeshLevel("network", 6, 1e10, 1e-5))).axes()
    weights = {"node": 1.0, "network": 7.0}
    for chosen in itertools.product((False, True), repeat=len(axes)):
        mine = [axis for axis, taken in zip(axes, chosen, strict=True) if taken]
        inner, outer = (prod(axis.size for axis in mine if axis.level == level) for level in weights)
        ranks, group, sums = inner * outer, 0, np.zeros(3)
        for axis, rate in zip(axes, rates.elements(axes, weights), strict=True):
            if axis in mine:
                sums += [float(of(1.0, group)) for of in (rate.ring, rate.all_reduce, rate.all_to_all)]
                group += rate.step
        # Each gets a copy of the other domains' shards over the network, and of the others of its own over the node.
        once = 7.0 * (outer - 1) / ranks + (ranks - outer) / ranks
        assert sums[:2] == pytest.approx([once, 2 * once])
        assert sums[2] == pytest.approx((7.0 * (ranks - inner) + (inner - 1)) / ranks)


def test_a_collective_over_several_axes_is_the_oracles_over_all_of_their_ranks() -> None:
    """Neighbours from the first axis on, of several levels too: one axis after the other adds up to it."""
    for amount in AMOUNTS.tolist():
        group, sums = 0, {"ring": 0.0, "all_reduce": 0.0, "all_to_all": 0.0}
        for index, rate in enumerate(SPEEDS):
            sums = {name: sums[name] + float(getattr(rate, name)(amount, group)) for name in sums}
            group += rate.step
            ranks = AXES[index].stride * AXES[index].size
            assert sums["ring"] == pytest.approx(seconds.ring(amount, ranks, 1))
            assert sums["all_reduce"] == pytest.approx(seconds.ring(amount, ranks, 1, passes=2))
            assert sums["all_to_all"] == pytest.approx(seconds.all_to_all(amount, ranks, 1))


def test_a_group_with_gaps_in_two_levels_has_the_time_of_its_members_alone() -> None:
    """Every second GPU of a node and every node: half of the node's links cross the border."""
    inner, outer = SPEEDS[1:3], SPEEDS[3:]
    size, group, total = 1, 0, 0.0
    for rate in (*inner, *outer):
        total, group, size = total + float(rate.ring(1e10, group)), group + rate.step, size * rate.size
    assert total == pytest.approx(seconds.ring(1e10, size, 2))


def test_on_links_between_pairs_a_group_of_all_has_all_links() -> None:
    """Eight GPUs with a link between each two: a group of n has n - 1 of seven links, however the mesh is cut."""
    bandwidth = 7e11
    mesh = Mesh((MeshLevel("xgmi", 8, bandwidth, 0.0, mesh=True),))
    share = cluster().kernels.link_efficiency.value
    for cuts in (((8,),), ((2, 4),), ((2, 2, 2),)):
        group, total = 0, 0.0
        for rate in rates.seconds(mesh.axes(cuts), mesh, cluster()):
            total, group = total + float(rate.ring(1e10, group)), group + rate.step
        assert total == pytest.approx(7 / 8 * 1e10 / (bandwidth * share))
