"""Long formulas on several lines."""

from __future__ import annotations

import pytest

from symconfig.cost.formulas import formulas
from symconfig.report.symbols import broken, listed


@pytest.mark.parametrize("width", [40, 76])
@pytest.mark.parametrize("name", ["pipeline_s", "in_flight", "states_bytes", "alone_s"])
def test_the_formulas_that_are_explained_fit_and_stay_the_same(name: str, width: int) -> None:
    text = str(formulas()[name].expression)
    lines = broken(text, width)
    assert max(map(len, lines)) <= width
    assert "".join("".join(lines).split()) == "".join(text.split())


def test_a_line_begins_with_its_operator() -> None:
    first, *others = broken("aaaa*(bbbb + cccc) + dddd*(eeee - ffff)/gggg", 24)
    assert first == "aaaa*(bbbb + cccc)"
    assert [line.lstrip()[0] for line in others] == ["+", "/"]


def test_arguments_are_broken_behind_their_commas() -> None:
    assert listed(["a = 1", "b = 2", "c = 3"], 14) == ["a = 1, b = 2,", "c = 3"]
