"""When a time counts: warm, steady, and never that of a device which waits for its host."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from symconfig.measured.gpu.kernels import LEAST_SAMPLES, MOST_RUNS, MOST_SAMPLES, SAMPLE_S, DeviceClock, timed


class Scripted:
    """A clock whose samples are given; time passes by them."""

    def __init__(self, *seconds: float) -> None:
        self.left, self.runs, self.time = list(seconds), [], 0.0

    def sample(self, call: Callable[[int], object], runs: int) -> float:
        self.runs.append(runs)
        seconds = self.left.pop(0) if len(self.left) > 1 else self.left[0]
        self.time += seconds * runs
        return seconds

    def now(self) -> float:
        return self.time


def test_samples_count_from_when_two_agree() -> None:
    clock = Scripted(5e-3, 4e-3, 2e-3, 1.01e-3, *[1.0e-3, 1.2e-3, 1.1e-3] * 4)
    found = timed(clock, lambda index: None, 0.2, clock.now)
    assert found.seconds == pytest.approx(1.1e-3)  # neither the first run nor those while it became faster
    assert found.samples == MOST_SAMPLES
    assert 0 < found.spread < 0.1


def test_short_kernels_run_many_times_in_a_sample_and_long_ones_once() -> None:
    short, long = Scripted(1e-6), Scripted(0.5)
    assert timed(short, lambda index: None, 0.1, short.now).seconds == 1e-6
    assert max(short.runs) == MOST_RUNS
    assert timed(long, lambda index: None, 0.1, long.now).samples == LEAST_SAMPLES
    assert max(long.runs) == 1
    middle = Scripted(SAMPLE_S / 10)
    timed(middle, lambda index: None, 0.1, middle.now)
    assert max(middle.runs) == 10


def test_a_kernel_that_never_settles_ends_with_its_share_of_time() -> None:
    wild = Scripted(*([1e-3, 2e-3] * 200))
    found = timed(wild, lambda index: None, 0.1, wild.now)
    assert LEAST_SAMPLES <= found.samples <= MOST_SAMPLES
    assert wild.time < 0.2
    assert found.spread > 0.1


class Cuda:
    """A device that is through with its lead at once until the lead is long enough; a run takes `run_s`."""

    def __init__(self, enough_s: float, run_s: float) -> None:
        self.enough_s, self.run_s, self.leads, self.log = enough_s, run_s, [], []

    def _sleep(self, cycles: int) -> None:
        self.leads.append(cycles / 2e9)
        self.log.append("sleep")

    def Event(self, enable_timing: bool) -> SimpleNamespace:
        assert enable_timing
        lead = self.leads
        return SimpleNamespace(
            record=lambda: self.log.append("record"),
            query=lambda: lead[-1] < self.enough_s,
            synchronize=lambda: self.log.append("synchronize"),
            elapsed_time=lambda end: 1e3 * self.run_s * self.log[-6:].count("run"),
        )


def test_a_device_that_waited_for_its_host_is_asked_again_with_a_longer_lead() -> None:
    cuda = Cuda(enough_s=3e-3, run_s=1e-9)
    clock = DeviceClock(SimpleNamespace(cuda=cuda))
    assert clock.sample(lambda index: cuda.log.append("run"), 3) == pytest.approx(1e-9)
    assert cuda.leads == sorted(cuda.leads)
    assert cuda.leads[-2] < 3e-3 <= cuda.leads[-1]
    # Nothing synchronises between the first event and the last.
    assert cuda.log[-7:] == ["sleep", "record", "run", "run", "run", "record", "synchronize"]


def test_a_host_that_is_never_fast_enough_ends_the_search_for_a_lead() -> None:
    cuda = Cuda(enough_s=1e9, run_s=1e-9)
    DeviceClock(SimpleNamespace(cuda=cuda)).sample(lambda index: cuda.log.append("run"), 3)
    assert 1 < len(cuda.leads) < 12
