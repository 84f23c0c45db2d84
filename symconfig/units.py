"""Binary units and digits, for text and files: inside, everything is bytes and as it was computed."""

from __future__ import annotations

GIB = 2.0**30
MIB = 2.0**20


def significant(value: float, digits: int) -> float:
    return float(f"{value:.{digits}g}")
