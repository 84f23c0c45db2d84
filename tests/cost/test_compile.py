"""What runs is what formulas.py says: compiled again and compared, and evaluated against SymPy itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from symconfig.cost import compiled
from symconfig.cost.compile import module_source
from symconfig.cost.formulas import Formula, formulas

sp = pytest.importorskip("sympy")
FORMULAS = formulas()
SWITCHES = {"zero1", "zero2", "zero3", "hide", "optimizer_on_device", "once"}
WHOLE = {
    "whole",
    "largest",
    "chunks",
    "bucket",
    "batch",
    "m",
    "n",
    "k",
    "compute_units",
    "ranks",
    "stride",
    "copies",
    "num_microbatches",
    "pp",
    "vpp",
    "stage",
}


def test_the_compiled_module_is_what_the_formulas_give() -> None:
    assert Path(compiled.__file__).read_text(encoding="utf-8") == module_source()


def exact(formula: Formula, values: dict[str, float]) -> float:
    """The expression through SymPy's mpmath printer, to 30 digits: no NumPy and no common subexpressions."""
    mpmath = pytest.importorskip("mpmath")
    own = {"maximum": max, "minimum": min, "greater": lambda a, b: mpmath.mpf(a > b)}
    function = sp.lambdify(formula.arguments, formula.expression, modules=[own, "mpmath"], cse=False)
    with mpmath.workdps(30):
        return float(function(**{name: mpmath.mpf(value) for name, value in values.items()}))


def number(name: str) -> st.SearchStrategy[float]:
    if name in SWITCHES or name.endswith("_mesh"):
        return st.sampled_from([0.0, 1.0])
    if name.startswith("level") and name.endswith("_size"):  # levels grow outwards
        smallest = 4.0 ** int(name[len("level")])
        return st.sampled_from([2 * smallest, 4 * smallest])
    if name in WHOLE or name.endswith("_shards"):
        return st.integers(1, 4096).map(float)
    return st.floats(1e-3, 1e6)


@pytest.mark.parametrize("name", FORMULAS)
@given(data=st.data())
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow], phases=[Phase.generate])
def test_numpy_gives_what_sympy_gives(name: str, data: st.DataObject) -> None:
    formula = FORMULAS[name]
    values = {argument: data.draw(number(argument), argument) for argument in formula.arguments}
    got = float(getattr(compiled, name)(**values))
    assert got == pytest.approx(exact(formula, values), rel=1e-9)


@pytest.mark.parametrize("name", FORMULAS)
def test_every_formula_takes_arrays_and_names_its_unit_and_source(name: str) -> None:
    formula = FORMULAS[name]
    ones = {argument: np.full((3, 1), 2.0) for argument in formula.arguments}
    ones[formula.arguments[0]] = np.full((1, 5), 2.0)
    assert np.broadcast_shapes(np.shape(getattr(compiled, name)(**ones)), (3, 5)) == (3, 5)
    assert formula.unit
    assert formula.source
    assert {symbol.name for symbol in formula.expression.free_symbols} <= set(formula.arguments)
