"""What sends cost: closed forms on uniform stages, and a naive simulator beside the fast one; gathers beside work."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from symconfig.schedule.simulate import simulate
from symconfig.schedule.timeline import BACKWARD, FORWARD, Shape, Start, Task, Timeline, Times, orders
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


def stages(*seconds: float, chunks: int = 1) -> np.ndarray:
    return np.repeat(np.array(seconds)[:, None], chunks, axis=1)


def single(m: int = 2, **more: object) -> Timeline:
    return simulate(uniform(1, 1, **more), m)


def test_without_overlap_all_stands_before_and_after() -> None:
    timeline = single(gather=stages(0.5), reduce=stages(0.7))
    assert timeline.step_s == pytest.approx(0.5 + 2 * 3 + 0.7)
    assert timeline.finish_s.tolist() == [timeline.step_s]


@pytest.mark.parametrize(("seconds", "shown"), [(0.25, 0.0), (0.5, 0.0), (0.75, 0.25)])
def test_a_share_of_the_first_forward_hides_the_gather(seconds: float, shown: float) -> None:
    assert single(gather=stages(seconds), hide=0.5).step_s == pytest.approx(6 + shown)


@pytest.mark.parametrize(("seconds", "shown"), [(0.5, 0.0), (1.0, 0.0), (1.5, 0.5)])
def test_a_share_of_the_last_backward_hides_the_reduction(seconds: float, shown: float) -> None:
    assert single(reduce=stages(seconds), hide=0.5).step_s == pytest.approx(6 + shown)


def test_work_beside_a_collective_is_slower() -> None:
    timeline = single(gather=stages(0.4), reduce=stages(1.0), hide=1.0, contention=0.25)
    assert timeline.step_s == pytest.approx(6 + 0.25 * 0.4 + 0.25 * 1.0)


def test_chunks_are_gathered_one_after_the_other() -> None:
    """Stage 0 of 2 runs both microbatches through its first chunk: the second chunk's gather has until then."""
    gather = np.array([[0.5, 2.5], [0.0, 0.0]])
    timeline = simulate(uniform(2, 2, gather=gather, hide=0.5), 2)
    windows = [(event.chunk, event.start_s, event.end_s) for event in timeline.events(0) if event.kind == "gather"]
    assert windows == [(0, 0.0, 0.5), (1, 0.5, 3.0)]
    first = next(event for event in timeline.events(0) if event.kind == "forward" and event.chunk == 1)
    assert first.start_s == pytest.approx(2.5)


def test_early_stages_reduce_while_later_ones_have_nothing_left() -> None:
    """The last stage is done p - 1 backwards before the first: its reduction hides in the cool-down."""
    timeline = simulate(uniform(4, reduce=stages(0, 0, 0, 6), hide=0.5), 8)
    assert timeline.step_s == pytest.approx(3 * (8 + 3))
    assert timeline.finish_s[3] == pytest.approx(3 * 8 + 3 - 1 + 6)


@settings(max_examples=60, deadline=None)
@given(v=st.integers(1, 3), hide=st.floats(0.0, 1.0), contention=st.floats(0.0, 0.9), seed=st.integers(0, 2**32 - 1))
def test_a_step_is_between_all_hidden_and_nothing_hidden(v: int, hide: float, contention: float, seed: int) -> None:
    gather, reduce = np.random.default_rng(seed).exponential(size=(2, 4, v))
    alone = simulate(uniform(4, v), 8).step_s
    timeline = simulate(uniform(4, v, gather=gather, reduce=reduce, hide=hide, contention=contention), 8)
    most = (gather + reduce).sum(axis=1)
    slowed = most.sum() * contention  # one stage's slowdown holds the others up
    assert alone - 1e-9 <= timeline.step_s <= alone + 2 * gather.sum(axis=1).max() + most.max() + slowed + 1e-9
    for stage in range(4):
        channel = sorted((e.start_s, e.end_s) for e in timeline.events(stage) if e.kind in ("gather", "reduce"))
        assert len(channel) == 2 * v
        assert all(a[1] <= b[0] + 1e-9 for a, b in pairwise(channel))
        assert timeline.finish_s[stage] >= channel[-1][1] - 1e-9


@pytest.mark.parametrize(("gathers", "shown"), [(Start.APART, 0.5), (Start.AHEAD, 0.5), (Start.ON_DEMAND, 4 * 0.5)])
def test_gathers_on_demand_come_one_stage_after_the_other(gathers: Start, shown: float) -> None:
    """The first microbatch meets one on each stage; else the filling hides all but the first stage's."""
    each = stages(0.5, 0.5, 0.5, 0.5)
    timeline = simulate(uniform(4, gather=each, gathers=gathers), 8)
    assert timeline.step_s == pytest.approx(3 * (8 + 3) + shown)


def test_buckets_of_the_first_stage_alone_run_beside_its_passes() -> None:
    each = stages(0.5, 0.5, 0.5, 0.5)
    timeline = simulate(
        uniform(4, gather=each, reduce=each, gathers=Start.ON_DEMAND, hide=stages(1.0, 0.0, 0.0, 0.0)), 8
    )
    assert timeline.step_s == pytest.approx(3 * (8 + 3) + 3 * 0.5)


def test_reductions_start_on_all_stages_together() -> None:
    """What one slows on a stage is not waited for on the next: the step loses it once, and the last one itself."""
    each, contention = stages(0.5, 0.5, 0.5, 0.5, chunks=3), 0.2
    plain = simulate(uniform(4, 3), 8)
    timeline = simulate(uniform(4, 3, reduce=each, contention=contention), 8)
    for chunk in (1, 2):
        starts = {
            event.start_s
            for stage in range(4)
            for event in timeline.events(stage)
            if event.kind == "reduce" and event.chunk == chunk
        }
        assert max(starts) - min(starts) < contention * 0.5 + 1e-9
    assert timeline.step_s == pytest.approx(plain.step_s + 2 * contention * 0.5 + 0.5)
