"""The kinds of checkpoints: a format, and where it has several, how it holds the optimizer's state."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kind:
    """Written as one word, `torch_dist:dp_reshardable`; a format alone means what a release writes unasked."""

    format: str
    optimizer: str = ""

    def __str__(self) -> str:
        return f"{self.format}:{self.optimizer}" if self.optimizer else self.format
