"""Times and counts as a person writes them: `30d`, `12h`, `2T`, `500B`, `1.5e12`."""

from __future__ import annotations

import re
from fractions import Fraction

from symconfig.errors import InputError

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_COUNTS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "t": 10**12}
_NUMBER = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,18})?(?:[eE][+-]?[0-9]{1,3})?)\s*([A-Za-z]?)", re.ASCII)
DAY_S = _UNITS_S["d"]
MOST_S = 100 * 365 * DAY_S
MOST_TOKENS = 1e18


def time_s(field: str, text: str) -> float:
    """Parse seconds of `30d`: s, m, h, d or w; a number alone is days. Raises InputError."""
    span_s = _read(text, _UNITS_S, "d")
    if span_s is None or not 0 < span_s <= MOST_S:
        raise InputError("wrong value", field=field, got=text, need="a time as 30d, 12h or 2w")
    return float(span_s)


def tokens(field: str, text: str) -> int:
    """Parse tokens of `2T`: K, M, B (or G) or T; none is one by one. Raises InputError, also for a part of a token."""
    number = _read(text, _COUNTS, "")
    if number is None or not 1 <= number <= MOST_TOKENS or number.denominator > 1:
        need = "a whole number of tokens as 2T, 500B or 1e12"
        raise InputError("wrong value", field=field, got=text, need=need)
    return int(number)


def _read(text: str, units: dict[str, int], unit: str) -> Fraction | None:
    match = _NUMBER.fullmatch(text.strip())
    factor = units.get(match[2].lower() or unit) if match else None
    return Fraction(match[1]) * factor if match and factor is not None else None  # exact: 1.1T is whole
