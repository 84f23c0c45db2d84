"""Formulas on a tape: the named quantities that costs depend on, each as text and as a SymPy expression."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from symconfig import install
from symconfig.cost.tape import INPUT, NUMBER, Tape, Term
from symconfig.errors import InputError

_LONGEST = 40  # most operations of a formula: parts of longer ones get a name
_SHARED = 6  # shared subexpressions with more operations get a name
_SIGNS = {"add": (" + ", 1), "subtract": (" - ", 1), "multiply": (" * ", 2), "divide": (" / ", 2), "power": ("^", 3)}
_SHORT = {"maximum": "max", "minimum": "min"}  # names of functions other than the operation's


@dataclass(frozen=True, slots=True)
class Formula:
    """A named quantity. line: its line on the tape; value: in the plan."""

    name: str
    line: int
    value: float


class Formulas:
    """The named quantities that some costs depend on, each after those that it depends on.

    names: of lines of the tape: those that the tape has, and x0, x1, … for long or shared subexpressions. symbols: line
    by name.
    """

    def __init__(self, tape: Tape, roots: Iterable[Any]) -> None:
        reached = _below(tape, *(term.line for term in roots if isinstance(term, Term)))
        self.tape, self.names = tape, {line: name for line, name in tape.names.items() if line in reached}
        self.symbols = {name: line for name, line in tape.inputs.items() if line in reached}
        self._symbol_at = {line: name for name, line in tape.inputs.items()}
        used = Counter(at for line in reached for at in (tape.nodes[line].first, tape.nodes[line].second))
        sizes = dict[int, int]()  # operations of a line's formula, 0 if it has a name
        for line in sorted(reached):
            node = tape.nodes[line]
            inner = 0 if node.operation in (INPUT, NUMBER) else 1
            sizes[line] = inner + sum(sizes[at] for at in (node.first, node.second) if at >= 0)
            if line not in self.names and (sizes[line] > _LONGEST or (used[line] > 1 and sizes[line] > _SHARED)):
                self.names[line] = f"x{len(self.names)}"
            if line in self.names:
                sizes[line] = 0

    def __iter__(self) -> Iterator[Formula]:
        for line in sorted(self.names):
            yield Formula(self.names[line], line, self.tape.nodes[line].value)

    def text(self, line: int) -> str:
        """Return the formula of a line as plain text."""
        return str(self._folded(line, lambda name: (name, 4), _number, _text)[0])

    def sympy(self, line: int) -> Any:
        """Return the formula of a line as a SymPy expression; lines with a name, other than it, and inputs are symbols.

        Raises InputError if SymPy is not installed.
        """
        sp = import_sympy()

        def number(value: float) -> Any:
            return sp.Integer(int(value)) if value.is_integer() else sp.Float(value, 17)

        return self._folded(line, lambda name: sp.Symbol(name, real=True), number, _sympy)

    def _folded(
        self, line: int, named: Callable[[str], Any], number: Callable[[float], Any],
        made: Callable[[str, Any, Any], Any],
    ) -> Any:  # fmt: skip
        """Return a line's formula built bottom-up, without recursion; named lines within it are not expanded.

        named, number, made: build the part for a named quantity or symbol, for a number, and for an operation on one or
        two parts (None for a missing second one).
        """
        results = dict[int, Any]()
        for at in sorted(_below(self.tape, line, until=self.names)):
            node = self.tape.nodes[at]
            if node.operation == NUMBER:
                results[at] = number(node.value)
            elif node.operation == INPUT:
                results[at] = named(self._symbol_at[at])
            elif at != line and at in self.names:
                results[at] = named(self.names[at])
            else:
                results[at] = made(node.operation, results[node.first], results.get(node.second))
        return results[line]


def _below(tape: Tape, *lines: int, until: Container[int] = ()) -> frozenset[int]:
    """Return the lines given and all that they depend on; of other lines in `until` what they depend on is left out."""
    below, left = set[int](), list(lines)
    while left:
        line = left.pop()
        if line >= 0 and line not in below:
            below.add(line)
            if line in lines or line not in until:
                left += (tape.nodes[line].first, tape.nodes[line].second)
    return frozenset(below)


def _text(operation: str, a: tuple[str, int], b: tuple[str, int] | None) -> tuple[str, int]:
    """Return (text, precedence 1 to 4) of an operation on such parts; operands of lower precedence get brackets.

    Operations without a sign, and those on one part, are written as calls, which have precedence 4.
    """
    if operation not in _SIGNS or b is None:
        return f"{_SHORT.get(operation, operation)}({a[0] if b is None else f'{a[0]}, {b[0]}'})", 4
    sign, level = _SIGNS[operation]
    right = level if operation in ("add", "multiply") else level + 1
    left, other = (text if own >= least else f"({text})" for (text, own), least in ((a, level), (b, right)))
    return left + sign + other, level


def _number(value: float) -> tuple[str, int]:
    """Return (text, precedence) of a number, with six significant digits unless it is an integer below a million."""
    return f"{int(value)}" if value.is_integer() and abs(value) < 1e6 else f"{value:.6g}", 4 if value >= 0 else 1


def import_sympy() -> Any:
    """Return the module SymPy; raises InputError with the command that installs it if it is missing."""
    try:
        import sympy
    except ModuleNotFoundError:
        raise InputError("SymPy is not installed", hint=install.SYMBOLIC) from None
    return sympy


def _sympy(operation: str, a: Any, b: Any) -> Any:
    """Return the SymPy expression of an operation on `a` and, if it takes two, `b`.

    max and min are not evaluated, which would compare all arguments; "above" is 1 if a > b, else 0. Raises KeyError for
    an unknown operation.
    """
    sp = import_sympy()

    made: dict[str, Callable[[], Any]] = {
        "add": lambda: a + b,
        "subtract": lambda: a - b,
        "multiply": lambda: a * b,
        "divide": lambda: a / b,
        "power": lambda: a**b,
        "maximum": lambda: sp.Max(a, b, evaluate=False),
        "minimum": lambda: sp.Min(a, b, evaluate=False),
        "above": lambda: sp.Piecewise((1, sp.Gt(a, b)), (0, True)),
        "floor": lambda: sp.floor(a),
        "ceiling": lambda: sp.ceiling(a),
        "log": lambda: sp.log(a),
    }
    return made[operation]()
