"""The lines of a tape as formulas: text, LaTeX and SymPy, each in terms of quantities that have a name."""

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
_LEVELS = {"add": 1, "subtract": 1, "multiply": 2, "divide": 2, "power": 3}
_SIGNS = {"add": " + ", "subtract": " - ", "multiply": " * ", "divide": " / ", "power": "^"}
_FUNCTIONS = {
    "maximum": "max",
    "minimum": "min",
    "above": "above",
    "floor": "floor",
    "ceiling": "ceiling",
    "log": "log",
}


@dataclass(frozen=True, slots=True)
class Formula:
    """A named quantity. line: its line on the tape; value: in the plan; uses: lines that it directly depends on."""

    name: str
    line: int
    value: float
    uses: tuple[int, ...]


class Formulas:
    """The named quantities that some costs depend on, each after those that it depends on."""

    def __init__(self, tape: Tape, roots: Iterable[Any]) -> None:
        self.tape = tape
        self._reached = _below(tape, *(term.line for term in roots if isinstance(term, Term)))
        self.names = self._all_names()
        self.symbols = {name: line for name, line in tape.inputs.items() if line in self._reached}

    def _all_names(self) -> dict[int, str]:
        """Return the names by line: those that the tape has, and x0, x1, … for long or shared subexpressions."""
        nodes, names = self.tape.nodes, {line: name for line, name in self.tape.names.items() if line in self._reached}
        used = Counter(at for line in self._reached for at in (nodes[line].first, nodes[line].second))
        sizes = dict[int, int]()
        for line in sorted(self._reached):
            node = nodes[line]
            if node.operation in (INPUT, NUMBER):
                sizes[line] = 0
                continue
            sizes[line] = 1 + sum(sizes[at] for at in (node.first, node.second) if at >= 0)
            if line not in names and (sizes[line] > _LONGEST or (used[line] > 1 and sizes[line] > _SHARED)):
                names[line] = f"x{len(names)}"
            if line in names:
                sizes[line] = 0
        return names

    def name(self, line: int) -> str | None:
        """Return the name of a line's symbol or named quantity; None if it has none."""
        if self.tape.nodes[line].operation == INPUT:
            return next(name for name, at in self.tape.inputs.items() if at == line)
        return self.names.get(line)

    def __iter__(self) -> Iterator[Formula]:
        for line in sorted(self.names):
            yield self.formula(line)

    def formula(self, line: int) -> Formula:
        """Return the formula of a line with the lines of symbols and named quantities that it directly uses.

        Its name is empty if the line has none.
        """
        return Formula(self.names.get(line, ""), line, self.tape.nodes[line].value, tuple(self._uses(line)))

    def _uses(self, line: int) -> Iterator[int]:
        """Yield the lines of the symbols and named quantities that a line directly uses, each once."""
        lines, left = dict[int, None](), [self.tape.nodes[line].second, self.tape.nodes[line].first]
        while left:
            at = left.pop()
            if at < 0 or self.tape.nodes[at].operation == NUMBER:
                continue
            if at in self.names or self.tape.nodes[at].operation == INPUT:
                lines[at] = None
            else:
                left += (self.tape.nodes[at].second, self.tape.nodes[at].first)
        yield from lines

    def text(self, line: int) -> str:
        """Return the formula of a line as plain text."""
        return str(self._folded(line, lambda name: (name, 4), _number, _text)[0])

    def sympy(self, line: int, symbols: dict[str, Any], whole: bool = False) -> Any:
        """Return the formula of a line as a SymPy expression.

        symbols: SymPy symbols by name; missing ones are added. whole: expand named quantities to symbols alone. Raises
        InputError if SymPy is not installed.
        """
        sp = import_sympy()

        def symbol(name: str) -> Any:
            return symbols.setdefault(name, sp.Symbol(name, real=True))

        def number(value: float) -> Any:
            return sp.Integer(int(value)) if value.is_integer() else sp.Float(value, 17)

        return self._folded(line, symbol, number, _sympy, whole)

    def _folded(
        self, line: int, named: Callable[[str], Any], number: Callable[[float], Any],
        made: Callable[[str, Any, Any], Any], whole: bool = False,
    ) -> Any:  # fmt: skip
        """Return a formula built bottom-up, without recursion.

        named, number, made: build the part for a named quantity, for a number, and for an operation on one or two
        parts. whole: expand named quantities.
        """
        nodes, results = self.tape.nodes, dict[int, Any]()
        inside = _below(self.tape, line, until=() if whole else self.names)
        for at in sorted(inside):
            node = nodes[at]
            name = self.name(at) if node.operation == INPUT or not (whole or at == line) else None
            if node.operation == NUMBER:
                results[at] = number(node.value)
            elif name is not None:
                results[at] = named(name)
            else:
                results[at] = made(node.operation, results[node.first], results.get(node.second))
        return results[line]


def _below(tape: Tape, *lines: int, until: Container[int] = ()) -> frozenset[int]:
    """Return the lines given and all that they depend on; the walk does not pass other lines that are in `until`."""
    below, left = set[int](), list(lines)
    while left:
        line = left.pop()
        if line >= 0 and line not in below:
            below.add(line)
            if line in lines or line not in until:
                left += (tape.nodes[line].first, tape.nodes[line].second)
    return frozenset(below)


def _text(operation: str, a: tuple[str, int], b: tuple[str, int] | None) -> tuple[str, int]:
    """Return (text, precedence) of an operation; at precedence 4 it needs no brackets."""
    if operation in _SIGNS and b is not None:
        level = _LEVELS[operation]
        right = level if operation in ("add", "multiply") else level + 1
        return _within(a, level) + _SIGNS[operation] + _within(b, right), level
    return f"{_FUNCTIONS[operation]}({a[0] if b is None else f'{a[0]}, {b[0]}'})", 4


def import_sympy() -> Any:
    """Return the module SymPy. Raises InputError if it is not installed."""
    try:
        import sympy
    except ModuleNotFoundError:
        raise InputError("SymPy is not installed", hint=install.SYMBOLIC) from None
    return sympy


def _sympy(operation: str, a: Any, b: Any) -> Any:
    """Return the SymPy expression of an operation; max and min are not evaluated, which would compare all arguments."""
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


def _number(value: float) -> tuple[str, int]:
    """Return (text, precedence) of a number, with six significant digits unless it is an integer below a million."""
    return f"{int(value)}" if value.is_integer() and abs(value) < 1e6 else f"{value:.6g}", 4 if value >= 0 else 1


def _within(part: tuple[str, int], level: int) -> str:
    return part[0] if part[1] >= level else f"({part[0]})"
