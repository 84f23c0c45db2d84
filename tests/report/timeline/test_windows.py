"""Which pieces of a long step are shown."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from symconfig.report.timeline.chart import Memory
from symconfig.report.timeline.windows import Phases, Window, axes, fitting, gaps, ticks, windows
from tests.report.timeline.support import made

share = st.floats(0.0, 1.0)


def test_a_short_step_is_shown_whole() -> None:
    assert windows(Phases(10.0, 3.0, 7.0, 1.0), 10.0) == (Window(0.0, 10.0),)


@given(share, share, st.floats(0.01, 0.99))
def test_a_long_one_in_three_pieces_that_do_not_overlap(warm: float, cool: float, shown: float) -> None:
    total = 100.0
    found = windows(Phases(total, warm * total, cool * total, 1.0), shown * total)
    assert sum(piece.seconds for piece in found) == pytest.approx(shown * total)
    edges = [edge for piece in found for edge in (piece.start_s, piece.end_s)]
    assert edges == sorted(edges)
    assert edges[0] == 0.0
    assert edges[-1] == total
    assert all(piece.seconds >= 0.15 * shown * total for piece in found)


def test_the_start_and_the_end_are_seen_whole_where_there_is_room() -> None:
    phases = Phases(1000.0, 20.0, 950.0, 1.0)
    first, steady, last = fitting(phases, 1200.0, 3.0, 15.0)
    assert first.end_s >= 20.0
    assert last.start_s <= 950.0
    assert first.end_s < steady.start_s < steady.end_s < last.start_s


def test_phases_of_an_even_1f1b() -> None:
    """Stage 0 begins its first backward after 4 forwards down and 3 backwards up, and ends its last forward
    (p - 1 backwards of 2 s and (p - 1) forwards of 1 s and a backward before the end of 33 s)."""
    phases = made(m=8).phases
    assert phases.forward_s == pytest.approx(1.0)
    assert phases.warm_s == pytest.approx(4 + 3 * 2)
    assert phases.total_s == pytest.approx((8 + 4 - 1) * 3 + 0.5)
    assert phases.cool_s < 33 - 3


def test_the_most_of_each_interval_is_that_of_a_scan() -> None:
    rng = np.random.default_rng(3)
    seconds = np.append(0.0, np.sort(rng.random(40)))
    memory = Memory(seconds, rng.random(41))
    edges = np.linspace(0.0, 1.1, 24)
    for begin, end, most in zip(edges[:-1], edges[1:], memory.most(edges), strict=True):
        inside = (seconds > begin) & (seconds < end)
        before = memory.bytes[seconds <= begin][-1]
        assert most == max([before, *memory.bytes[inside]])


def test_an_axis_keeps_its_scale_over_the_gaps() -> None:
    pieces = (Window(0.0, 2.0), Window(5.0, 6.0), Window(9.0, 10.0))
    drawn = axes(pieces, 100.0, 540.0, 20.0)
    assert [(axis.left, axis.right) for axis in drawn] == [(100, 300), (320, 420), (440, 540)]
    assert drawn[1].place(5.5) == 370
    assert gaps(pieces) == "Left out, where the axis is broken: 2.000 to 5.000 s and 6.000 to 9.000 s."
    assert gaps(pieces[:1]) == ""


@pytest.mark.parametrize(("end_s", "unit"), [(0.35, "ms"), (7.0, "s"), (120.0, "s"), (0.0004, "ms")])
def test_ticks_are_round_apart_and_all_different(end_s: float, unit: str) -> None:
    (axis,) = axes((Window(0.0, end_s),), 0.0, 1000.0, 0.0)
    found = list(ticks(axis, 90.0, end_s))
    places, labels = zip(*found, strict=True)
    assert 4 <= len(found) <= 12
    assert np.diff(places).min() >= 90
    assert len(set(labels)) == len(labels)
    assert all(label.endswith(f" {unit}") for label in labels)
    assert [float(label.split()[0]) * (1e-3 if unit == "ms" else 1) for label in labels] == pytest.approx(
        [place / 1000 * end_s for place in places]
    )
