"""Every formula on numbers, on arrays and on a tape: what a tape records is what NumPy works out, anywhere."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, getmembers, isfunction, signature
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from symconfig.cost import formulas
from symconfig.cost.tape import Tape

FORMULAS = {
    name: formula
    for name, formula in getmembers(formulas, isfunction)
    if formula.__module__ == formulas.__name__ and not name.startswith("_")
    if "machine" not in signature(formula).parameters  # those are given numbers alone
}
LEVELS = [f"level{i}_{name}" for i in range(formulas.LEVELS) for name in ("size", "bytes_per_s", "latency_s", "mesh")]
SWITCHES = {"hide", "once"}
WHOLE = {"whole", "largest", "chunks", "bucket", "ranks", "stride", "copies", "num_microbatches", "pp", "vpp", "stage"}


def arguments(formula: Callable[..., Any]) -> list[str]:
    named = signature(formula).parameters.values()
    return [name for one in named for name in (LEVELS if one.kind is Parameter.VAR_KEYWORD else [one.name])]


def number(name: str) -> st.SearchStrategy[float]:
    if name in SWITCHES or name.endswith("_mesh"):
        return st.sampled_from([0.0, 1.0])
    if name.startswith("level") and name.endswith("_size"):  # levels grow outwards
        smallest = 4.0 ** int(name[len("level")])
        return st.sampled_from([2 * smallest, 4 * smallest])
    if name == "contention":
        return st.floats(0.0, 0.9)
    if name in WHOLE:
        return st.integers(1, 4096).map(float)
    return st.floats(1e-3, 1e6)


@pytest.mark.parametrize("name", FORMULAS)
@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_a_tape_records_what_numpy_gives(name: str, data: st.DataObject) -> None:
    formula = FORMULAS[name]
    here, there = ({each: data.draw(number(each), each) for each in arguments(formula)} for _ in range(2))
    tape = Tape()
    traced = formula(**{each: tape.symbol(each, value) for each, value in here.items()})
    assert traced.value == pytest.approx(float(formula(**here)), rel=1e-9, abs=1e-12)
    assert tape.evaluated(there)[traced.line] == pytest.approx(float(formula(**there)), rel=1e-9, abs=1e-12)
    assert not tape.conditions  # no branch is taken by the numbers of the tape


@pytest.mark.parametrize("name", FORMULAS)
def test_arguments_broadcast_together(name: str) -> None:
    formula = FORMULAS[name]
    twos = {each: np.full((3, 1), 2.0) for each in arguments(formula)}
    twos[arguments(formula)[0]] = np.full((1, 5), 2.0)
    assert np.broadcast_shapes(np.shape(formula(**twos)), (3, 5)) == (3, 5)
