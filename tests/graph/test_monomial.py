"""Sizes as products of named symbols, with the arithmetic of fractions."""

from __future__ import annotations

from fractions import Fraction

import pytest

from symconfig.graph.monomial import ONE, Monomial, product

X, Y = Monomial.of("x"), Monomial.of("y")


def test_products_and_quotients_of_coefficients_and_symbols() -> None:
    six, four = X * 6, X * Y * 4
    assert six * four == Monomial(Fraction(24), (("x", 2), ("y", 1)))
    assert six / four == Monomial(Fraction(3, 2), (("y", -1),))
    assert four / six == Monomial(Fraction(2, 3), (("y", 1),))
    assert X / X == ONE
    assert six / 3 == X * 2 == X * Fraction(2)
    assert product([six, four, Y]) == six * four * Y


def test_symbols_are_replaced_with_their_powers() -> None:
    assert (X * X / Y * 3).substitute({"x": Y * 2, "y": X}) == Y * Y / X * 12
    assert (ONE / X).substitute({"x": Y * 2}) == ONE / Y / 2
    assert X.substitute({"y": Y * 2}) == X


@pytest.mark.parametrize(("x", "y"), [(3, 2), (8, 4)])
def test_numbers(x: int, y: int) -> None:
    assert (X * X / Y * 4).value({"x": x, "y": y}) == x * x / y * 4
    assert (X * X / Y * 4).whole({"x": x, "y": y}) == x * x * 4 // y


def test_what_is_no_whole_number_is_said() -> None:
    with pytest.raises(ValueError, match="whole number"):
        (X / 2).whole({"x": 3})


def test_written_for_people() -> None:
    assert str(X * X / Y * 3) == "3 * x^2 / y"
    assert str(ONE / (Y * Y)) == "1 / y^2"
    assert str(X) == "x"
