"""Seconds along one axis of a mesh, by the oracle's arithmetic of messages."""

from __future__ import annotations

import numpy as np
import pytest

from symconfig.cost.partition import rates
from symconfig.descriptor.mesh_source import of_cluster
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
        assert (rate.ring(60.0), rate.all_reduce(60.0)) == (60 * share, 120 * share)
        assert (rate.all_to_all(60.0), rate.send(60.0)) == (60 * share, 60.0)
