"""`$(( ))`, `(( ))` and `let` on known whole numbers, as Python's parser reads them once their operators are spelled as
Python's."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from typing import Any

_ASSIGNMENT = re.compile(r"\s*([A-Za-z_]\w*(?:\[[^]]*\])?)\s*([-+*/%]?)=(?!=)(.*)", re.DOTALL)
_STEP = re.compile(r"\s*(\+\+|--)?\s*([A-Za-z_]\w*)\s*(\+\+|--)?\s*")
_CHOICE = re.compile(r"([^?]*)\?([^?:]*):(.*)", re.DOTALL)
_SPELLED = {"&&": " and ", "||": " or ", "/": "//"}
_SIGNS = re.compile(r"[\w\s+\-*/%<>=!&|()\[\]]*", re.ASCII)
# What Python would read as a number, or by another precedence than bash: these are not followed.
_OTHERWISE = re.compile(r"\b(?!0[xX])\d+[A-Za-z_]|\b0[xX][0-9a-fA-F]*[G-Zg-z_]|![^=]")
_LENGTH, _LARGEST = 1024, 1 << 63


class Dark(Exception):
    """The value of an expression is not known; the text says why and continues the words "its value"."""


def _divided(left: int, right: int) -> int:
    """Return the quotient rounded towards zero, as in bash. Raises Dark for division by zero."""
    if right == 0:
        raise Dark("is divided by zero")
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


_OPERATORS: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: _divided,
    ast.Mod: lambda left, right: left - right * _divided(left, right),
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}


def calculated(text: str, look: Callable[[str], int], assign: Callable[[str, int], None]) -> int:
    """Return the value of an arithmetic expression; of several separated by commas the last one's, 0 if it is empty.

    look: returns a variable's value. assign: is called with name and value for each assignment, `++` and `--`. Raises
    Dark if the value is unknown, or the syntax is not supported or too long.
    """
    if len(text) > _LENGTH:
        raise Dark("has too long an arithmetic expression")
    value = 0
    for part in text.split(","):
        if assigned := _ASSIGNMENT.fullmatch(part):
            name, sign, rest = assigned.groups()
            value = _value(f"{name} {sign} ({rest})" if sign else rest, look)
            assign(name, value)
        elif (step := _STEP.fullmatch(part)) and (sign := step[1] or step[3]):
            before = look(step[2])
            after = before + (1 if sign == "++" else -1)
            assign(step[2], after)
            value = after if step[1] else before
        elif part.strip():
            value = _value(part, look)
    return value


def _value(text: str, look: Callable[[str], int]) -> int:
    """Return the value of one expression without assignments; of `a ? b : c` only the chosen branch. Raises Dark."""
    if "?" in text and (choice := _CHOICE.fullmatch(text)):
        return _value(choice[2 if _value(choice[1], look) else 3], look)
    spelled = re.sub(r"&&|\|\||/", lambda match: _SPELLED[match[0]], text)
    try:
        if not _SIGNS.fullmatch(text) or _OTHERWISE.search(text):
            raise ValueError
        return _evaluated(ast.parse(f"({spelled})", mode="eval").body, look)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise Dark(f"has arithmetic that is not understood: {text.strip()[:40]!r}") from None


def _evaluated(node: ast.expr, look: Callable[[str], int]) -> int:
    """Return the value of a Python syntax tree as bash computes it; comparisons and `!` give 0 or 1.

    `and` and `or` stop at the deciding operand. Raises ValueError for other nodes, Dark beyond 64 bits or by zero.
    """
    match node:
        case ast.Constant(value=made) if type(made) is int:
            pass
        case ast.Name(id=name):
            made = look(name)
        case ast.Subscript(value=ast.Name(id=name), slice=index):
            made = look(f"{name}[{_evaluated(index, look)}]")
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _OPERATORS:
            made = _OPERATORS[type(op)](_evaluated(operand, look))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            made = _OPERATORS[type(op)](_evaluated(left, look), _evaluated(right, look))
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _OPERATORS:
            made = _OPERATORS[type(op)](_evaluated(left, look), _evaluated(right, look))
        case ast.BoolOp(op=op, values=values):
            stop = isinstance(op, ast.Or)
            made = next((stop for each in values if bool(_evaluated(each, look)) is stop), not stop)
        case _:
            raise ValueError
    if not -_LARGEST <= made < _LARGEST:
        raise Dark("is too large a number")
    return int(made)
