"""Values per layer as Megatron-LM writes them: a number, or a list expression such as ([0]*3+[1]*58).

Megatron-LM gives such an expression to Python's `eval` (arguments.py, _eval_pattern); here Python's parser reads it,
and only numbers, lists, + and * are evaluated.
"""

from __future__ import annotations

import ast
import operator
import re
from typing import Any

from symconfig.descriptor.strict import MAX_LAYERS
from symconfig.frameworks.megatron.flags import Value

_SIGNS = re.compile(r"[\d\s\[\](),+*]+", re.ASCII)
_LONGEST, _LARGEST = 10_000, 10**9  # characters, and a number

Pattern = int | tuple[int, ...]


def layer_pattern(value: Value) -> Pattern:
    """Return an integer as it is, else the number or tuple of numbers of a tuple or a text such as "[0]*3+[1]*58".

    Raises ValueError for None, bools, other text and more than MAX_LAYERS layers; its text says what is needed.
    """
    if isinstance(value, bool) or value is None:
        raise ValueError("a number or a list of 0 and 1")
    if isinstance(value, int):
        return value
    if not isinstance(value, tuple):
        text = str(value).strip()
        if len(text) > _LONGEST or not _SIGNS.fullmatch(text):
            raise ValueError("a list expression of numbers, [ ], ( ), + and * only, such as ([0]*3+[1]*58)")
        try:
            parsed = _evaluated(ast.parse(text, mode="eval").body)
        except (SyntaxError, TypeError, RecursionError, MemoryError):
            raise ValueError("a list expression such as ([0]*3+[1]*58)") from None
        if isinstance(parsed, int):
            return parsed
        value = tuple(parsed)
    items = tuple(item for item in value if isinstance(item, int))
    if len(items) < len(value):
        raise ValueError("a list of 0 and 1")
    return items


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


def _evaluated(node: ast.expr) -> int | list[Any]:
    """Return the number or list of a syntax tree of whole numbers, lists, `+` and `*`. Raises ValueError for anything
    else, and for sums and products above MAX_LAYERS.
    """
    match node:
        case ast.Constant(value=number) if type(number) is int and number < _LARGEST:
            return number
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            return [_evaluated(element) for element in elements]
        case ast.BinOp(left=left, op=(ast.Add() | ast.Mult()) as sign, right=right):
            combined = operator.add if isinstance(sign, ast.Add) else operator.mul
            sides = _evaluated(left), _evaluated(right)
            if combined(*(len(side) if isinstance(side, list) else side for side in sides)) > MAX_LAYERS:
                raise ValueError(f"at most {MAX_LAYERS} layers")
            value: int | list[Any] = combined(*sides)
            return value
    raise ValueError("a list expression of numbers, [ ], ( ), + and * only")
