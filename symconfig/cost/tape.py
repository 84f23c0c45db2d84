"""Numbers that remember how they were made: cost functions run on them as on floats, and leave a formula.

A `Term` goes wherever a cost function takes a number, alone or in a NumPy array of objects. Each operation is written
to the term's `Tape`, which is then evaluated at other numbers, differentiated, and read as SymPy expressions. A
comparison gives the answer that holds at the numbers of the tape, and is kept as a condition under which it is right.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
INPUT, NUMBER = "input", "number"


# By operation: its value, and the derivatives of it by either argument, of the arguments and the value.
_VALUES: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a / b,
    "power": lambda a, b: a**b,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "above": lambda a, b: np.asarray(a > b, dtype=np.float64),
    "floor": np.floor,
    "ceiling": np.ceil,
    "log": np.log,
}
_SLOPES: dict[str, Callable[[float, float, float], tuple[float, float]]] = {
    "add": lambda a, b, y: (1.0, 1.0),
    "subtract": lambda a, b, y: (1.0, -1.0),
    "multiply": lambda a, b, y: (b, a),
    "divide": lambda a, b, y: (1.0 / b, -y / b),
    "power": lambda a, b, y: (b * a ** (b - 1.0), y * math.log(a) if a > 0 else 0.0),
    "maximum": lambda a, b, y: (1.0, 0.0) if a >= b else (0.0, 1.0),
    "minimum": lambda a, b, y: (1.0, 0.0) if a <= b else (0.0, 1.0),
    "above": lambda a, b, y: (0.0, 0.0),
    "floor": lambda a, b, y: (0.0, 0.0),
    "ceiling": lambda a, b, y: (0.0, 0.0),
    "log": lambda a, b, y: (1.0 / a, 0.0),
}
ONE_ARGUMENT = ("floor", "ceiling", "log")


@dataclass(frozen=True, slots=True)
class Node:
    """One line of a tape. first, second: lines of its arguments; value: at the numbers that the tape was written at."""

    operation: str
    first: int
    second: int
    value: float


@dataclass(slots=True)
class Tape:
    """Every operation in the order in which it was made.

    inputs: line of each symbol; names: symbol of each line that is shown by a name of its own; conditions: two lines
    and whether the first one is above the second one.
    """

    nodes: list[Node] = field(default_factory=list)
    inputs: dict[str, int] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    conditions: dict[tuple[int, int], bool] = field(default_factory=dict)
    _numbers: dict[float, int] = field(default_factory=dict)
    _taken: Counter[str] = field(default_factory=Counter)

    def symbol(self, name: str, value: float) -> Term:
        """Return the symbol with this name as a term; if the tape has it already, `value` is ignored."""
        if name not in self.inputs:
            self.inputs[name] = self._write(Node(INPUT, -1, -1, float(value)))
        return Term(self, self.inputs[name])

    def number(self, value: float) -> int:
        """Return the line of a constant; equal constants share one."""
        value = float(value)
        if value not in self._numbers:
            self._numbers[value] = self._write(Node(NUMBER, -1, -1, value))
        return self._numbers[value]

    def name(self, term: object, name: str) -> None:
        """Give a term's line a name by which expressions show it.

        A plain number, an input, a constant or a line with a name is left as it is. A name that is taken gets a number
        appended: `x.2`.
        """
        if not isinstance(term, Term) or term.line in self.names or self.nodes[term.line].operation in (INPUT, NUMBER):
            return
        self._taken[name] += 1
        self.names[term.line] = name if self._taken[name] == 1 else f"{name}.{self._taken[name]}"

    def made(self, operation: str, first: int, second: int = -1) -> Term:
        """Write an operation on lines of the tape and return its result as a term."""
        a, b = self.nodes[first].value, self.nodes[second].value
        value = _VALUES[operation](a) if operation in ONE_ARGUMENT else _VALUES[operation](a, b)
        return Term(self, self._write(Node(operation, first, second, float(value))))

    def _write(self, node: Node) -> int:
        self.nodes.append(node)
        return len(self.nodes) - 1

    def evaluated(self, numbers: Mapping[str, Array | float]) -> list[Array | float]:
        """Return the value of every line, in order, with other numbers for some symbols, else those of the tape.

        numbers: by name of the symbol, floats or arrays that broadcast together; other names are ignored.
        Floating-point warnings are off. Nothing on the tape changes.
        """
        named = {line: name for name, line in self.inputs.items()}
        values: list[Any] = []
        with np.errstate(all="ignore"):
            for line, node in enumerate(self.nodes):
                if node.operation == INPUT:
                    values.append(numbers.get(named[line], node.value))
                elif node.operation == NUMBER:
                    values.append(node.value)
                elif node.operation in ONE_ARGUMENT:
                    values.append(_VALUES[node.operation](values[node.first]))
                else:
                    values.append(_VALUES[node.operation](values[node.first], values[node.second]))
        return values

    def holds(self, values: Sequence[Array | float]) -> NDArray[np.bool_]:
        """Return where all recorded comparisons come out as on the tape, so that its formula holds.

        values: of all lines, which `evaluated` returns.
        """
        result: NDArray[np.bool_] = np.ones((), dtype=np.bool_)
        for (first, second), above in self.conditions.items():
            result = result & ((np.asarray(values[first]) > np.asarray(values[second])) == above)
        return result

    def slopes(self, line: int) -> dict[str, float]:
        """Return the derivative of a line by every symbol, at the tape's numbers, by reverse-mode differentiation.

        Symbols whose derivative is 0 are left out.
        """
        slope = [0.0] * (line + 1)
        slope[line] = 1.0
        for place in range(line, -1, -1):
            node = self.nodes[place]
            if slope[place] == 0.0 or node.operation in (INPUT, NUMBER):
                continue
            a, b = self.nodes[node.first].value, self.nodes[node.second].value if node.second >= 0 else 0.0
            by_first, by_second = _SLOPES[node.operation](a, b, node.value)
            slope[node.first] += slope[place] * by_first
            if node.second >= 0:
                slope[node.second] += slope[place] * by_second
        return {name: slope[at] for name, at in self.inputs.items() if at <= line and slope[at] != 0.0}


def _elementwise(method: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Wrap an operator so that it returns NotImplemented for an array, and NumPy then applies it element by element."""

    def apply(self: Any, other: Any) -> Any:
        return NotImplemented if isinstance(other, np.ndarray) else method(self, other)

    return apply


