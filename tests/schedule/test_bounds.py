"""Lower bounds of 1F1B and interleaved 1F1B against simulations, exact linear programs and their certificates."""

from __future__ import annotations

import numpy as np
import pulp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from symconfig.schedule.bounds import (
    Exchanged,
    Sums,
    even_bound_s,
    even_exchanged_s,
    exchanged_bound_s,
    layout_bound_s,
)
from symconfig.schedule.interleaved import PAIRED_INTERLEAVED
from symconfig.schedule.schedules import SCHEDULES
from symconfig.schedule.simulate import simulate
from symconfig.schedule.timeline import Timeline
from symconfig.schedule.times import Array, Start, Times

SHAPES = st.one_of(
    st.tuples(st.integers(1, 8), st.just(1), st.integers(1, 16)),
    st.builds(lambda p, v, groups: (p, v, p * groups), st.integers(2, 6), st.integers(2, 4), st.integers(1, 4)),
)


def run(p: int, v: int, m: int, forward: Array, backward: Array) -> Timeline:
    """forward, backward: by number of the chunk in the model."""
    columns = [seconds.reshape(v, p).T for seconds in (forward, backward)]
    schedule = SCHEDULES["1f1b" if v == 1 else "interleaved"]
    return simulate(schedule, Times(columns[0], 0 * columns[0], columns[1], 0 * columns[1]), m)


@settings(max_examples=150, deadline=None)
@given(shape=SHAPES, seed=st.integers(0, 2**32 - 1))
def test_no_simulation_is_below(shape: tuple[int, int, int], seed: int) -> None:
    p, v, m = shape
    random = np.random.default_rng(seed)
    forward, backward = random.exponential(size=(2, p * v)) * (random.random((2, p * v)) < 0.8)
    step_s = run(p, v, m, forward, backward).step_s * (1 + 1e-9)
    stages = (forward + backward).reshape(v, p).sum(axis=0)
    passes = [seconds.reshape(v, p).T for seconds in (forward, backward)]
    assert m * stages.max() <= layout_bound_s(*passes, m) * (1 + 1e-9)
    assert layout_bound_s(*passes, m) <= step_s
    assert even_bound_s(m, p, v, stages.sum()) <= step_s


@settings(max_examples=200, deadline=None)
@given(shape=SHAPES, seed=st.integers(0, 2**32 - 1), group=st.integers(0, 3), paired=st.booleans())
def test_no_simulation_with_collectives_is_below(
    shape: tuple[int, int, int], seed: int, group: int, paired: bool
) -> None:
    p, v, m = shape
    random = np.random.default_rng(seed)
    group = min(p + group, m) if v > 1 else p
    paired = paired and v > 1
    m -= m % group if v > 1 and m % group < p else 0
    forward, backward, gather, reduce = random.exponential(size=(4, p, v)) * (random.random((4, p, v)) < 0.85)
    gather, reduce = random.choice([0.1, 1.0, 5.0]) * gather, random.choice([0.1, 1.0, 5.0]) * reduce
    hidden = random.exponential(size=(2, p, v)) * paired * random.choice([0.0, 0.3, 1.0])
    hide, contention = np.zeros((p, v)), random.choice([0.0, 0.2, 0.5])
    hide[0] = random.random() * (v == 1)
    gathers = (Start.APART, Start.ON_DEMAND if v == 1 else Start.AHEAD)[random.integers(2)]
    reduces = (Start.APART, Start.AHEAD)[random.integers(2)]
    times = Times(
        forward + hidden[0], 0 * forward, backward + hidden[1], 0 * forward, gather=gather, reduce=reduce,
        gathers=gathers, reduces=reduces, hide=hide, contention=contention, paired=hidden.sum(axis=0),
    )  # fmt: skip
    schedule = PAIRED_INTERLEAVED if paired else SCHEDULES["1f1b" if v == 1 else "interleaved"]
    step_s = simulate(schedule, times, m, group).step_s * (1 + 1e-9)
    moved = Exchanged(gather, reduce, gathers, reduces, hide, hidden.sum(axis=0), contention)
    bound_s = exchanged_bound_s(forward, backward, m, group, moved, paired)
    assert bound_s <= step_s
    assert group > p or layout_bound_s(forward, backward, m, paired) <= bound_s * (1 + 1e-9)
    sums = Sums(gather.sum(), reduce.sum(), gathers, reduces, float(hide[0, 0]))
    count, stages, chunks, groups = map(np.array, (m, p, v, group))
    total_s = (forward + backward).sum()
    assert even_exchanged_s(count, stages, chunks, total_s, sums, groups, contention) <= step_s


def test_a_stage_that_only_exchanges_is_bound_by_it_exactly() -> None:
    """Two stages of two chunks, nothing computed: a stage gathers and reduces 1 + 2 each, one after the other."""
    nothing, each = np.zeros((2, 2)), np.array([[1.0, 2.0], [1.0, 1.0]])
    times = Times(*(nothing,) * 4, gather=each, reduce=each)
    moved = Exchanged(each, each, times.gathers, times.reduces, nothing, nothing, 0.0)
    assert float(exchanged_bound_s(nothing, nothing, 2, 2, moved)) == pytest.approx(6.0)
    assert simulate(SCHEDULES["interleaved"], times, 2).step_s == pytest.approx(6.0)


