"""A plan's costs as formulas for a reader: by part, in lines, with each symbol's number and what moves the step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from symconfig.format import clean, picked
from symconfig.report.grid import Block, Grid

if TYPE_CHECKING:
    from symconfig.solve.plan_symbols import Known, Symbolic


_MOVERS = 12
_LONGEST = 400  # letters of a formula that is shown without --all
_WORDS = ("symbol", "unit", "from", "is")  # columns that are not numbers
NOTE = (
    "These formulas are the functions that the search evaluates, run once on symbols. A choice in them (the slowest "
    "stage, the largest tile) is a max or min, or the one that holds at this plan. The event simulation of the "
    "pipeline's schedule is no formula: simulated_pipeline and simulated_exchange are its seconds over the formulas'."
)


def blocks(symbolic: Symbolic, *, every: bool = False) -> list[Block]:
    """Return the formulas of step and memory with the most influential constants. every: with all operators'
    formulas and all symbols.
    """
    text = "\n".join(_formula_lines(symbolic, every=every))
    return [
        f"The step and the memory as formulas\n{text}",
        NOTE,
        movers(symbolic),
        *([symbols(symbolic)] if every else []),
    ]


def spaced(formula: str) -> str:
    """Return a formula with blanks around its operators so that lines can be broken there."""
    return formula.replace("**", "^").replace("*", " * ").replace("/", " / ").replace("^", "**")


def _formula_lines(symbolic: Symbolic, *, every: bool) -> Iterator[str]:
    """Yield two lines per formula: the formula and its value. every: all; else the step's parts and the first stage's
    memory, without formulas of more than _LONGEST letters.
    """
    formulas = symbolic.formulas
    memory = next(iter(symbolic.traced.memory), {})
    tops = {term.line for term in (*symbolic.traced.time.values(), *memory.values()) if hasattr(term, "line")}
    for one in formulas:
        written = formulas.text(one.line)
        if every or (one.line in tops and len(written) <= _LONGEST):
            yield f"  {one.name} = {spaced(written)}"
            yield f"    = {one.value:.6g}"


def movers(symbolic: Symbolic) -> Grid:
    """Return the table of the constants with the largest elasticity of the step time, at most _MOVERS."""
    return Grid.of(map(_row, symbolic.movers[:_MOVERS]), "What moves the step", words=_WORDS, fixed=("unit", "from"))


def symbols(symbolic: Symbolic) -> Grid:
    """Return the table of all symbols with their values."""
    every = sorted(symbolic.known, key=lambda one: (one.source, one.name))
    return Grid.of(map(_row, every), "Symbols", words=_WORDS, fixed=("unit", "from"))


def _row(one: Known) -> dict[str, str]:
    """Return a symbol's cells."""
    return {
        "symbol": one.name,
        "now": f"{one.value:.6g}",
        "unit": one.unit,
        "from": str(one.source),
        "step for 1 % more": f"{one.elasticity:+.3f} %",
        "is": clean(one.meaning),
    }


def to_dict(symbolic: Symbolic) -> dict[str, Any]:
    """Return all formulas and symbols as JSON."""
    formulas = symbolic.formulas
    return {
        "formulas": [{"name": one.name, "formula": formulas.text(one.line), "value": one.value} for one in formulas],
        "symbols": [
            {**picked(one, "name", "value", "unit"), "from": str(one.source), "is": one.meaning}
            | {"elasticity": one.elasticity}
            for one in symbolic.known
        ],
        "note": NOTE,
    }
