"""A long formula on several lines, broken at its operators."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

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
    call = re.fullmatch(r"([^(]*\()(.+)(\))", formula)
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


def listed(parts: Sequence[str], width: int) -> list[str]:
    """Return parts as lines of at most `width` letters, a comma behind each but the last."""
    return _packed([f"{part}," for part in parts[:-1]] + list(parts[-1:]), width, " ")
