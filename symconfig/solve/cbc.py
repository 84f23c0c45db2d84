"""Read CBC's log: PuLP passes on neither its bound nor whether its time ran out."""

from __future__ import annotations

import re

_LOWER = re.compile(r"Lower bound:\s+([-+.\de]+)")
_TOTAL = re.compile(r"Total time \(CPU seconds\):\s+([.\d]+)")  # in hundredths


def lower_bound(log: str) -> float | None:
    """Return the bound of the objective where CBC stopped early."""
    match = _LOWER.search(log)
    return float(match[1]) if match else None


def in_time(log: str, limit_s: float) -> bool:
    """Return whether CBC ended before its limit: it says "infeasible" where its preprocessing runs out of time, too."""
    total = _TOTAL.search(log)
    return total is not None and float(total[1]) + 0.01 < limit_s
