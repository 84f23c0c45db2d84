"""Runs a schedule: each stage does its tasks in order, each as soon as what it needs has arrived."""

from __future__ import annotations

from itertools import islice

import numpy as np

from symconfig.errors import InputError
from symconfig.schedule.channel import Channel
from symconfig.schedule.program import Program, program
from symconfig.schedule.schedule import Schedule, Shape
from symconfig.schedule.timeline import Timeline
from symconfig.schedule.times import Array, Times, by_chunk


def simulate(schedule: Schedule, times: Times, m: int, group: int | None = None) -> Timeline:
    """The timeline of one step of m microbatches. Raises InputError if the schedule cannot run such a shape."""
    if times.contention >= 1.0 or times.contention < 0.0:
        raise InputError(f"contention is a share of a collective's time (got {times.contention}, need 0 to below 1)")
    shape = Shape(times.pp, times.vpp, m, group or times.pp)
    work = program(schedule, shape)
    own_s = durations(work, schedule, times)
    channel = Channel(work, times, own_s)
    ends, clock = _run(work, own_s + times.busy_s * work.received, times.lag_s, channel)
    return Timeline(
        schedule, shape, times, work, np.array(ends), channel.ready, np.array(clock), np.array(channel.until),
        tuple(channel.gathers), tuple(channel.reduces),
    )


def durations(work: Program, schedule: Schedule, times: Times) -> Array:
    """[n]: seconds of each task, without what receiving takes."""
    forward, recompute, backward, weight = map(by_chunk, (times.forward, times.recompute, times.backward, times.weight))
    apart = np.zeros_like(weight) if schedule.splits else weight
    table = np.stack((forward, recompute + backward + apart, weight))
    result: Array = table[work.kind, work.chunk]
    return result


def _run(work: Program, seconds: Array, lag_s: float, channel: Channel) -> tuple[list[float], list[float]]:
    """End of each task, and of each stage's last one."""
    clock = [0.0] * len(work.placed)
    arrived = [0.0]  # by need: 0 is there from the start
    ends: list[float] = []
    beside, slow = channel.until, channel.contention
    lags = (lag_s * work.sent).tolist()
    tasks = zip(work.stage, work.need, seconds.tolist(), lags, strict=True)
    for count, after in channel.segments():
        for stage, need, takes, lag in islice(tasks, count):
            start, there = clock[stage], arrived[need]
            if there > start:
                start = there
            if start < beside[stage]:
                takes = min(takes / (1.0 - slow), takes + slow * (beside[stage] - start))
            start += takes
            clock[stage] = start
            ends.append(start)
            arrived.append(start + lag)
        after(clock, ends)
    return ends, clock
