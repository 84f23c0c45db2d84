"""Problems are collected in all places, and raised together."""

from __future__ import annotations

import pytest

from symconfig.errors import FailedError, InputError, Problem, Problems


def _wrong(what: str) -> int:
    raise InputError(what)


def test_all_problems_are_raised_together_each_once() -> None:
    problems = Problems([Problem("one")])
    assert problems.collect(lambda: _wrong("two.")) is None
    assert problems.read(_wrong, "one") is None
    with pytest.raises(InputError) as raised:
        problems.check()
    assert str(raised.value) == "one.\ntwo."
    with pytest.raises(InputError, match="two"):
        problems.need(7)  # a value beside which others are wrong


def test_values_are_passed_on_where_nothing_is_wrong() -> None:
    problems = Problems()
    assert problems.read(_wrong, None) is None
    assert problems.need(problems.read(len, "four")) == 4
    problems.check()


def test_other_errors_are_not_collected() -> None:
    def fails() -> None:
        raise FailedError("here")

    with pytest.raises(FailedError):
        Problems().collect(fails)
