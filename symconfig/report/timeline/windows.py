"""Which pieces of a step are shown where the whole is too long, and where their seconds lie on paper.

The pieces are its start, a part of the steady state and its end, side by side with a gap where something is left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from symconfig.format import seconds

# Of what is shown, the most that the start and the end may take each, and the least that they get.
MOST, LEAST = 0.42, 0.2


@dataclass(frozen=True, slots=True)
class Phases:
    """Seconds: of a step; until every stage has warmed up (its first backward begins). Until the first stage cools down
    (its last forward has ended); of a forward on average."""

    total_s: float
    warm_s: float
    cool_s: float
    forward_s: float


@dataclass(frozen=True, slots=True)
class Window:
    """A piece of time from `start_s` up to `end_s`."""

    start_s: float
    end_s: float

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s

    def meets(self, start_s: float, end_s: float) -> bool:
        """Tell whether something of that time is seen in it."""
        return start_s < self.end_s and end_s > self.start_s


def fitting(phases: Phases, room: float, least: float, wanted: float) -> tuple[Window, ...]:
    """Return the pieces that fit `room` (letters, pixels).

    Of a step whose forwards would be narrower than `least`, it returns some.

    Forwards get `wanted` then, or less where the start and the end could not be seen whole.
    """
    ends_s = max(phases.warm_s, phases.total_s - phases.cool_s) / MOST
    narrow_s, wide_s = room * phases.forward_s / least, room * phases.forward_s / wanted
    return windows(phases, phases.total_s if phases.total_s <= narrow_s else min(max(ends_s, wide_s), narrow_s))


def windows(phases: Phases, shown_s: float) -> tuple[Window, ...]:
    """Return three pieces of the step, together `shown_s` long; one where all of it may be shown.

    The start and the end reach so far as the stages warm up and cool down if there is room for it. The steady piece
    between them is the middle of what is left.
    """
    total_s = phases.total_s
    if total_s <= shown_s:
        return (Window(0.0, total_s),)
    first = min(max(phases.warm_s, LEAST * shown_s), MOST * shown_s)
    last = min(max(total_s - phases.cool_s, LEAST * shown_s), MOST * shown_s)
    steady, middle = shown_s - first - last, (first + total_s - last) / 2
    return (Window(0.0, first), Window(middle - steady / 2, middle + steady / 2), Window(total_s - last, total_s))


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
