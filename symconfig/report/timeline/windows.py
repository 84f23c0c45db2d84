"""Which pieces of a step are shown where the whole is too long: its start, a part of the steady state, its end."""

from __future__ import annotations

from dataclasses import dataclass

# Of what is shown, the most that the start and the end may take each, and the least that they get.
MOST, LEAST = 0.42, 0.2


@dataclass(frozen=True, slots=True)
class Phases:
    """Seconds: of a step; until every stage has warmed up (its first backward begins).

    Until the first stage cools down (its last forward has ended); of a forward on average.
    """

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
