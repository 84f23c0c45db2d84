"""Sizes as products of named symbols, with the arithmetic of fractions."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from symconfig.graph.dims import ONE, Monomial

X, Y = Monomial.of("x"), Monomial.of("y")


exponents = st.dictionaries(st.sampled_from("abc"), st.integers(-3, 3))


@settings(deadline=None)
@given(exponents, exponents)
def test_monomials_multiply_as_numbers_do(first: dict[str, int], second: dict[str, int]) -> None:
    values = {"a": 2.0, "b": 3.0, "c": 5.0}

    def made(powers: dict[str, int]) -> Monomial:
        result = Monomial()
        for name, power in powers.items():
            for _ in range(abs(power)):
                result = result * Monomial.of(name) if power > 0 else result / Monomial.of(name)
        return result

    x, y = made(first), made(second)
    assert (x * y).value(values) == pytest.approx(x.value(values) * y.value(values))
    assert (x * y) / y == x
    assert x * y == y * x


def test_what_is_no_whole_number_is_said() -> None:
    with pytest.raises(ValueError, match="whole number"):
        (X / 2).whole({"x": 3})


def test_written_for_people() -> None:
    assert str(X * X / Y * 3) == "3 * x^2 / y"
    assert str(ONE / (Y * Y)) == "1 / y^2"
    assert str(X) == "x"
