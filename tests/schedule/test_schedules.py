"""Orders against megatron-core's own, bubbles and held microbatches against the paper's closed forms."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from symconfig.errors import InputError
from symconfig.schedule import simulate as simulator
from symconfig.schedule.simulate import simulate
from symconfig.schedule.timeline import BACKWARD, FORWARD, Shape, Times, orders, problem
from tests.schedule.support import most_held, uniform

SHAPES = [(2, 2, 4, 2), (4, 2, 8, 4), (4, 3, 10, 6), (4, 2, 9, 5), (8, 4, 16, 8), (3, 2, 3, 3)]
STAGES, MICROBATCHES = st.integers(1, 16), st.integers(1, 64)


@pytest.mark.parametrize(("p", "v", "m", "group"), SHAPES)
def test_interleaving_is_megatrons(p: int, v: int, m: int, group: int) -> None:
    schedules = pytest.importorskip("megatron.core.pipeline_parallel.schedules")
    table = schedules.get_schedule_table(m, v, group)
    for stage, (tasks, _) in enumerate(orders(Shape(p, v, m, group))):
        assert [(j, chunk // p) for kind, chunk, j in tasks if kind == FORWARD] == table
        assert [(j, v - 1 - chunk // p) for kind, chunk, j in tasks if kind == BACKWARD] == table
        assert {chunk % p for _, chunk, _ in tasks} == {stage}


@pytest.mark.parametrize(
    ("shape", "paired"),
    [
        *((shape, False) for shape in ((4, 1, 8, 4), (4, 1, 2, 4), (1, 1, 3, 1), *SHAPES)),
        *((shape, True) for shape in SHAPES),
    ],
)
def test_warm_up_is_megatrons(shape: tuple[int, int, int, int], paired: bool) -> None:
    schedules = pytest.importorskip("megatron.core.pipeline_parallel.schedules")
    p, v, m, group = shape
    for stage, (tasks, warm) in enumerate(orders(Shape(*shape), paired)):
        rank = SimpleNamespace(
            pp_group=SimpleNamespace(size=lambda: p, rank=lambda stage=stage: stage),
            virtual_pipeline_model_parallel_size=v if v > 1 else None,
        )
        _, _, theirs, _ = schedules.get_pp_rank_microbatches(
            m, v, group, overlap_moe_expert_parallel_comm=paired, p2p_communicator=rank
        )
        ahead = [kind for kind, *_ in tasks].index(BACKWARD)
        assert ahead == min(m * v, theirs + 1)  # the warm-up and the steady state's first forward
        assert warm == min(m * v, theirs)


@settings(max_examples=60, deadline=None)
@given(p=STAGES, m=MICROBATCHES)
def test_bubble_of_one_chunk_a_stage(p: int, m: int) -> None:
    """arXiv 2104.04473, section 2.2.1: p - 1 forwards and backwards."""
    timeline = simulate(uniform(p), m)
    assert timeline.step_s == pytest.approx(3 * (m + p - 1))
    for stage in range(p):
        assert most_held(timeline, stage) == min(m, p - stage)


@settings(max_examples=40, deadline=None)
@given(p=st.integers(2, 16), v=st.integers(2, 8), m=MICROBATCHES, more=st.integers(0, 16))
def test_bubble_of_legal_interleaving(p: int, v: int, m: int, more: int) -> None:
    """arXiv 2104.04473, section 2.2.2: the bubble is 1/v of it; Megatron's warm-up says what is held."""
    group = p + more
    assume(problem(Shape(p, v, m, group)) is None)
    timeline = simulate(uniform(p, v), m, group)
    assert timeline.step_s == pytest.approx(3 * (m * v + p - 1))
    for stage in range(p):
        assert most_held(timeline, stage) == min(m * v, 2 * (p - stage - 1) + (v - 1) * group + 1)


@pytest.mark.parametrize(
    ("shape", "words"),
    [((4, 2, 6, 4), "got 2 of 6 in groups of 4, need 0 or 4"), ((4, 2, 3, 4), "got 3, need 4"), ((1, 2, 3, 1), "pp 1")],
)
def test_a_shape_that_megatron_refuses_is_named(shape: tuple[int, int, int, int], words: str) -> None:
    assert words in (problem(Shape(*shape)) or "")


@pytest.mark.parametrize("seed", range(9))
def test_a_long_step_takes_what_it_takes_if_simulated_whole(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(seed)
    pp, vpp = int(rng.integers(2, 7)), (1, 2, 3)[seed % 3]
    group = pp + int(rng.integers(0, 3))
    m = group * int(rng.integers(100, 160))
    times = Times(
        *rng.uniform(0.9, 1.1, (4, pp, vpp)),
        busy_s=0.05,
        lag_s=float(rng.choice([0.0, 0.1, 0.3])),
        gather=rng.uniform(0, 8, (pp, vpp)),
        reduce=rng.uniform(0, 8, (pp, vpp)),
        contention=0.2,
    )
    full = simulate(times, m, group)
    monkeypatch.setattr(simulator, "MOST_TASKS", 2 * pp * vpp * m - 1)
    short = simulate(times, m, group)
    assert full.left_out == 0 < short.left_out
    np.testing.assert_allclose(short.finish_s, full.finish_s, rtol=1e-3)
    np.testing.assert_allclose(short.busy_s, full.busy_s, rtol=1e-3)


def test_steps_of_any_length_are_simulated_but_no_pipeline_of_any_depth() -> None:
    line = simulate(uniform(8, 4), 10**8)
    assert line.step_s == pytest.approx(3 * 4 * (10**8 + 7 / 4))
    with pytest.raises(InputError, match=r"too long to be simulated \(got 8,388,608 tasks, need <= 524,288\)"):
        simulate(uniform(256, 16), 256 * 10**4)
