"""Operators in a row grouped into layers of similar work, between which a pipeline may be cut.

Zheng et al., Alpa, OSDI 2022, section 5.2 groups operators before its dynamic program over stages, with a bound on how
far work may differ. Here the instances of repeats are found already, and stay whole where they are no heavier than a
layer may be.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from symconfig.graph.program.repeats import Run

Array = NDArray[np.float64]
UNEVEN = 0.5  # of a layer's mean work: how far a cut may be moved to where less crosses


def layers(work: Array, crossing: Array, runs: Sequence[Run], most: int) -> tuple[int, ...]:
    """Return where layers begin, and where the last one ends: at most so many, and those whose work is most alike.

    work: [operators]. crossing: [operators + 1], bytes that go over each cut.
    """
    before: Array = np.concatenate([[0.0], np.cumsum(work)])
    room = UNEVEN * before[-1] / most
    places = _borders(before, runs, before[-1] / most + room)
    if len(places) > most + 1:
        places = [0, *_narrow(places[1:-1], before, crossing, room / 2), len(work)]
    return tuple(places) if len(places) <= most + 1 else _alike(places, before[places], most)


def _borders(before: Array, runs: Sequence[Run], heaviest: float) -> list[int]:
    """Return the ends of operators, but for those inside an instance of a repeat that is light enough."""
    inside: set[int] = set()
    for run in runs:
        if before[run.start + run.period] - before[run.start] <= heaviest:
            firsts = range(run.start, run.end, run.period)
            inside.update(place for first in firsts for place in range(first + 1, first + run.period))
    return [place for place in range(len(before)) if place not in inside]


def _narrow(places: Sequence[int], before: Array, crossing: Array, span: float) -> list[int]:
    """Return the borders over which no more goes than over any of the others that little work lies between."""
    at, bytes_ = before[list(places)], crossing[list(places)]
    lows, highs = np.searchsorted(at, at - span, "left"), np.searchsorted(at, at + span, "right")
    every = zip(places, bytes_, lows.tolist(), highs.tolist(), strict=True)
    return [place for place, mine, low, high in every if mine <= bytes_[low:high].min()]


def _alike(places: Sequence[int], before: Array, most: int) -> tuple[int, ...]:
    """Choose, of half as many layers to as many, those with the least mean square of work over its mean."""
    square = (before[None, :] - before[:, None]) ** 2  # [from, to]
    square[np.tril_indices(len(before))] = np.inf
    least, came, uneven = square[0].copy(), [np.zeros(len(before), np.int64)], [np.inf]
    for number in range(2, most + 1):
        sums = least[:, None] + square
        came.append(sums.argmin(axis=0))
        least = sums.min(axis=0)
        uneven.append(float(least[-1]) * number if number >= most / 2 else np.inf)
    ends = [len(places) - 1]
    for back in reversed(came[: int(np.argmin(uneven)) + 1]):
        ends.append(int(back[ends[-1]]))
    assert all(first < last for first, last in pairwise(reversed(ends)))
    return tuple(places[end] for end in reversed(ends))
