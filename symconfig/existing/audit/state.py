"""A point on the way from a run to a plan."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class State:
    """One configuration on the way. gain: share of the step time before that it saves; below 0: it takes longer."""

    changes: tuple[str, ...]
    step_s: float
    device_bytes: float
    fits: bool
    gain: float = 0.0

    @property
    def order(self) -> tuple[bool, float]:
        """The better of two: what fits by its time, what does not by its memory."""
        return not self.fits, self.step_s if self.fits else self.device_bytes
