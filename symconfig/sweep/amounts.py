"""Times and counts as a person writes them: `30d`, `12h`, `2T`, `500B`, `1.5e12`."""

from __future__ import annotations

import re
from math import isfinite

from symconfig.errors import InputError, Problem

_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_COUNTS = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}
_NUMBER = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,18})?(?:[eE][+-]?[0-9]{1,3})?)\s*([A-Za-z]?)", re.ASCII)
DAY_S = _UNITS_S["d"]
MOST_S = 100 * 365 * DAY_S
MOST_TOKENS = 1e18


def time_s(field: str, text: str) -> float:
    """Seconds of `30d`: s, m, h, d or w; a number alone is days. Raises InputError."""
    found = _read(text, _UNITS_S, "d")
    if found is None or not 0 < found <= MOST_S:
        raise InputError(Problem("wrong value", field=field, got=text, need="a time as 30d, 12h or 2w"))
    return found


def tokens(field: str, text: str) -> int:
    """Tokens of `2T`: K, M, B (or G) or T; none is one by one. Raises InputError."""
    found = _read(text, _COUNTS, "")
    if found is None or not 1 <= found <= MOST_TOKENS:
        raise InputError(Problem("wrong value", field=field, got=text, need="a number of tokens as 2T, 500B or 1e12"))
    return round(found)


def _read(text: str, units: dict[str, float], unit: str) -> float | None:
    match = _NUMBER.fullmatch(text.strip())
    factor = units.get(match[2].lower() or unit) if match else None
    value = float(match[1]) * factor if match and factor is not None else float("nan")
    return value if isfinite(value) else None
