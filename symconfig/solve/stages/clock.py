"""What a search has spent: seconds of the processor, its solver's too, so that a busy machine changes no answer."""

from __future__ import annotations

import os
import time


def spent_s() -> float:
    """Return the processor time of this process, and of the processes that it has waited for."""
    children = os.times()
    return time.process_time() + children.children_user + children.children_system
