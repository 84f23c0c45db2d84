"""Values per layer as Megatron-LM writes them: a number, or a list expression such as ([0]*3+[1]*58).

Megatron-LM gives such an expression to Python's `eval` (arguments.py, _eval_pattern); here Python's parser reads it,
and only numbers, lists, + and * are evaluated.
"""

from __future__ import annotations

import ast
import re

from symconfig.descriptor.strict import MAX_LAYERS
from symconfig.frameworks.megatron.flags import Value

_SIGNS = re.compile(r"[\d\s\[\](),+*]+", re.ASCII)
_LONGEST, _LARGEST = 10_000, 10**9  # characters, and a number

Pattern = int | tuple[int, ...]
_Nested = int | list[int]


def layer_pattern(value: Value) -> Pattern:
    """Return an integer as it is, else the number or tuple of numbers of a tuple or a text such as "[0]*3+[1]*58".

    Raises ValueError for None, bools, other text and more than MAX_LAYERS layers; its text says what is needed.
    """
    if isinstance(value, bool) or value is None:
        raise ValueError("a number or a list of 0 and 1")
    if isinstance(value, int):
        return value
    if isinstance(value, tuple):
        return tuple(_whole(item) for item in value)
    text = str(value).strip()
    if len(text) > _LONGEST or not _SIGNS.fullmatch(text):
        raise ValueError("a list expression of numbers, [ ], ( ), + and * only, such as ([0]*3+[1]*58)")
    try:
        parsed = _evaluated(ast.parse(text, mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError):
        raise ValueError("a list expression such as ([0]*3+[1]*58)") from None
    return parsed if isinstance(parsed, int) else tuple(parsed)


def all_but(pattern: Pattern, layers: int) -> tuple[bool, ...]:
    """Return a bool per layer: for a number n False for every n-th layer only, for a tuple whether its value is not 0.

    Raises ValueError for a number below 1 or a tuple of another length; its text says what is needed.
    """
    if isinstance(pattern, int):
        if pattern < 1:
            raise ValueError("at least 1")
        return tuple(layer % pattern != 0 for layer in range(1, layers + 1))
    if len(pattern) != layers:
        raise ValueError(f"one value for each of {layers} layers, not {len(pattern)}")
    return tuple(map(bool, pattern))


def pattern(flags: tuple[bool, ...]) -> str:
    """Return Megatron's list expression of the flags as 0 and 1: ([0,1]*4), or ([0]*3+[1]*58) by runs of equal flags.

    The first form if they repeat whole with a period of 2 to 8, and are not all equal.
    """
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


def _evaluated(node: ast.expr) -> _Nested:
    """Return the number or list of a syntax tree of integers, lists, `+` and `*`, numbers at most MAX_LAYERS + 1.

    Raises ValueError for anything else, nested lists, lists beyond MAX_LAYERS and integers from 10**9 on.
    """
    match node:
        case ast.Constant(value=number) if type(number) is int and number < _LARGEST:
            return number
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            items = [_evaluated(element) for element in elements]
            if all(isinstance(item, int) for item in items):
                return [item for item in items if isinstance(item, int)]
            raise ValueError("one list, not lists inside a list")
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            one, other = _evaluated(left), _evaluated(right)
            if isinstance(one, int) and isinstance(other, int):
                return min(one + other, MAX_LAYERS + 1)
            if isinstance(one, list) and isinstance(other, list):
                return _bounded(one, len(one) + len(other)) + other
            raise ValueError("lists added to lists")
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            one, other = _evaluated(left), _evaluated(right)
            if isinstance(one, int) and isinstance(other, int):
                return min(one * other, MAX_LAYERS + 1)
            if isinstance(one, list) and isinstance(other, int):
                return _bounded(one, len(one) * other) * other
            if isinstance(one, int) and isinstance(other, list):
                return _bounded(other, len(other) * one) * one
            raise ValueError("a list times a number")
    raise ValueError("a list expression of numbers, [ ], ( ), + and * only")


def _bounded(items: list[int], count: int) -> list[int]:
    """Return the items unchanged. Raises ValueError if `count`, the length of what they become, is too large."""
    if count > MAX_LAYERS:
        raise ValueError(f"at most {MAX_LAYERS} layers")
    return items
