"""Values per layer as Megatron-LM writes them: a number, or a list expression such as ([0]*3+[1]*58).

Megatron-LM gives such an expression to Python's `eval` (arguments.py, _eval_pattern); here its grammar is read:
numbers, lists, + and *.
"""

from __future__ import annotations

import re

from symconfig.descriptor.strict import MAX_LAYERS
from symconfig.frameworks.megatron.flags import Value

_TOKEN = re.compile(r"\s*(\d{1,9}|[][(),+*])")
_LONGEST, _DEEPEST = 100_000, 20

Pattern = int | tuple[int, ...]
_Nested = int | list[int]


def layer_pattern(value: Value) -> Pattern:
    """Return the number, or the tuple of numbers per layer that a list or a list expression gives.

    Raises ValueError for anything else; its text says what is needed, as "a number or a list of 0 and 1".
    """
    if isinstance(value, bool) or value is None:
        raise ValueError("a number or a list of 0 and 1")
    if isinstance(value, int):
        return value
    if isinstance(value, tuple):
        return tuple(_whole(item) for item in value)
    parser = _Parser(str(value))
    parsed = parser.sum(0)
    if parser.peek():
        raise ValueError("a list expression such as ([0]*3+[1]*58)")
    return parsed if isinstance(parsed, int) else tuple(parsed)


def all_but(pattern: Pattern, layers: int) -> tuple[bool, ...]:
    """Return a switch for each layer: off for every n-th one if `pattern` is n, else the list's values.

    Raises ValueError for a number below 1 or a list of another length; its text says what is needed.
    """
    if isinstance(pattern, int):
        if pattern < 1:
            raise ValueError("at least 1")
        return tuple(layer % pattern != 0 for layer in range(1, layers + 1))
    if len(pattern) != layers:
        raise ValueError(f"one value for each of {layers} layers, not {len(pattern)}")
    return tuple(map(bool, pattern))


def pattern(flags: tuple[bool, ...]) -> str:
    """Return Megatron's list expression for a value per layer, as ([0]*3+[1]*58): of a period up to 8, else of runs."""
    bits = [int(flag) for flag in flags]
    for period in range(2, min(9, len(bits))):
        repeats = len(bits) // period
        if len(set(bits)) > 1 and bits == bits[:period] * repeats:
            return f"([{','.join(map(str, bits[:period]))}]*{repeats})"
    runs: list[list[int]] = []
    for bit in bits:
        if runs and runs[-1][0] == bit:
            runs[-1][1] += 1
        else:
            runs.append([bit, 1])
    return "(" + "+".join(f"[{bit}]*{count}" for bit, count in runs) + ")"


def _whole(item: Value) -> int:
    if isinstance(item, int):
        return int(item)
    raise ValueError("a list of 0 and 1")


class _Parser:
    """A recursive-descent parser of list expressions.

    Grammar: sum: product {+ product}; product: item {* item}; item: number, [sum, …] or (sum).
    """

    def __init__(self, text: str) -> None:
        if len(text) > _LONGEST:
            raise ValueError("a shorter list expression")
        self._tokens: list[str] = []
        position, text = 0, text.rstrip()
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                raise ValueError("a list expression of numbers, [ ], ( ), + and * only")
            self._tokens.append(match[1])
            position = match.end()
        self._next = 0

    def peek(self) -> str:
        return self._tokens[self._next] if self._next < len(self._tokens) else ""

    def _take(self, wanted: str) -> bool:
        if self.peek() != wanted:
            return False
        self._next += 1
        return True

    def sum(self, depth: int) -> _Nested:
        """Parse and return products joined by "+": numbers added, or lists concatenated. Raises ValueError."""
        value = self._product(depth)
        while self._take("+"):
            other = self._product(depth)
            if isinstance(value, int) and isinstance(other, int):
                value = value + other
            elif isinstance(value, list) and isinstance(other, list):
                value = _bounded(value, other)
            else:
                raise ValueError("lists added to lists")
        return value

    def _product(self, depth: int) -> _Nested:
        """Parse and return items joined by "*": numbers multiplied, or a list repeated. Raises ValueError.

        Products of numbers are capped just above the largest number of layers.
        """
        value = self._item(depth)
        while self._take("*"):
            other = self._item(depth)
            if isinstance(value, int) and isinstance(other, int):
                value = min(value * other, MAX_LAYERS + 1)
            elif isinstance(value, list) and isinstance(other, int):
                value = _repeated(value, other)
            elif isinstance(value, int) and isinstance(other, list):
                value = _repeated(other, value)
            else:
                raise ValueError("a list times a number")
        return value

    def _item(self, depth: int) -> _Nested:
        """Parse and return a number, a list, a tuple (as a list) or a sum in brackets.

        Raises ValueError, also beyond 20 levels.
        """
        if depth > _DEEPEST:
            raise ValueError("fewer brackets inside each other")
        if self._take("("):
            value = self.sum(depth + 1)
            if self._take(","):
                value = [_number(value), *self._items(depth, ")")]
            elif not self._take(")"):
                raise ValueError("a closing )")
            return value
        if self._take("["):
            return self._items(depth, "]")
        token = self.peek()
        if not token.isdigit():
            raise ValueError("a number or a list")
        self._next += 1
        return int(token)

    def _items(self, depth: int, close: str) -> list[int]:
        """Parse and return numbers up to the closing bracket `close`, and consume it.

        Raises ValueError for nested lists.
        """
        items: list[int] = []
        while not self._take(close):
            items.append(_number(self.sum(depth + 1)))
            if not self._take(",") and self.peek() != close:
                raise ValueError(f"a closing {close}")
        return items


def _number(item: _Nested) -> int:
    if isinstance(item, int):
        return item
    raise ValueError("one list, not lists inside a list")


def _bounded(one: list[int], other: list[int]) -> list[int]:
    if len(one) + len(other) > MAX_LAYERS:
        raise ValueError(f"at most {MAX_LAYERS} layers")
    return one + other


def _repeated(items: list[int], times: int) -> list[int]:
    if len(items) * times > MAX_LAYERS:
        raise ValueError(f"at most {MAX_LAYERS} layers")
    return items * times
