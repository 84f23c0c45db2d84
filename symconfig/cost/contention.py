"""What work loses to a collective beside it, and what of the collective shows then."""

from __future__ import annotations

from typing import Any

from symconfig.cost import compiled

# Share of the time of a hidden collective that the work beside it loses: NCCL's kernels hold compute units (24 to 32 of
# 108 to 132), so that a matrix product needs another wave, and both want memory. Of 0.2, 0.3 and 0.45 it leaves the
# smallest errors on sources left out of the fit.
CONTENTION = 0.2


def shown_s(seconds: Any, work_s: Any, hide: Any, share: Any = CONTENTION) -> Any:
    """Return what of a collective shows beside work, with what the work loses to it. hide: the share of the work that
    it may hide behind. share: of the hidden time, lost.
    """
    slowed = compiled.slowed_s(seconds, work_s, hide, share)
    return compiled.exposed_s(seconds, work_s + slowed, hide) + slowed
