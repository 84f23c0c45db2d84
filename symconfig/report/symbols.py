"""A plan's costs as formulas for a reader: by part, in lines, with each symbol's number and what moves the step."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from symconfig.format import clean, picked
from symconfig.report.grid import LEAST_WIDTH, Block, Grid

if TYPE_CHECKING:
    from symconfig.solve.formulas import Formula, Formulas
    from symconfig.solve.plan_symbols import Known, Symbolic


_STEP = "  "
# What a formula is broken at, the loosest first; a line begins with its operator, an argument ends in its comma.
_LOOSEST = (r"(?<=,) ", r" (?=[+-] )", r"(?=[*/])")


def broken(formula: str, width: int) -> list[str]:
    """Return a formula as lines of at most `width` letters; a name that is longer stays whole."""
    if len(formula) <= width:
        return [formula]
    for pattern in _LOOSEST:
        parts = list(_apart(formula, pattern))
        if len(parts) > 1:
            return _packed(parts, width, " " if pattern.endswith(("(?=[+-] )", " ")) else "")
    call = re.fullmatch(r"([^(]*\()(.+)(\)) *", formula)
    if call is None:
        return [formula]
    inner = broken(call[2], width - len(_STEP) - 1)
    return [call[1], *inner[:-1], inner[-1] + call[3]]


def _packed(parts: Sequence[str], width: int, between: str) -> list[str]:
    """Put parts on a line while they fit; one that fits no line is broken itself, and stands alone."""
    lines: list[str] = []
    alone = True
    for part in parts:
        if not alone and len(lines[-1]) + len(between) + len(part) <= width:
            lines[-1] += between + part
            continue
        first, *others = broken(part, width - len(_STEP)) if len(part) > width else [part]
        lines += [first, *(_STEP + line for line in others)]
        alone = bool(others)
    return lines


def _apart(formula: str, pattern: str) -> Iterator[str]:
    """Yield the parts between operators that are in no bracket."""
    begin = depth = 0
    for at, letter in enumerate(formula):
        depth += (letter == "(") - (letter == ")")
        sign = re.compile(pattern).match(formula, at) if depth == 0 and at else None
        if sign is not None and at > begin:
            yield formula[begin:at]
            begin = sign.end()
    yield formula[begin:]


_ROOM = LEAST_WIDTH - 4
_DEEP = 2  # steps from a part to the quantities that are shown with it
_MOVERS = 12
_LONGEST = 400  # letters of a formula that is shown without --all
_WORDS = ("symbol", "unit", "from", "is")  # columns that are not numbers
NOTE = (
    "These formulas are the functions that the search evaluates, run once on symbols. A choice in them (the slowest "
    "stage, the largest tile) is a max or min, or the one that holds at this plan. The event simulation of the "
    "pipeline's schedule is no formula: simulated_pipeline and simulated_exchange are its seconds over the formulas'."
)


def blocks(symbolic: Symbolic, *, every: bool = False) -> list[Block]:
    """Return the formulas for a person. every: also those of each operator."""
    text = "\n".join(_formula_lines(symbolic, every=every))
    return [
        f"The step and the memory as formulas\n{text}",
        NOTE,
        movers(symbolic),
        *([symbols(symbolic)] if every else []),
    ]


def _formula_lines(symbolic: Symbolic, *, every: bool) -> Iterator[str]:
    formulas = symbolic.formulas
    for one in _shown(symbolic, formulas, every=every):
        written = formulas.text(one.line)
        if len(written) > _LONGEST and not every:
            written = "of " + ", ".join(filter(None, map(formulas.name, one.uses)))
        for place, line in enumerate(broken(f"{one.name} = {written}", _ROOM)):
            yield ("    " if place else "  ") + line
        yield f"    = {_value(one)}"


def _shown(symbolic: Symbolic, formulas: Formulas, *, every: bool) -> list[Formula]:
    """Return the parts of the step and of the first stage's memory, and what they are directly made of."""
    from symconfig.solve.plan_symbols import reached

    if every:
        return list(formulas)
    memory = next(iter(symbolic.traced.memory), {})
    tops = [term.line for term in (*symbolic.traced.time.values(), *memory.values()) if hasattr(term, "line")]
    parts = dict.fromkeys(line for line in tops if line in formulas.names)
    below = {one.line for line in parts for one in reached(formulas, formulas.formula(line), _DEEP)} - parts.keys()
    return [formulas.formula(line) for line in (*parts, *sorted(below, reverse=True))]


def _value(one: Formula) -> str:
    return f"{one.value:.6g}"


def movers(symbolic: Symbolic) -> Grid:
    """Return the constants that move the step most: by how many percent for one percent more."""
    return Grid.of(map(_row, symbolic.movers[:_MOVERS]), "What moves the step", words=_WORDS, fixed=("unit", "from"))


def symbols(symbolic: Symbolic) -> Grid:
    """Return every symbol with its number."""
    every = sorted(symbolic.known, key=lambda one: (one.source, one.name))
    return Grid.of(map(_row, every), "Symbols", words=_WORDS, fixed=("unit", "from"))


def _row(one: Known) -> dict[str, str]:
    return {
        "symbol": one.name,
        "now": f"{one.value:.6g}",
        "unit": one.unit,
        "from": str(one.source),
        "step for 1 % more": f"{one.elasticity:+.3f} %",
        "is": clean(one.meaning),
    }


def to_dict(symbolic: Symbolic) -> dict[str, Any]:
    """Return the same as plain data: every formula, every symbol."""
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