def _operator(
    operation: str, *, same: float | None = None, nothing: bool = False, swapped: bool = False
) -> Callable[[Any, Any], Any]:
    """Return the method that writes an operation on a term and another number (`_elementwise`).

    same: the number that leaves the term as it is. nothing: 0.0 gives 0.0. swapped: the other one is the first.
    """

    def apply(self: Term, other: Any) -> Any:
        if nothing and _is_number(other, 0.0):
            return 0.0
        if same is not None and _is_number(other, same):
            return self
        line = self._line(other)
        return self.tape.made(operation, *((line, self.line) if swapped else (self.line, line)))

    return _elementwise(apply)


class Term:
    """A number with the line of its tape."""

    __slots__ = ("line", "tape")
    __hash__ = object.__hash__

    def __init__(self, tape: Tape, line: int) -> None:
        self.tape, self.line = tape, line

    @property
    def value(self) -> float:
        """Return the number at which the tape was written."""
        return self.tape.nodes[self.line].value

    def __repr__(self) -> str:
        return f"Term({self.value!r})"

    def _line(self, other: Any) -> int:
        return other.line if isinstance(other, Term) else self.tape.number(other)

    __add__ = __radd__ = _operator("add", same=0.0)
    __sub__ = _operator("subtract", same=0.0)
    __rsub__ = _operator("subtract", swapped=True)
    __mul__ = __rmul__ = _operator("multiply", same=1.0, nothing=True)
    __truediv__ = _operator("divide", same=1.0)
    __rtruediv__ = _operator("divide", nothing=True, swapped=True)
    __pow__ = _operator("power", same=1.0)
    __rpow__ = _operator("power", swapped=True)

    __floordiv__ = _elementwise(lambda self, other: (self / other).__floor__())
    __rfloordiv__ = _elementwise(lambda self, other: self.__rtruediv__(other).__floor__())
    __mod__ = _elementwise(lambda self, other: self - (self // other) * other)
    __rmod__ = _elementwise(lambda self, other: other - (other // self) * self)

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    @_elementwise
    def __rdivmod__(self, other: Any) -> Any:
        whole = other // self
        return whole, other - whole * self

    def __neg__(self) -> Any:
        return self * -1.0

    def __floor__(self) -> Term:
        return self.tape.made("floor", self.line)

    def __ceil__(self) -> Term:
        return self.tape.made("ceiling", self.line)

    def log(self) -> Term:
        """Return the natural logarithm; np.log calls it on arrays of objects."""
        return self.tape.made("log", self.line)

    def __int__(self) -> int:
        """Return the value as an int and record that it lies within 0.5 of it.

        Raises:
            ValueError: it does not; the value is at least 0.5 above its integer part (below for negative ones).
        """
        whole = int(self.value)
        if not self > whole - 0.5 or not self < whole + 0.5:
            raise ValueError(f"{self.value!r} is no whole number")
        return whole

    def _above(self, first: int, second: int) -> bool:
        nodes = self.tape.nodes
        above = nodes[first].value > nodes[second].value
        if any(nodes[line].operation != NUMBER for line in (first, second)):
            self.tape.conditions[first, second] = above
        return above

    __gt__ = _elementwise(lambda self, other: self._above(self.line, self._line(other)))
    __lt__ = _elementwise(lambda self, other: self._above(self._line(other), self.line))
    __ge__ = _elementwise(lambda self, other: not self < other)
    __le__ = _elementwise(lambda self, other: not self > other)

    def __eq__(self, other: object) -> Any:
        if isinstance(other, np.ndarray):
            return NotImplemented
        return not self > other and not self < other

    def __bool__(self) -> bool:
        return bool(self > 0.0 or self < 0.0)


def _is_number(other: Any, number: float) -> bool:
    return not isinstance(other, Term) and bool(other == number)


def _scalar_operation(operation: str) -> Callable[[Any, Any], Any]:
    """Return a function of two scalars: its result is a new term on the tape if one is a term, else the plain value."""

    def apply(a: Any, b: Any) -> Any:
        if isinstance(a, Term):
            return a.tape.made(operation, a.line, a._line(b))
        if isinstance(b, Term):
            return b.tape.made(operation, b._line(a), b.line)
        return _VALUES[operation](a, b)

    return apply


def _of_numbers_or_terms(operation: str) -> tuple[Callable[[Any, Any], Any], np.ufunc]:
    """Return a function of two numbers, terms or arrays, element by element, and its ufunc on arrays of terms.

    NumPy's own maximum on arrays of objects would return one argument and lose the other. The search calls these
    functions millions of times, so the check for terms is inlined.
    """
    of_terms, of_numbers = np.frompyfunc(_scalar_operation(operation), 2, 1), _VALUES[operation]

    def apply(a: Any, b: Any) -> Any:
        if a.__class__ is Term or b.__class__ is Term:
            return of_terms(a, b)
        if (a.__class__ is np.ndarray and a.dtype.hasobject) or (b.__class__ is np.ndarray and b.dtype.hasobject):
            return of_terms(a, b)
        return of_numbers(a, b)

    return apply, of_terms


maximum, _maximum_of_terms = _of_numbers_or_terms("maximum")
minimum, _ = _of_numbers_or_terms("minimum")
greater, _ = _of_numbers_or_terms("above")  # 1.0 where the first is larger, else 0.0


def first_axis_max(array: Any) -> Any:
    """Return the maximum along the first axis of an array of numbers or of terms."""
    return _maximum_of_terms.reduce(array, axis=0) if array.dtype.hasobject else array.max(axis=0)
