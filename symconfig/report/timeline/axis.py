"""Where seconds lie on paper: the pieces of a step side by side, with a gap where something is left out, and ticks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from symconfig.format import seconds
from symconfig.report.timeline.windows import Window

_STEPS = (1.0, 2.0, 5.0, 10.0)
_IN_MS = 1.0  # a step that is shorter has its axis in milliseconds


@dataclass(frozen=True, slots=True)
class Axis:
    """A piece of the step between two places."""

    piece: Window
    left: float
    right: float

    def place(self, at_s: float) -> float:
        """Return the pixel of that time, or of the end of the piece that is nearer to it."""
        share = (at_s - self.piece.start_s) / self.piece.seconds
        return self.left + min(max(share, 0.0), 1.0) * (self.right - self.left)


def axes(pieces: tuple[Window, ...], left: float, right: float, gap: float) -> tuple[Axis, ...]:
    """Return the axes of the pieces, all to one scale."""
    scale = (right - left - gap * (len(pieces) - 1)) / sum(piece.seconds for piece in pieces)
    placed, at = [], left
    for piece in pieces:
        placed.append(Axis(piece, at, at + scale * piece.seconds))
        at = placed[-1].right + gap
    return tuple(placed)


def ticks(axis: Axis, apart: float, total_s: float) -> Iterator[tuple[float, str]]:
    """Place and label of round times, at least so many pixels apart."""
    least = apart * axis.piece.seconds / (axis.right - axis.left)
    power = 10.0 ** math.floor(math.log10(least))
    step = power * next(step for step in _STEPS if step * power >= least * (1 - 1e-9))
    for number in range(math.ceil(axis.piece.start_s / step - 1e-9), math.floor(axis.piece.end_s / step + 1e-9) + 1):
        yield axis.place(number * step), _label(number * step, step, total_s)


def _label(at_s: float, step_s: float, total_s: float) -> str:
    """Write a time with as many decimals as neighbours need to differ."""
    unit, factor = ("ms", 1e3) if total_s < _IN_MS else ("s", 1.0)
    decimals = max(0, -math.floor(math.log10(step_s * factor) + 1e-9))
    return f"{at_s * factor:.{decimals}f} {unit}"


def gaps(pieces: tuple[Window, ...]) -> str:
    """Describe what is left out between the pieces, as a sentence; nothing where nothing is."""
    pairs = pairwise(pieces)
    missing = [f"{seconds(before.end_s)} to {seconds(after.start_s)} s" for before, after in pairs]
    return f"Left out, where the axis is broken: {' and '.join(missing)}." if missing else ""
