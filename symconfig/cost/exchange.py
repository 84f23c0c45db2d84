"""Gradients reduced and weights gathered by the data-parallel ranks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from symconfig.cost import compiled
from symconfig.cost.framework import CONTENTION
from symconfig.cost.lattice import Array
from symconfig.cost.machine import Machine
from symconfig.cost.stages import Points, Setting, Stages
from symconfig.graph.layout import Kind


def ring(amount: Array, passes: float, ranks: Array, stride: object, machine: Machine) -> Array:
    """Seconds of a collective over `ranks`; 0 for a group of one."""
    return np.where(ranks > 1, compiled.ring_s(amount, passes, ranks, stride, **machine.levels), 0.0)


@dataclass(frozen=True, slots=True)
class Exchange:
    """Seconds [s, n] of gathering a stage's weights once and of reducing its gradients once, before any overlap."""

    gather: Array
    reduce: Array


def exchange(sums: Stages, points: Points, setting: Setting) -> Exchange:
    """As the ZeRO stage and the framework do them; at ZeRO 0 nothing is gathered."""
    framework, sizes, zero = setting.framework, setting.bytes, setting.zero
    counts = np.array([[float(sum(stage.counts))] for stage in setting.stages])
    messages = counts if framework.by_block else np.ones_like(counts)
    over, over_experts = framework.stride(("cp", "dp"), points.degrees), framework.stride(("edp",), points.degrees)

    def move(kind: Kind, dense_bytes: Array, expert_bytes: Array) -> Array:
        passes = 2.0 if kind is Kind.ALL_REDUCE else 1.0
        seconds: Array = messages * ring(dense_bytes / messages, passes, points.shards, over, setting.machine)
        if expert_bytes.any():
            seconds = seconds + ring(expert_bytes, passes, points.expert_shards, over_experts, setting.machine)
        return seconds

    reduced = sizes.gradient if framework.reduced_bytes is None else framework.reduced_bytes
    reduce = move(
        Kind.ALL_REDUCE if zero == 0 or framework.all_reduced_gradients else Kind.REDUCE_SCATTER,
        reduced * sums.dense,
        reduced * sums.expert,
    )
    if not zero:
        return Exchange(np.zeros_like(reduce), reduce)
    dense, expert = sizes.weight * sums.dense, sizes.weight * sums.expert
    if zero == 3:  # frozen weights are cut up, too
        dense = dense + sizes.frozen * sums.frozen + sizes.quantised * sums.quantised
        expert = expert + sizes.frozen * sums.frozen_expert
    return Exchange(move(Kind.ALL_GATHER, dense, expert), reduce)


def exchanged_s(sums: Stages, points: Points, setting: Setting) -> Array:
    """[r, n]: gradients reduced and weights gathered, minus what hides, and what copies of them cost."""
    worst: Array = _shown(sums, points, setting).max(axis=0) + between_ends_s(sums, points, setting)
    return worst + copies_s(sums, points, setting) if setting.framework.copied_bytes else worst


def between_ends_s(sums: Stages, points: Points, setting: Setting) -> Array:
    """[n]: a table on the first and on the last stage has a producer of its gradient on both: an all-reduce of two."""
    if setting.pp == 1 or not sums.copied.any():
        return np.zeros_like(sums.copied)
    stride = points.tp * points.cp * points.dp * (setting.pp - 1)
    amount = setting.bytes.gradient * sums.copied
    return ring(amount, 2.0, np.full_like(stride, 2.0), stride, setting.machine)


def copies_s(sums: Stages, points: Points, setting: Setting) -> Array:
    """[n]: moving weights and gradients between the collectives' buffers and the tensors, each microbatch."""
    elements = (sums.dense + sums.expert).max(axis=0)
    moved = points.num_microbatches * elements * setting.framework.copied_bytes
    result: Array = moved / setting.machine.hbm_bytes_per_s
    return result


def _shown(sums: Stages, points: Points, setting: Setting) -> Array:
    """[s, r, n]"""
    moved, hide, m = exchange(sums, points, setting), setting.framework.hide, points.num_microbatches
    gather, reduce = moved.gather[:, None], moved.reduce[:, None]
    forward, backward = sums.forward + sums.forward_comm, sums.backward + sums.backward_comm

    def beside(seconds: Array, work: Array, share: float) -> Array:
        slowed = compiled.slowed_s(seconds, work, share, CONTENTION)
        result: Array = compiled.exposed_s(seconds, work + slowed, share) + slowed
        return result

    if setting.zero == 3:
        share = hide.sharded_weights
        result: Array = m * (beside(gather, forward, share) + beside(gather + reduce, backward, share))
        return result
    # The last microbatch's backward hides the reduction, the first one's forward the gather of new weights. Of an
    # interleaved schedule a chunk ends `pp` microbatches before the chunk below it does, and begins as much after.
    if setting.vpp > 1:
        wait = 1 / setting.vpp + (1 - 1 / setting.vpp) * np.minimum(float(setting.pp), m)
        forward, backward = forward * wait, backward * wait
    times = m if setting.zero in setting.framework.reduce_each_microbatch else 1.0
    return times * beside(reduce, backward, hide.data) + beside(gather, forward, hide.data)
