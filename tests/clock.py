"""How long something takes on a machine that others use, too: the quickest of a few runs, in seconds of a processor."""

from __future__ import annotations

from collections.abc import Callable
from time import process_time

RUNS = 3


def quickest_s(work: Callable[[], object]) -> float:
    """Return the processor's seconds of the quickest run."""
    taken = []
    for _ in range(RUNS):
        start = process_time()
        work()
        taken.append(process_time() - start)
    return min(taken)
