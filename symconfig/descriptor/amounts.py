"""Amounts with units, as people write them: `96GB`, `90GiB`, `300GB/s`, `400Gb/s`, `3.4us`, `989 TFLOP/s`.

Units are read by the letter: a small b is a bit, a capital B is a byte, k to P are powers of a thousand.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from math import inf

from symconfig.units import GIB

# Decimals, so that 5us is the number that 5e-6 is.
_POWERS = {"k": Decimal(10**3), "M": Decimal(10**6), "G": Decimal(10**9), "T": Decimal(10**12), "P": Decimal(10**15)}
_GIB = Decimal(GIB)
_BYTES = {f"{prefix}B": power for prefix, power in _POWERS.items()}
_BYTES |= {"MiB": _GIB / 1024, "GiB": _GIB, "TiB": _GIB * 1024}
_PARTS = {"b": 8, "bit": 8, "B": 1}  # of a byte
_SPEEDS = {f"{prefix}{unit}": _POWERS[prefix] / part for prefix in "MGT" for unit, part in _PARTS.items()}
_AMOUNT = re.compile(r"(?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*(?P<unit>[A-Za-zµ/]+)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of amount. units: each with its factor; need: how a person writes one."""

    units: Mapping[str, Decimal]
    need: str


SIZE = Kind(_BYTES, "a size as 96GB or 90GiB")
SPEED = Kind(
    {f"{unit}{end}": factor for unit, factor in _SPEEDS.items() for end in ("/s", "ps")},
    "a speed as 300GB/s or 400Gb/s",
)
SPAN = Kind(
    {
        unit: Decimal(power)
        for unit, power in (("s", "1"), ("ms", "1e-3"), ("us", "1e-6"), ("µs", "1e-6"), ("ns", "1e-9"))
    },
    "a time as 3.4us",
)
PEAK = Kind(
    {f"{prefix}FLOP{end}": power for prefix, power in _POWERS.items() for end in ("/s", "S")}, "a rate as 989TFLOP/s"
)


def amount(text: str, kind: Kind) -> float:
    """Return the amount in bytes, bytes/s, seconds or FLOP/s. Raises ValueError with what is wrong."""
    match = _AMOUNT.fullmatch(text.strip())
    if match is None:
        raise ValueError("is no number with a unit")
    unit = match["unit"]
    if unit is None:
        raise ValueError("has no unit")
    if unit not in kind.units:
        raise ValueError(_wrong_unit(unit, kind))
    value = float(Decimal(match["number"]) * kind.units[unit])
    if value == inf:
        raise ValueError("is no finite number")
    return value


def _wrong_unit(unit: str, kind: Kind) -> str:
    """Say why a unit is none here; bits and bytes, which differ by one letter, by their names."""
    alike = [known for known in kind.units if known.lower() == unit.lower()]
    if len(alike) > 1:
        return f"{unit} is neither {' nor '.join(f'{known} ({_word(known)})' for known in alike)}"
    if kind is SIZE and re.fullmatch(r"[kMGT]i?b(it)?", unit):
        return f"{unit} counts bits, and a memory is counted in bytes"
    if kind is SIZE and unit in SPEED.units:
        return f"{unit} is a speed"
    if kind is SPEED and unit in (*SIZE.units, *_SPEEDS):
        return f"{unit} is no speed without /s"
    return f"{unit} is no unit of it" + (f", {alike[0]} is" if alike else "")


def _word(unit: str) -> str:
    return "bytes" if "B" in unit else "bits"
