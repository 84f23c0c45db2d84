"""Runs a schedule: each stage does its tasks in order, each as soon as what it needs has arrived."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import numpy as np

from symconfig.errors import InputError
from symconfig.schedule.channels import Channels
from symconfig.schedule.program import Program, program
from symconfig.schedule.schedule import Schedule, Shape
from symconfig.schedule.timeline import Timeline
from symconfig.schedule.times import Array, Times, by_chunk

MOST_TASKS = 2**18  # of steps that are simulated whole
MOST_FOLLOWED = 2 * MOST_TASKS  # of the part of a longer one that is
ROUNDING = 1e-11  # of a group's time


def simulate(schedule: Schedule, times: Times, m: int, group: int | None = None) -> Timeline:
    """Return the timeline of one step of m microbatches.

    A step of more than MOST_TASKS tasks is simulated in part and extrapolated (`Timeline.left_out`).

    group: microbatches that pass a chunk in a row where chunks take turns; None for pp.

    Raises:
        InputError: the schedule cannot have this shape, has too many tasks or hangs, or contention is not in [0, 1).
    """
    if not 0.0 <= times.contention < 1.0:
        raise InputError(f"contention is a share of a collective's time (got {times.contention}, need 0 to below 1)")
    shape = Shape(times.pp, times.vpp, m, group or times.pp)
    if problem := not_simulated(schedule, shape):
        raise InputError(problem)
    return (_simulated if _task_count(schedule, shape) <= MOST_TASKS else _extrapolated)(schedule, times, shape)


def not_simulated(schedule: Schedule, shape: Shape) -> str | None:
    """Return why a step of this shape cannot be simulated, as a sentence; None if it can.

    The schedule cannot have the shape, or there are too many tasks; for schedules that plans can have, only the tasks
    of four groups of microbatches count, since longer steps are extrapolated.
    """
    least = shape._replace(m=min(shape.m, 4 * max(shape.group, shape.pp))) if schedule.runs_in else shape
    tasks, most = _task_count(schedule, least), MOST_FOLLOWED if schedule.runs_in else MOST_TASKS
    too_long = f"{schedule.title} is not simulated (got {tasks:,} tasks, need <= {most:,})" if tasks > most else None
    return schedule.limit(shape) or too_long


def _task_count(schedule: Schedule, shape: Shape) -> int:
    return 2 * shape.chunks * shape.m


def _extrapolated(schedule: Schedule, times: Times, shape: Shape) -> Timeline:
    """Return the timeline of a long step: simulate fewer groups of microbatches and extrapolate the steady part.

    Ends of tasks are maxima and sums of earlier ends. Once all ends that later tasks depend on equal those of some
    groups earlier plus one constant, so do all further ones. If the simulated part does not become steady, the pace of
    its second quarter or of the busiest stage is taken.
    """
    pp, _, m, _ = shape
    group = _period(shape)
    most = min(MOST_FOLLOWED // (2 * shape.chunks * group), m // group)
    groups = min(8 + 8 * pp // group, most)
    while True:
        line = _simulated(schedule, times, shape._replace(m=m % group + groups * group))
        every, pace_s, busy_s = _steady(line, times)
        rest = (m // group - groups) % every if every else 0
        if groups == most or (every and not rest):
            break
        groups = min(groups + rest if every else 2 * groups, most)
    left_out = m - line.m
    return replace(
        line,
        shape=shape,
        finish_s=line.finish_s + left_out * pace_s,
        left_out=left_out,
        left_out_s=left_out * pace_s,
        left_out_busy_s=left_out * busy_s,
    )


def _period(shape: Shape) -> int:
    """Return after how many microbatches the order of tasks repeats: the group if interleaved, else 1."""
    return shape.group if shape.vpp > 1 else 1


def _steady(line: Timeline, times: Times) -> tuple[int, float, Array]:
    """Return (groups after which the step repeats, seconds per microbatch, busy seconds of each stage [pp]).

    The busy seconds are per microbatch, too. The first is 0 if no repetition was seen; the pace is then an estimate.
    """
    pp, vpp, m, _ = line.shape
    group = _period(line.shape)
    seconds = _durations(line.work, times) + times.busy_s * line.work.received
    ends, busy = (np.stack([each[line.work.stage == stage] for stage in range(pp)]) for each in (line.end_s, seconds))
    period, ahead = 2 * vpp * group, 2 * (2 * pp + vpp * group)  # tasks of a stage
    stop = ends.shape[1] - 2 * period - ahead  # the last forward, of what may be a shorter group, is later
    start = stop - period - ahead  # no task after `stop` depends on an earlier one
    gathered_s = max((window.end_s for window in line.windows if window.kind == "gather"), default=0.0)
    busy_s = busy[:, max(start - period, 0) : max(start, period)].sum(axis=1) / group
    for every in range(1, pp + 1):
        if start < every * period or ends[:, start - every * period].min() < gathered_s:
            break
        moved = ends[:, start:stop] - ends[:, start - every * period : stop - every * period]
        if np.ptp(moved) <= ROUNDING * moved.max():
            return every, float(moved.max()) / (every * group), busy_s
    pace_s = 4 / m * float((ends[:, m * vpp] - ends[:, m * vpp // 2]).max())  # of the second quarter
    return 0, max(pace_s, float(busy_s.max())), busy_s


def _simulated(schedule: Schedule, times: Times, shape: Shape) -> Timeline:
    """Return the timeline of a whole step, every task simulated."""
    work = program(schedule, shape)
    own_s = _durations(work, times)
    channels = Channels(work, times, own_s)
    ends, clock = _run(work, own_s + times.busy_s * work.received, times, channels)
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
    """Return the seconds of each task without receiving: [n].

    A forward that is paired with a backward takes 0 s, and the backward the seconds of both minus what pairing saves.
    """
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
    """Return the end of every task, and of each stage's last one, in seconds; `channels` is updated on the way.

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
