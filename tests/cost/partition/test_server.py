"""A parameter server's links carry every worker's gradients and weights."""

from __future__ import annotations

import pytest

from symconfig.cost.partition.server import Reach, passed_bytes, passed_s

NVLINK, RAIL = Reach(4, 1e11, 1e-6), Reach(8, 1e10, 1e-5)


def test_all_workers_but_the_server_itself_send_and_fetch() -> None:
    inner, outer = passed_bytes(4, 1, 400.0), passed_bytes(8, 4, 400.0)
    assert inner + outer == (4 * 8 - 1) * 400.0


def test_as_many_servers_as_workers_move_what_a_ring_all_reduce_moves() -> None:
    assert 2 * passed_bytes(8, 1, 100.0, servers=8) == pytest.approx(2 * 7 / 8 * 100.0)


def test_seconds_are_those_of_each_link_and_two_messages_along_each_axis() -> None:
    expected = 3 * 6e9 / 1e11 + 7 * 4 * 6e9 / 1e10 + 2 * (1e-6 + 1e-5)
    assert passed_s([NVLINK, RAIL], 4e9) + passed_s([NVLINK, RAIL], 2e9) == pytest.approx(expected)


def test_one_rank_sends_nothing() -> None:
    assert passed_s([Reach(1, 1e10, 1e-5)], 4e9) == 0.0
    assert passed_s([], 4e9) == 0.0
