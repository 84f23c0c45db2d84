"""An integer program's solver: the processor time that it and this process have spent, and what CBC's log says.

PuLP passes on neither CBC's bound nor whether its time ran out. A limit is on processor time, so that a busy machine
changes no answer.
"""

from __future__ import annotations

import os
import re
import time

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


def spent_s() -> float:
    """Return the processor time of this process, and of the processes that it has waited for."""
    children = os.times()
    return time.process_time() + children.children_user + children.children_system
