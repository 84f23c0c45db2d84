"""A long step is not followed task by task: its steady part is counted, to the same seconds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from symconfig.errors import InputError
from symconfig.schedule import simulate as simulator
from symconfig.schedule.schedules import SCHEDULES
from symconfig.schedule.simulate import simulate
from symconfig.schedule.times import Start, Times
from tests.schedule.support import most_held, uniform


def drawn(pp: int, vpp: int, rng: np.random.Generator) -> Times:
    """Draw what chunks, messages and collectives take: all stages alike, nearly alike, or some of two kinds."""
    shape = pp, vpp

    def seconds() -> np.ndarray[Any, np.dtype[np.float64]]:
        alike = np.ones(shape) * rng.uniform(0.5, 2.0)
        return [alike, rng.uniform(0.9, 1.1, shape), alike + 0.3 * rng.integers(0, 2, shape)][rng.integers(3)]

    def maybe(value: Any) -> Any:
        return value if rng.integers(2) else None

    forward = seconds()
    return Times(
        forward,
        seconds() * rng.integers(0, 2),
        2 * seconds(),
        seconds() * rng.integers(0, 2),
        busy_s=float(rng.choice([0.0, 0.05])),
        lag_s=float(rng.choice([0.0, 0.1, 1.0])),
        gather=maybe(rng.uniform(0, 8, shape)),
        reduce=maybe(rng.uniform(0, 8, shape)),
        gathers=list(Start)[rng.integers(3)],
        reduces=list(Start)[rng.integers(2)],
        hide=float(rng.choice([0.0, 0.5])),
        contention=float(rng.choice([0.0, 0.2])),
        paired=maybe(0.2 * forward),
    )


@pytest.mark.parametrize("seed", range(45))
def test_counted_steps_take_the_same_seconds_as_simulated_ones(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(seed)
    name = ("1f1b", "interleaved", "interleaved-paired")[seed % 3]
    pp = int(rng.integers(2, 9))
    vpp = 1 if name == "1f1b" else int(rng.integers(2, 5))
    group = pp if name == "1f1b" else int(rng.integers(pp, 2 * pp + 1))
    last = int(rng.integers(pp, group)) if group > pp else 0  # of the last group
    m = group * int(rng.integers(60, 160)) + last
    times = drawn(pp, vpp, rng)
    full = simulate(SCHEDULES[name], times, m, group)
    assert full.left_out == 0
    monkeypatch.setattr(simulator, "MOST_TASKS", 2 * pp * vpp * m - 1)
    monkeypatch.setattr(simulator, "MOST_FOLLOWED", 2 * pp * vpp * m - 1)
    short = simulate(SCHEDULES[name], times, m, group)
    assert short.left_out > 0
    assert short.m == m
    assert len(short.end_s) < len(full.end_s)
    np.testing.assert_allclose(short.finish_s, full.finish_s, rtol=1e-11)
    np.testing.assert_allclose(short.step_s, full.step_s, rtol=1e-11)
    np.testing.assert_allclose(short.busy_s, full.busy_s, rtol=1e-11)
    assert [most_held(short, stage) for stage in range(pp)] == [most_held(full, stage) for stage in range(pp)]


def test_stages_that_drift_apart_are_counted_at_the_pace_of_the_busiest(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second stage needs 12,000 microbatches to fall behind: more than are simulated here."""
    each = np.array([[1.0], [1.0 + 1e-4], [1.0]])
    times = Times(each, 0 * each, each, 0 * each, lag_s=0.3)
    full = simulate(SCHEDULES["1f1b"], times, 40_000)
    monkeypatch.setattr(simulator, "MOST_TASKS", 2_000)
    monkeypatch.setattr(simulator, "MOST_FOLLOWED", 2_000)
    assert simulate(SCHEDULES["1f1b"], times, 40_000).step_s == pytest.approx(full.step_s, rel=1e-3)


def test_a_step_of_a_hundred_million_microbatches_is_counted() -> None:
    line = simulate(SCHEDULES["interleaved"], uniform(8, 4), 10**8)
    assert line.step_s == pytest.approx(3 * 4 * (10**8 + 7 / 4))
    assert len(line.end_s) < 2**17


def test_only_schedules_of_plans_are_counted_and_shapes_that_can_be_followed() -> None:
    with pytest.raises(InputError, match=r"GPipe is not simulated \(got 1,600,000 tasks, need <= 262,144\)"):
        simulate(SCHEDULES["gpipe"], uniform(8), 10**5)
    with pytest.raises(InputError, match=r"interleaved 1F1B is not simulated \(got 8,388,608 tasks, need <= 524,288\)"):
        simulate(SCHEDULES["interleaved"], uniform(256, 16), 256 * 10**4)
