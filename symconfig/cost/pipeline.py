"""Microbatches through the stages of a pipeline: what messages cost their receivers, and the schedule by the formula.

Axes of the arrays: s stage shape, n point; between them whatever the seconds have.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from symconfig.cost import compiled
from symconfig.cost.exchange import ring
from symconfig.cost.lattice import Array
from symconfig.cost.stages import Points, Setting, Stages


@dataclass(frozen=True, slots=True)
class Message:
    """Seconds [n] of an activation, or of a gradient, that crosses the border between two stages.

    busy: the receiver waits for it. lag: it is further under way, beside other work.
    """

    busy_s: Array
    lag_s: Array


def message(sums: Stages, points: Points, setting: Setting) -> Message:
    """Of plain 1F1B the receiver waits for all of it; interleaved, for what a chunk's forward does not hide."""
    stride = points.tp * points.cp * points.dp
    machine, framework = setting.machine, setting.framework
    scattered = framework.scattered_sends
    amount = sums.boundary / np.where(sums.replicated > 0, points.tp, 1.0) if scattered else sums.boundary
    once: Array = compiled.send_s(amount, float(setting.pp), stride, **machine.levels)
    if scattered:
        once = once + sums.replicated * ring(sums.boundary, 1.0, points.tp, 1.0, machine)
    shown = once
    if setting.vpp > 1:
        # The forward is the same under every recompute policy, so that bounds hold.
        shown = compiled.exposed_s(once, sums.forward[:, 0].min(axis=0) / setting.vpp, framework.hide.pp)
    return Message(shown, once - shown)


def received_s(sums: Stages, points: Points, setting: Setting) -> Array:
    """[s, n]: for which a stage waits for a microbatch's messages: an activation and a gradient for each of its chunks.

    The model's first chunk gets no activation and its last one no gradient.
    """
    last, passes = setting.pp - 1, 2 * setting.vpp
    count = [passes - (stage.index == 0) - (stage.index == last) for stage in setting.stages]
    if not last:
        return np.zeros((len(count), points.dp.size))
    busy = message(sums, points, setting).busy_s
    return np.array(count, dtype=np.float64)[:, None] * busy + passes * setting.framework.handover_s


def pipelined(
    seconds: Array,
    again: Array,
    communication: Array,
    received: Array,
    hidden: Array,
    points: Points,
    setting: Setting,
) -> dict[str, Array]:
    """The slowest stage's passes over all microbatches, by part, and the bubble: [..., n].

    Of one microbatch, each [s, ..., n]: all passes of a stage, what of them runs again and what is communication; what
    it waits for messages comes on top. hidden: what they take longer with no other microbatch beside them, as at the
    pipeline's begin and end.
    """
    m = points.num_microbatches
    whole = seconds + received
    slowest, heaviest = whole.max(axis=0), whole.argmax(axis=0)[None]
    alike = np.array([stage.alike for stage in setting.stages], dtype=np.float64)

    def of_slowest(part: Array) -> Array:
        result: Array = np.take_along_axis(np.broadcast_to(part, whole.shape), heaviest, axis=0)[0] * m
        return result

    parts = {"recompute": of_slowest(again), "layer communication": of_slowest(communication)}
    if setting.pp > 1:
        parts["pipeline send/receive"] = of_slowest(received)
    compute = m * slowest - sum(parts.values())
    passes = np.tensordot(alike, whole, axes=1)
    if setting.framework.hide.experts:
        mine = of_slowest(hidden) / m
        passes = passes + np.tensordot(alike, hidden, axes=1) - mine
        alone = compiled.alone_s(mine, m, float(setting.vpp), float(setting.microbatch_group))
        parts["layer communication"] = parts["layer communication"] + alone
    step = compiled.pipeline_s(m, slowest, passes, float(setting.vpp))
    return {"compute": compute, **parts, "pipeline bubble": step - m * slowest}
