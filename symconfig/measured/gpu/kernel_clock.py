"""Seconds of a kernel that can be trusted: warm, alone on the device, never waiting for the host, with their spread."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any, Protocol

Call = Callable[[int], object]  # the i-th run of a kernel; it takes the next set of buffers

SAMPLE_S = 5e-3  # of one sample, of as many runs as that takes
MOST_RUNS = 50  # of a sample: all of them wait in the device's queue, which holds about a thousand
STABLE = 0.03  # two samples this close: the clock and the caches have settled
LEAST_SAMPLES, MOST_SAMPLES = 3, 11
_LEAD_S, _MOST_LEAD_S = 5e-4, 0.05
_LEAD = 1.5  # over what the host took to queue the runs before
_CYCLES_PER_S = 2e9  # of the fastest GPUs; a slower one waits longer, which does no harm


class Clock(Protocol):
    def sample(self, call: Call, runs: int) -> float:
        """Return the mean seconds of one of `runs` calls back to back."""


class HostClock:
    """A clock for a CPU, and for the host's own time to launch work."""

    def __init__(self, synchronize: Callable[[], None] = lambda: None) -> None:
        self._synchronize = synchronize

    def sample(self, call: Call, runs: int) -> float:
        """Return the host's mean seconds to make one call, the device's work not waited for."""
        self._synchronize()
        started = time.perf_counter()
        for run in range(runs):
            call(run)
        ended = time.perf_counter()
        self._synchronize()
        return (ended - started) / runs


class DeviceClock:
    """CUDA events around runs that were all queued while the device was kept busy: it never waits for the host."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._queue_s = 0.0  # of the host, for one run

    def sample(self, call: Call, runs: int) -> float:
        """Return the device's mean seconds of one call, measured by events.

        Repeats with a longer lead, up to _MOST_LEAD_S, while the device may have waited for the host.
        """
        lead_s = max(_LEAD_S, _LEAD * self._queue_s * runs)
        while True:
            lead_s = min(lead_s, _MOST_LEAD_S)
            seconds, starved = self._once(call, runs, lead_s)
            if not starved or lead_s >= _MOST_LEAD_S:
                return seconds / runs
            lead_s *= 2

    def _once(self, call: Call, runs: int, lead_s: float) -> tuple[float, bool]:
        """Return the seconds of all runs, and whether the device may have waited for the host.

        Updates the host's queueing time per run.
        """
        cuda = self._torch.cuda
        start, end = (cuda.Event(enable_timing=True) for _ in range(2))
        cuda._sleep(int(lead_s * _CYCLES_PER_S))
        start.record()
        queued = time.perf_counter()
        for run in range(runs):
            call(run)
        end.record()
        queued = time.perf_counter() - queued
        late = start.query()
        end.synchronize()
        seconds = 1e-3 * start.elapsed_time(end)
        self._queue_s = queued / runs
        return seconds, late and seconds < 2 * queued


@dataclass(frozen=True, slots=True)
class Timing:
    """Median seconds of one run; half the interquartile range of the samples over it; how many samples."""

    seconds: float
    spread: float
    samples: int


def timed(clock: Clock, call: Call, share_s: float, now: Callable[[], float] = time.perf_counter) -> Timing:
    """Return the median time of a call over repeated samples, taking about `share_s` seconds.

    Two untimed runs come first, then samples until two agree (or a third of the time is over); only later ones count.
    """
    for run in range(2):  # what first runs do besides: libraries loaded, memory taken, kernels compiled
        call(run)
    started = now()
    runs = max(1, min(MOST_RUNS, int(SAMPLE_S / max(clock.sample(call, 1), 1e-9))))
    before = clock.sample(call, runs)
    while now() - started < share_s / 3:
        after = clock.sample(call, runs)
        settled = abs(after - before) <= STABLE * after
        before = after
        if settled:
            break
    samples: list[float] = []
    while len(samples) < LEAST_SAMPLES or (len(samples) < MOST_SAMPLES and now() - started < share_s):
        samples.append(clock.sample(call, runs))
    middle = median(samples)
    low, _, high = quantiles(samples, n=4, method="inclusive")
    return Timing(middle, (high - low) / 2 / middle, len(samples))
