"""SymPy -> NumPy: `python -m symconfig.cost.compile` writes `compiled.py`, which ships: importing SymPy takes a second.

A test compiles again and compares, so that what runs is always what `formulas.py` says.
"""

from __future__ import annotations

from pathlib import Path

import sympy as sp
from sympy.printing.numpy import NumPyPrinter

from symconfig.cost.formulas import Formula, formulas

_HEADER = '''"""Made by `python -m symconfig.cost.compile` from formulas.py. Do not edit.

Arguments are float64 arrays, numbers or terms of a tape that broadcast together.
"""

from typing import Any

import numpy as np

from symconfig.cost.either import greater, maximum, minimum
'''


_WORDS = {"s": "seconds"}


class _Printer(NumPyPrinter):  # type: ignore[misc]  # SymPy has no types
    _module = "np"

    def _print_Function(self, expr: sp.Function) -> str:
        return f"{expr.func.__name__}({', '.join(self._print(argument) for argument in expr.args)})"

    def _print_Rational(self, expr: sp.Rational) -> str:
        return f"{expr.p}.0/{expr.q}.0"


def source(formula: Formula) -> str:
    """Write a formula as a NumPy function, common subexpressions first."""
    printer = _Printer({"fully_qualified_modules": True})
    shared, (result,) = sp.cse(formula.expression, symbols=sp.numbered_symbols("x"), order="canonical")
    arguments = ", ".join(f"{name}: Any" for name in formula.arguments)
    lines = [
        f"def {formula.name}({arguments}) -> Any:",
        f'    """Return {_WORDS.get(formula.unit, formula.unit)}: {formula.source}."""',
    ]
    lines += [f"    {symbol} = {printer.doprint(value)}" for symbol, value in shared]
    lines.append(f"    return {printer.doprint(result)}")
    return "\n".join(lines).replace("numpy.", "np.")


def module_source() -> str:
    """Write the whole compiled module."""
    return "\n\n".join([_HEADER, *(source(formula) + "\n" for formula in formulas().values())])


if __name__ == "__main__":
    Path(__file__).with_name("compiled.py").write_text(module_source(), encoding="utf-8")