@settings(max_examples=60, deadline=None)
@given(shape=SHAPES, seed=st.integers(0, 2**32 - 1), by=st.floats(0.1, 10.0))
def test_a_step_is_convex_and_homogeneous_in_the_durations(shape: tuple[int, int, int], seed: int, by: float) -> None:
    p, v, m = shape
    one, other = np.random.default_rng(seed).exponential(size=(2, 2, p * v))
    whole = [run(p, v, m, *durations).step_s for durations in (one, other, (one + other) / 2, by * one)]
    assert whole[2] <= (whole[0] + whole[1]) / 2 * (1 + 1e-9)
    assert whole[3] == pytest.approx(by * whole[0])


def longest_path(timeline: Timeline, chunks: int) -> Array:
    """[2 chunks]: how often each chunk's forward and backward is in the longest path."""
    ends, work = timeline.end_s, timeline.work
    before: dict[int, int] = {}
    latest: dict[int, int] = {}
    for n, stage in enumerate(work.stage):
        before[n] = latest.get(stage, -1)
        latest[stage] = n
    found = np.zeros(2 * chunks)
    n = int(np.argmax(ends))
    while n >= 0:
        found[work.kind[n] * chunks + work.chunk[n]] += 1
        n = max((work.need[n] - 1, before[n]), key=lambda at: ends[at] if at >= 0 else -1.0)
    return found


def fastest_split(p: int, v: int, m: int) -> float:
    """Seconds of the best distribution of one second a chunk over forwards and backwards, by cutting planes: exact."""
    chunks = p * v
    problem = pulp.LpProblem("fastest", pulp.LpMinimize)
    step = problem.add_variable("step", 0)
    durations = [problem.add_variable(f"x{i}", 0) for i in range(2 * chunks)]
    problem += step
    problem += pulp.lpSum(durations) == chunks
    at = np.full(2 * chunks, 0.5)
    while True:
        timeline = run(p, v, m, at[:chunks], at[chunks:])
        if step.value() is not None and timeline.step_s <= step.value() + 1e-6:
            return timeline.step_s
        cut = longest_path(timeline, chunks)
        problem += step >= pulp.lpSum(int(often) * x for often, x in zip(cut, durations, strict=True) if often)
        problem.solve(pulp.COIN_CMD(path=pulp.PULP_CBC_CMD.pulp_cbc_path, msg=False))
        at = np.array([x.value() for x in durations])


@pytest.mark.parametrize(("p", "m"), [(2, 2), (2, 3), (3, 2), (3, 3), (3, 5), (4, 1), (4, 3), (4, 4), (4, 5), (4, 8)])
def test_some_split_reaches_the_bound_of_1f1b(p: int, m: int) -> None:
    assert fastest_split(p, 1, m) == pytest.approx(float(even_bound_s(m, p, 1, p)))


@pytest.mark.parametrize(("p", "v", "m"), [(2, 2, 2), (2, 2, 4), (2, 2, 8), (2, 3, 4), (3, 2, 6)])
def test_the_bound_of_interleaving_is_near_the_fastest_split(p: int, v: int, m: int) -> None:
    """Even chunks are not the fastest; for two stages the bound is reached."""
    fastest, bound = fastest_split(p, v, m), float(even_bound_s(m, p, v, p * v))
    assert fastest < m * v + p - 1
    assert bound == pytest.approx(fastest) if p == 2 else 0.97 * fastest < bound < fastest


def paths(p: int, v: int, m: int) -> Array:
    """[p v, v p]: of stage i and its r-th chunk, how often the path goes through the chunk of each row and stage."""
    found = np.zeros((p, v, v, p))
    for i in range(p):
        for r in range(v):
            often = found[i, r]
            often[:, i] = m  # all that stage i does
            often[:r, i] -= p  # but for the first group of its chunks before the r-th, instead of which
            often[:r] += 1  # the first microbatch's way through all stages
            often[r, :i] += 1  # and on to stage i
    return found.reshape(p * v, v * p)


@pytest.mark.parametrize("p", [2, 3, 4, 6, 8, 11, 16])
@pytest.mark.parametrize("v", [2, 3, 4, 6, 8])
def test_a_weighted_mean_of_paths_certifies_the_bound_of_interleaving(p: int, v: int) -> None:
    """Positive weights of sum 1 whose mean path goes through every chunk equally often, at least as often as stated."""
    n = p * v
    for groups in (1, 2, 3, 4, 8, 32):
        m = p * groups
        system = np.zeros((n + 1, n + 1))
        system[:n, :n], system[:n, n], system[n, :n] = paths(p, v, m).T, -1.0, 1.0
        *weights, coefficient = np.linalg.solve(system, np.append(np.zeros(n), 1.0))
        assert min(weights) > 0
        assert coefficient >= float(even_bound_s(m, p, v, 1.0)) * (1 - 1e-12)
        assert coefficient > m / p + (p - 1) / (2 * p * v)


def test_the_bounds_work_on_arrays() -> None:
    m, p, v, total = np.array([8, 8, 2]), np.array([4, 4, 4]), np.array([1, 2, 1]), np.array([4.0, 8.0, 4.0])
    assert even_bound_s(m, p, v, total).tolist() == pytest.approx([11.0, float(even_bound_s(8, 4, 2, 8.0)), 32 / 7])
    half = np.array([[[0.5, 1.0]], [[0.5, 0.5]]])  # [pp, vpp, 2] forward, and as much backward
    assert layout_bound_s(half, half, 4).tolist() == pytest.approx([5.0, 8.0])
