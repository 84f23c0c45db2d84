"""The other schedules under their papers' conditions: bubble and memory as the papers state them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from symconfig.schedule.schedules import SCHEDULES
from symconfig.schedule.simulate import simulate
from symconfig.schedule.timeline import Timeline
from tests.schedule.support import most_held, uniform


def bubble(timeline: Timeline, microbatch_s: float) -> float:
    return timeline.step_s - timeline.m * microbatch_s


@settings(max_examples=40, deadline=None)
@given(p=st.integers(1, 16), more=st.integers(0, 48), inputs=st.floats(1.0, 2.0), weights=st.floats(0.25, 1.0))
def test_zb_h1(p: int, more: int, inputs: float, weights: float) -> None:
    """arXiv 2401.10241, table 2: (p - 1)(T_F + T_B - T_W), at most p microbatches, as 1F1B's first stage has.

    Stated for passes of about one length; here T_W <= T_F <= T_B.
    """
    timeline = simulate(SCHEDULES["zb-h1"], uniform(p, 1, 1.0, inputs, weights), p + more)
    assert bubble(timeline, 1 + inputs + weights) == pytest.approx((p - 1) * (1 + inputs - weights))
    assert {most_held(timeline, stage) for stage in range(p)} == {p}


@settings(max_examples=30, deadline=None)
@given(p=st.integers(1, 16), more=st.integers(0, 48))
def test_zb_v(p: int, more: int) -> None:
    """arXiv 2401.10241, section 6: no bubble between a stage's first and last task where T_F = T_B = T_W.

    m >= 2 p - 1; with the activations of 1F1B's first stage: 2 p of half the size.
    """
    timeline = simulate(SCHEDULES["zb-v"], uniform(p, 2), 2 * p - 1 + more)
    for stage in range(p):
        spans = [(event.start_s, event.end_s) for event in timeline.events(stage) if event.kind != "send"]
        assert spans[-1][1] - spans[0][0] == pytest.approx(timeline.busy_s[stage])
        assert most_held(timeline, stage) == 2 * p
    assert timeline.placed[0] == (0, 2 * p - 1)


@settings(max_examples=30, deadline=None)
@given(half=st.integers(1, 8), more=st.integers(0, 16), double=st.integers(1, 3))
def test_dualpipe(half: int, more: int, double: int) -> None:
    """arXiv 2412.19437, table 2: (PP/2 - 1)(F&B + B - 3 W), parameters twice, activations of PP + 1 chunks.

    With B = 2 F and W = F, and F&B as long as both or, where all-to-alls hide, shorter.
    """
    p, forward = 2 * half, float(double)
    saved = 0.25 * forward
    times = uniform(p, 1, forward, forward, forward, paired=np.full((p, 1), saved))
    timeline = simulate(SCHEDULES["dualpipe"], times, 2 * p + 2 * more)
    together, backward = 3 * forward - saved, 2 * forward
    pairs = [sum(event.kind == "forward" for event in timeline.events(stage)) for stage in range(p)]
    assert set(pairs) == {timeline.m}
    ideal = timeline.busy_s.max()
    assert timeline.step_s - ideal <= (half - 1) * (together + backward - 3 * forward) + 1e-9
    assert {most_held(timeline, stage) for stage in range(p)} == {p + 1}
    assert all(len(placed) == 2 for placed in timeline.placed)


@settings(max_examples=30, deadline=None)
@given(half=st.integers(1, 8), more=st.integers(0, 16))
def test_dualpipes_bubble_without_hidden_communication(half: int, more: int) -> None:
    timeline = simulate(SCHEDULES["dualpipe"], uniform(2 * half), 4 * half + 2 * more)
    assert bubble(timeline, 3.0) == pytest.approx((half - 1) * (3.0 + 2.0 - 3.0))


@pytest.mark.parametrize(
    ("name", "p", "v", "m", "words"),
    [
        ("1f1b", 4, 2, 8, "got vpp 2, need 1"),
        ("interleaved", 4, 2, 6, "got 2 of 6 in groups of 4, need 0 or 4"),
        ("interleaved", 4, 2, 3, "got 3, need 4"),
        ("zb-v", 4, 1, 8, "got vpp 1, need 2"),
        ("dualpipe", 3, 1, 6, "got 3"),
        ("dualpipe", 4, 1, 6, "got 6, need 8"),
    ],
)
def test_a_shape_that_does_not_do_is_named(name: str, p: int, v: int, m: int, words: str) -> None:
    problem = SCHEDULES[name].problem(p, v, m)
    assert problem is not None
    assert words in problem
