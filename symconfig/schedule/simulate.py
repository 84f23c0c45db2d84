"""Runs a schedule: each stage does its tasks in order, each as soon as what it needs has arrived."""

from __future__ import annotations

from itertools import islice

import numpy as np

from symconfig.errors import InputError
from symconfig.schedule.channels import Channels
from symconfig.schedule.program import Program, program
from symconfig.schedule.schedule import Schedule, Shape
from symconfig.schedule.timeline import Timeline
from symconfig.schedule.times import Array, Times, by_chunk


def simulate(schedule: Schedule, times: Times, m: int, group: int | None = None) -> Timeline:
    """Simulate one step of m microbatches. Raises InputError if the schedule cannot run such a shape.

    group: microbatches that pass a chunk in a row where chunks take turns; None for as many as stages.
    """
    if not 0.0 <= times.contention < 1.0:
        raise InputError(f"contention is a share of a collective's time (got {times.contention}, need 0 to below 1)")
    shape = Shape(times.pp, times.vpp, m, group or times.pp)
    work = program(schedule, shape)
    own_s = _durations(work, times) / schedule.slices
    busy_s = times.busy_s / schedule.slices
    channels = Channels(work, times, own_s)
    ends, clock = _run(work, own_s + busy_s * work.received, times, channels)
    return Timeline(
        schedule=schedule,
        shape=shape,
        times=times,
        work=work,
        end_s=np.array(ends),
        ready_s=channels.ready,
        finish_s=np.maximum(clock, channels.until),
        windows=tuple(channels.windows),
    )


def _durations(work: Program, times: Times) -> Array:
    """Return [n]: seconds of each task, without what receiving takes."""
    forward, recompute, backward, weight = map(by_chunk, (times.forward, times.recompute, times.backward, times.weight))
    inputs = recompute + backward
    table = np.stack((forward, inputs + weight, inputs, weight))
    result: Array = table[work.kind, work.chunk]
    paired = np.flatnonzero(work.partner)
    if len(paired):
        partner = work.partner[paired] - 1
        result[paired] += result[partner]
        result[partner] = 0.0
        if times.paired is not None:
            saved = by_chunk(times.paired) / 2.0
            result[paired] -= saved[work.chunk[paired]] + saved[work.chunk[partner]]
    slowed: Array = result * np.broadcast_to(times.slow, times.pp)[work.stage]
    return slowed


def _run(work: Program, seconds: Array, times: Times, channels: Channels) -> tuple[list[float], list[float]]:
    """End of each task, and of each stage's last one.

    A plain loop over plain numbers: 4 million tasks a second and more, which arrays over all stages at a time do not
    reach for so few stages.
    """
    clock = [0.0] * len(work.placed)
    arrived = [0.0]  # by need; the first is there from the start
    ends: list[float] = []
    until, contention = channels.until, times.contention
    tasks = zip(*(each.tolist() for each in (work.stage, work.need, seconds, times.lag_s * work.sent)), strict=True)
    for count, after in channels.cuts():
        for stage, need, takes, lag in islice(tasks, count):
            start, there = clock[stage], arrived[need]
            if there > start:
                start = there
            if start < until[stage]:
                takes = min(takes / (1.0 - contention), takes + contention * (until[stage] - start))
            clock[stage] = start = start + takes
            ends.append(start)
            arrived.append(start + lag)
        after(clock, ends)
    return ends, clock
