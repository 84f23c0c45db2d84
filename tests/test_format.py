"""Numbers as a person reads them, at the edges between one unit or number of digits and the next."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from symconfig.format import duration, gb_per_s, rounded, seconds

amounts = st.floats(1e-3, 1e7)


@pytest.mark.parametrize(("digits", "rate_bytes_per_s"), [("3.35", 3.35e9), ("25", 25e9), ("100", 99.96e9)])
def test_bandwidths(digits: str, rate_bytes_per_s: float) -> None:
    assert gb_per_s(rate_bytes_per_s) == digits


@pytest.mark.parametrize(("text", "rate"), [("999.9", 999.94), ("1,000", 999.96), ("1,000", 1000.0), ("3,352", 3352.0)])
def test_a_bandwidth_that_rounds_to_a_thousand_is_a_thousand(text: str, rate: float) -> None:
    assert gb_per_s(1e9 * rate) == text


@pytest.mark.parametrize(("text", "value_s"), [("999.9 ms", 0.9999), ("1.00 s", 0.99996), ("1.00 s", 1.0)])
def test_a_duration_that_rounds_to_a_second_is_a_second(text: str, value_s: float) -> None:
    assert duration(value_s) == text


@given(amounts, st.sampled_from((3, 4)))
def test_a_rounded_number_is_near_and_has_no_exponent(value: float, digits: int) -> None:
    text = rounded(value, digits)
    assert "e" not in text
    assert float(text.replace(",", "")) == pytest.approx(value, rel=0.51 * 10 ** (1 - digits))
    assert ("," in text) == (float(text.replace(",", "")) >= 1000)


@given(amounts, amounts)
def test_what_is_larger_never_reads_as_less(one: float, other: float) -> None:
    small, large = sorted((one, other))

    def read(text: str) -> float:
        figure, *unit = text.replace(",", "").split()
        return float(figure) * (1e-3 if unit == ["ms"] else 1.0)

    for form in (rounded, seconds, duration, lambda rate: gb_per_s(1e6 * rate)):
        assert read(form(small)) <= read(form(large)) or math.isclose(read(form(small)), read(form(large)))
