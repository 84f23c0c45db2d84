"""Amounts with units: what is read, and what is said of a unit that is none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from symconfig.descriptor.amounts import PEAK, SIZE, SPAN, SPEED, Kind, amount


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("96GB", SIZE, 96e9),
        ("96 GB", SIZE, 96e9),
        ("90GiB", SIZE, 90 * 2**30),
        ("1.5TB", SIZE, 1.5e12),
        ("300GB/s", SPEED, 300e9),
        ("400Gb/s", SPEED, 50e9),
        ("400Gbps", SPEED, 50e9),
        ("1.6Tbit/s", SPEED, 200e9),
        ("5us", SPAN, 5e-6),
        ("3.4 µs", SPAN, 3.4e-6),
        ("989.4 TFLOP/s", PEAK, 989.4e12),
        ("2PFLOPS", PEAK, 2e15),
    ],
)
def test_an_amount_is_exactly_what_its_digits_say(text: str, kind: Kind, value: float) -> None:
    assert amount(text, kind) == value


@pytest.mark.parametrize(
    ("text", "kind", "why"),
    [
        ("96", SIZE, "has no unit"),
        ("much", SIZE, "is no number with a unit"),
        ("-3GB", SIZE, "is no number with a unit"),
        ("96Gb", SIZE, "Gb counts bits, and a memory is counted in bytes"),
        ("96GB/s", SIZE, "GB/s is a speed"),
        ("96gb", SIZE, "gb is no unit of it, GB is"),
        ("300GB", SPEED, "GB is no speed without /s"),
        ("300Gb", SPEED, "Gb is no speed without /s"),
        ("300gb/s", SPEED, "gb/s is neither Gb/s (bits) nor GB/s (bytes)"),
        ("5 sec", SPAN, "sec is no unit of it"),
    ],
)
def test_a_unit_that_is_none_is_refused_with_the_reason(text: str, kind: Kind, why: str) -> None:
    with pytest.raises(ValueError, match=r".") as error:
        amount(text, kind)
    assert str(error.value) == why


@given(st.decimals(min_value=0, max_value=10**6, places=3))
def test_a_byte_is_eight_bits_at_every_speed(number: object) -> None:
    assert amount(f"{number}GB/s", SPEED) == pytest.approx(8 * amount(f"{number}Gb/s", SPEED))
