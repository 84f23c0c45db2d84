"""What sends cost: closed forms on uniform stages, and a naive simulator beside the fast one on any."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from symconfig.schedule.schedules import BACKWARD, FORWARD, Shape, Task, orders
from symconfig.schedule.simulate import simulate
from symconfig.schedule.timeline import Times
from tests.schedule.support import uniform

INTERLEAVED = st.tuples(st.integers(2, 8), st.integers(2, 4), st.integers(1, 4))


@settings(max_examples=40, deadline=None)
@given(shape=INTERLEAVED, lag_s=st.floats(0.0, 0.2), more=st.integers(1, 4))
def test_messages_under_way_show_on_a_microbatchs_way_only(
    shape: tuple[int, int, int], lag_s: float, more: int
) -> None:
    """In groups of p a microbatch passes all p v chunks and back without waiting: every border shows, once a step.

    In larger groups a stage has other microbatches to run meanwhile: the first way down and the last way up show.
    """
    p, v, groups = shape
    times = uniform(p, v, lag_s=lag_s)
    for group, m, shown in ((p, p * groups, p * v - 1), (2 * p, 2 * p * more, p - 1)):
        step_s = simulate(times, m, group).step_s
        assert step_s == pytest.approx(3.0 * (m * v + p - 1) + 2 * shown * lag_s)


@settings(max_examples=40, deadline=None)
@given(p=st.integers(2, 8), v=st.integers(1, 4), groups=st.integers(1, 4))
def test_messages_that_occupy_their_receiver_are_work(p: int, v: int, groups: int) -> None:
    """Interleaved, inner stages run ahead far enough to receive one message more than the ends without delay."""
    busy_s, m = 0.01, p * groups
    timeline = simulate(uniform(p, v, busy_s=busy_s), m)
    inner = 2 * v - (v > 1 or p == 2)
    messages = m * inner + (2 * p - 3 if v > 1 else 2 * (p - 1) - inner - (p > 2))
    assert timeline.step_s == pytest.approx(3.0 * (m * v + p - 1) + messages * busy_s)
    received = [sum(event.kind == "receive" for event in timeline.events(stage)) for stage in range(p)]
    assert received == [m * (2 * v - (stage in (0, p - 1))) for stage in range(p)]


def naive(times: Times, m: int) -> dict[Task, float]:
    """Ends of forwards and backwards, found by looking at every stage again and again."""
    p, v = times.forward.shape
    waiting = [list(tasks) for tasks, _ in orders(Shape(p, v, m, p))]
    where = {task: stage for stage, order in enumerate(waiting) for task in order}
    done: dict[Task, float] = {}
    clock = [0.0] * p
    chunks = p * v
    while any(waiting):
        for stage, order in enumerate(waiting):
            if not order:
                continue
            kind, chunk, j = order[0]
            before = (kind, chunk + (1 if kind == BACKWARD else -1), j)
            if kind == BACKWARD and chunk == chunks - 1:
                before = (FORWARD, chunk, j)
            if before in where and before not in done:
                continue
            remote = before in where and where[before] != stage
            there = done[before] + times.lag_s * remote if before in where else 0.0
            place = (chunk % p, chunk // p)
            parts = (times.forward,) if kind == FORWARD else (times.recompute, times.backward, times.weight)
            clock[stage] = max(clock[stage], there) + times.busy_s * remote + sum(part[place] for part in parts)
            done[order.pop(0)] = clock[stage]
    return done


@settings(max_examples=40, deadline=None)
@given(half=st.integers(1, 3), v=st.integers(1, 3), groups=st.integers(1, 3), seed=st.integers(0, 2**32 - 1))
def test_any_durations_against_a_naive_simulation(half: int, v: int, groups: int, seed: int) -> None:
    p = 2 * half
    random = np.random.default_rng(seed)
    times = Times(*random.exponential(size=(4, p, v)), *random.exponential(size=2))
    timeline = simulate(times, p * groups)
    ends = naive(times, p * groups)
    found = {task: end for track in timeline.tracks for task, end in zip(track.tasks, track.end_s, strict=True)}
    assert found == pytest.approx(ends)
    assert timeline.step_s == pytest.approx(max(ends.values()))
    for stage in range(p):
        own = [event for event in timeline.events(stage) if event.kind != "send"]
        assert all(a.end_s <= b.start_s + 1e-9 for a, b in pairwise(own))
        assert sum(event.end_s - event.start_s for event in own) == pytest.approx(timeline.busy_s[stage])
