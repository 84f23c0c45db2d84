"""Bubble and activations held against the papers' closed forms, with free messages on uniform stages."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from symconfig.schedule.schedules import SCHEDULES
from symconfig.schedule.simulate import simulate
from tests.schedule.support import most_held, uniform

STAGES, MICROBATCHES = st.integers(1, 16), st.integers(1, 64)


@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from(["gpipe", "1f1b"]), p=STAGES, m=MICROBATCHES)
def test_bubble_of_one_chunk_a_stage(name: str, p: int, m: int) -> None:
    """arXiv 2104.04473, section 2.2.1: p - 1 forwards and backwards, for GPipe and 1F1B alike."""
    timeline = simulate(SCHEDULES[name], uniform(p), m)
    assert timeline.step_s == pytest.approx(3 * (m + p - 1))
    for stage in range(p):
        assert most_held(timeline, stage) == (m if name == "gpipe" else min(m, p - stage))


@settings(max_examples=40, deadline=None)
@given(p=st.integers(2, 16), v=st.integers(2, 8), m=MICROBATCHES, more=st.integers(0, 16))
def test_bubble_of_legal_interleaving(p: int, v: int, m: int, more: int) -> None:
    """arXiv 2104.04473, section 2.2.2: the bubble is 1/v of it; Megatron's warm-up says what is held."""
    group = p + more
    interleaved = SCHEDULES["interleaved"]
    assume(interleaved.problem(p, v, m, group) is None)
    timeline = simulate(interleaved, uniform(p, v), m, group)
    assert timeline.step_s == pytest.approx(3 * (m * v + p - 1))
    for stage in range(p):
        assert most_held(timeline, stage) == min(m * v, 2 * (p - stage - 1) + (v - 1) * group + 1)
