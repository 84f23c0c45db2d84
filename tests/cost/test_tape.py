"""Derivatives of a tape's operations, against the rules of calculus."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from symconfig.cost.tape import Tape, maximum, minimum

X, Y = 3.0, 2.0


@pytest.mark.parametrize(
    ("expression", "slopes"),
    [
        (lambda x, y: x + y, (1.0, 1.0)),
        (lambda x, y: x - y, (1.0, -1.0)),
        (lambda x, y: x * y, (Y, X)),
        (lambda x, y: x / y, (1 / Y, -X / Y**2)),
        (lambda x, y: x**y, (Y * X ** (Y - 1), X**Y * np.log(X))),
        (lambda x, y: x.log() * y, (Y / X, np.log(X))),
        (lambda x, y: maximum(x, y), (1.0, 0.0)),
        (lambda x, y: minimum(x, y), (0.0, 1.0)),
    ],
)
def test_slopes_are_the_derivatives(expression: Callable[[Any, Any], Any], slopes: tuple[float, float]) -> None:
    tape = Tape()
    x, y = tape.symbol("x", X), tape.symbol("y", Y)
    found = tape.slopes(expression(x, y).line)
    assert (found.get("x", 0.0), found.get("y", 0.0)) == pytest.approx(slopes)
