"""A search does no more work than recorded, in counts that no machine changes (tests/solve/counters.py)."""

from __future__ import annotations

import json

import pytest

from tests.solve.counters import JOBS, LIMITS, counted, excess

RECORDED: dict[str, dict[str, int]] = json.loads(LIMITS.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", JOBS)
def test_a_plan_takes_no_more_work_than_recorded(name: str) -> None:
    again = "python -m tests.solve.counters --record writes new limits, where more work is meant"
    assert not excess(counted(name), RECORDED[name]), again


def test_limits_leave_room_for_a_fifth() -> None:
    assert excess({"a": 120, "b": 100}, {"a": 100, "b": 100}) == []
    assert excess({"a": 121, "b": 100}, {"a": 100, "b": 100}) == ["a: 121, recorded 100"]


def test_work_of_a_new_kind_is_too_much() -> None:
    assert excess({"a": 1}, {}) == ["a: 1, recorded 0"]
