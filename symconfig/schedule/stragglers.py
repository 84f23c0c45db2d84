"""Replicas of which one is slow: what waiting for it costs, and what bounded staleness saves."""

from __future__ import annotations

import numpy as np

from symconfig.schedule.times import Array


def in_turn(replicas: int, slow: float, clocks: int) -> Array:
    """Return seconds [replicas, clocks]: another replica is `slow` times slower at each step."""
    seconds = np.ones((replicas, clocks))
    steps = np.arange(clocks)
    seconds[steps % replicas, steps] = slow
    return seconds


def always(replicas: int, slow: float, clocks: int) -> Array:
    """Return seconds [replicas, clocks]: one replica is `slow` times slower at every step."""
    seconds = np.ones((replicas, clocks))
    seconds[0] = slow
    return seconds


def step_s(seconds: Array, staleness: int | None) -> float:
    """Return the seconds that a step takes, as replicas / (steps of all replicas together in a second).

    seconds: [replicas, clocks], of each step by itself. staleness: a replica starts its step c when every one has done
    its step c - 1 - staleness (stale synchronous parallel: Ho et al., NIPS 2013, section 2); 0 is a barrier at each
    step, None none at all. The first half warms up.
    """
    replicas, clocks = seconds.shape
    ends = np.zeros((replicas, clocks + 1))
    slowest = np.zeros(clocks + 1)
    for clock in range(clocks):
        waits = clock - (staleness or 0) if staleness is not None else 0
        starts = np.maximum(ends[:, clock], slowest[max(waits, 0)])
        ends[:, clock + 1] = starts + seconds[:, clock]
        slowest[clock + 1] = ends[:, clock + 1].max()
    half = clocks // 2
    rates = (clocks - half) / (ends[:, clocks] - ends[:, half])
    return float(replicas / rates.sum())
