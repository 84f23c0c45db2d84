"""`$(( ))`, `(( ))` and `let` on known whole numbers of 64 bits."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

_TOKEN = re.compile(
    r"\s*(?:(0[xX][0-9a-fA-F]+|\d+#[0-9a-zA-Z]+|\d+)|([A-Za-z_]\w*(?:\[[^\]]*\])?)"
    r"|(<<=|>>=|\*\*|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|[-+*/%<>=!~&|^?:(),]))"
)
_LEVELS = {
    "||": 1,
    "&&": 2,
    "|": 3,
    "^": 4,
    "&": 5,
    "==": 6,
    "!=": 6,
    "<": 7,
    ">": 7,
    "<=": 7,
    ">=": 7,
    "<<": 8,
    ">>": 8,
    "+": 9,
    "-": 9,
    "*": 10,
    "/": 10,
    "%": 10,
    "**": 12,
}
_ASSIGNING = {"=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>="}
_DEPTH = 60
_LENGTH = 4096


class Dark(Exception):
    """The number is not known; the text says why, after "its value"."""


def _wrapped(value: int) -> int:
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def _divided(left: int, right: int) -> int:
    if right == 0:
        raise Dark("is divided by zero")
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


def _power(left: int, right: int) -> int:
    if right < 0:
        raise Dark("has a negative exponent")
    return pow(left, right, 1 << 64)


_BINARY: dict[str, Callable[[int, int], int]] = {
    "|": int.__or__,
    "^": int.__xor__,
    "&": int.__and__,
    "+": int.__add__,
    "-": int.__sub__,
    "*": int.__mul__,
    "/": _divided,
    "%": lambda a, b: a - b * _divided(a, b),
    "**": _power,
    "<<": lambda a, b: a << (b & 63),
    ">>": lambda a, b: a >> (b & 63),
    "==": lambda a, b: int(a == b),
    "!=": lambda a, b: int(a != b),
    "<": lambda a, b: int(a < b),
    ">": lambda a, b: int(a > b),
    "<=": lambda a, b: int(a <= b),
    ">=": lambda a, b: int(a >= b),
}


class Arithmetic:
    """One expression. look(name): the number of a variable, raises Dark; assign(name, number)."""

    def __init__(self, text: str, look: Callable[[str], int], assign: Callable[[str, int], None]) -> None:
        self._tokens = _tokens(text)
        self._at = 0
        self._look = look
        self._assign = assign
        self._skip = 0  # inside the branch that && || ?: do not take: nothing is looked up or assigned
        self._depth = 0

    def value(self) -> int:
        """Return the value. Raises Dark where it is not known."""
        if not self._tokens:
            return 0
        value = self._comma()
        if self._at < len(self._tokens):
            raise Dark(f"has arithmetic that is not understood at {self._tokens[self._at]!r}")
        return value

    def _next(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self, *wanted: str) -> bool:
        if self._next() in wanted:
            self._at += 1
            return True
        return False

    def _comma(self) -> int:
        value = self._assignment()
        while self._take(","):
            value = self._assignment()
        return value

    def _assignment(self) -> int:
        name = self._next()
        operator = self._tokens[self._at + 1] if self._at + 1 < len(self._tokens) else ""
        if not _is_name(name) or operator not in _ASSIGNING:
            return self._choice()
        self._at += 2
        value = self._assignment()
        if self._skip:
            return 0
        if operator != "=":
            value = _wrapped(_BINARY[operator[:-1]](self._look(name), value))
        self._assign(name, value)
        return value

    def _choice(self) -> int:
        condition = self._binary(1)
        if not self._take("?"):
            return condition
        first = self._unless(not condition, self._assignment)
        if not self._take(":"):
            raise Dark("has arithmetic that is not understood: ? without :")
        second = self._unless(bool(condition), self._choice)
        return first if condition else second

    def _unless(self, skipped: bool, part: Callable[[], int]) -> int:
        self._skip += skipped
        try:
            return part()
        finally:
            self._skip -= skipped

    def _binary(self, level: int) -> int:
        left = self._unary()
        while _LEVELS.get(self._next(), 0) >= level:
            operator = self._next()
            self._at += 1
            inner = _LEVELS[operator] + (operator != "**")
            if operator in ("&&", "||"):
                decided = (operator == "&&") != bool(left)
                right = self._unless(decided, partial(self._binary, inner))
                left = int(bool(left) and bool(right)) if operator == "&&" else int(bool(left) or bool(right))
            else:
                right = self._binary(inner)
                left = 0 if self._skip else _wrapped(_BINARY[operator](left, right))
        return left

    def _unary(self) -> int:
        self._depth += 1
        if self._depth > _DEPTH:
            raise Dark("has arithmetic nested too deeply")
        try:
            for sign in ("++", "--"):
                if self._take(sign):
                    return self._step(self._name(), 1 if sign == "++" else -1)[1]
            if self._take("-"):
                return _wrapped(-self._unary())
            if self._take("+"):
                return self._unary()
            if self._take("!"):
                return int(not self._unary())
            if self._take("~"):
                return ~self._unary()
            return self._primary()
        finally:
            self._depth -= 1

    def _name(self) -> str:
        name = self._next()
        if not _is_name(name):
            raise Dark(f"has arithmetic that is not understood at {name!r}")
        self._at += 1
        return name

    def _step(self, name: str, by: int) -> tuple[int, int]:
        """Return the value before and after."""
        if self._skip:
            return 0, 0
        before = self._look(name)
        self._assign(name, _wrapped(before + by))
        return before, _wrapped(before + by)

    def _primary(self) -> int:
        token = self._next()
        if self._take("("):
            value = self._comma()
            if not self._take(")"):
                raise Dark("has arithmetic that is not understood: ( without )")
            return value
        if token[:1].isdigit():
            self._at += 1
            return _number(token)
        name = self._name()
        for sign in ("++", "--"):
            if self._take(sign):
                return self._step(name, 1 if sign == "++" else -1)[0]
        return 0 if self._skip else self._look(name)


def _is_name(token: str) -> bool:
    return token[:1].isalpha() or token[:1] == "_"


def _number(token: str) -> int:
    try:
        if "#" in token:
            base, digits = token.split("#")
            return _wrapped(int(digits, int(base)))
        if token[:2] in ("0x", "0X"):
            return _wrapped(int(token, 16))
        return _wrapped(int(token, 8) if token.startswith("0") else int(token))
    except ValueError:
        raise Dark(f"has a number that bash does not read, {token}") from None


def _tokens(text: str) -> list[str]:
    if len(text) > _LENGTH:
        raise Dark("has too long an arithmetic expression")
    tokens, at = [], 0
    text = text.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise Dark(f"has arithmetic that is not understood at {text[at : at + 20]!r}")
        tokens.append(match.group(match.lastindex or 0))
        at = match.end()
    return tokens
