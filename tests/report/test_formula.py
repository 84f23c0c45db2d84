"""Long formulas on several lines."""

from __future__ import annotations

from inspect import signature

import pytest

from symconfig.cost import formulas
from symconfig.cost.tape import Tape
from symconfig.report.symbols import broken, listed
from symconfig.solve.formulas import Formulas


@pytest.mark.parametrize("width", [40, 76])
@pytest.mark.parametrize("name", ["pipeline_s", "in_flight", "states_bytes", "alone_s"])
def test_the_formulas_that_are_explained_fit_and_stay_the_same(name: str, width: int) -> None:
    formula, tape = getattr(formulas, name), Tape()
    value = formula(**{argument: tape.symbol(argument, 2.0) for argument in signature(formula).parameters})
    text = Formulas(tape, [value], whole=True).text(value.line)
    lines = broken(text, width)
    assert max(map(len, lines)) <= width
    assert "".join("".join(lines).split()) == "".join(text.split())


def test_a_line_begins_with_its_operator() -> None:
    first, *others = broken("aaaa*(bbbb + cccc) + dddd*(eeee - ffff)/gggg", 24)
    assert first == "aaaa*(bbbb + cccc)"
    assert [line.lstrip()[0] for line in others] == ["+", "/"]


def test_arguments_are_broken_behind_their_commas() -> None:
    assert listed(["a = 1", "b = 2", "c = 3"], 14) == ["a = 1, b = 2,", "c = 3"]
