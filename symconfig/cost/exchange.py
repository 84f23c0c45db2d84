"""Gradients reduced and weights gathered by the data-parallel ranks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from symconfig.cost import compiled, either
from symconfig.cost.collectives import ring
from symconfig.cost.framework import CONTENTION, Together
from symconfig.cost.lattice import Array
from symconfig.cost.machine import Number
from symconfig.cost.optimizer import padding
from symconfig.cost.stages import Setting, Stages
from symconfig.plans.columns import Columns

EVERY_MICROBATCH = (2, 3)  # ZeRO stages that exchange with each of them, not once a step
# Share of a collective's time that the work of a pipeline beside it loses: NCCL's kernels hold 24 to 32 of 108 to 132
# compute units. It is less than CONTENTION, since replicas of a stage are on different nodes, and what their network
# brings is little beside the memory's rate.
TAKEN = 0.2
# What each byte of a collective moves in memory: it arrives in a buffer, is read from there and written to its place.
_TOUCHED = 3.0
# Of the host for each tensor of a list that a collective takes: Python slices it, PyTorch launches its copy. Assumed:
# two eager operators.
_LISTED_S = 10e-6


@dataclass(frozen=True, slots=True)
class Exchange:
    """Seconds [s, n] of gathering a stage's weights once and of reducing its gradients once, before any overlap.

    gathered, reduced: their bytes.
    """

    gather: Array
    reduce: Array
    gathered: Array
    reduced: Array


def exchange(sums: Stages, points: Columns, setting: Setting) -> Exchange:
    """Return the collectives of weights and gradients as the ZeRO stage and the framework do them; at ZeRO 0 nothing is
    gathered.

    Where several instances of the optimizer each have a group of the replicas, a group gathers and reduces by itself,
    and what each rank then has of the gradients is summed over the instances.
    """
    framework, sizes, zero = setting.framework, setting.bytes, setting.zero
    messages = _messages(sums, setting)
    over, over_experts = framework.stride(("cp", "dp"), points.degrees), framework.stride(("edp",), points.degrees)
    instances = framework.optimizer_instances if zero else 1
    shards, shards_of_experts = (
        either.maximum(points.shards / instances, 1.0),
        either.maximum(points.edp / instances, 1.0),
    )

    def move(passes: Array, dense_bytes: Array, expert_bytes: Array) -> Array:
        """Return the seconds of k collectives at once within a group: [k, s, n]."""
        seconds: Array = messages * ring(dense_bytes / messages, passes, shards, over, setting.machine)
        if framework.listed:
            seconds = seconds + np.where(shards > 1, messages * shards * _LISTED_S, 0.0)
        some = expert_bytes.any(axis=(1, 2), keepdims=True)
        if some.any():
            of_experts = ring(expert_bytes, passes, shards_of_experts, over_experts, setting.machine)
            seconds = seconds + np.where(some, of_experts, 0.0)
        return seconds

    def between(dense_bytes: Array, expert_bytes: Array) -> Array:
        """Return the seconds of an all-reduce of every rank's share over the instances: [s, n]."""
        parts = (
            (dense_bytes / messages, messages, shards, points.shards, over),
            (expert_bytes, 1.0, shards_of_experts, points.edp, over_experts),
        )
        seconds = np.zeros_like(dense_bytes)
        for amount, times, group, every, stride in parts:
            summed = times * ring(amount / group, 2.0, every / group, stride * group, setting.machine)
            seconds = seconds + np.where(amount > 0, summed, 0.0)
        return seconds

    reduced = sizes.gradient if framework.reduced_bytes is None else framework.reduced_bytes
    twice = zero == 0 or framework.all_reduced_gradients  # an all-reduce; else a reduce-scatter, or an all-gather
    passes = np.array([2.0 if twice else 1.0, 1.0])[:, None, None]
    if not zero:
        reduce = move(passes[:1], reduced * sums.dense[None], reduced * sums.expert[None])[0]
        none = np.zeros_like(reduce)
        return Exchange(none, reduce, none, reduced * (sums.dense + sums.expert))
    longer = padding(sums, points, setting)
    all_dense, all_expert = sums.dense + longer.dense, sums.expert + longer.expert
    dense, expert = sizes.weight * all_dense, sizes.weight * all_expert
    if zero == 3:  # frozen weights are cut up, too
        dense = dense + sizes.frozen * sums.frozen + sizes.quantised * sums.quantised
        expert = expert + sizes.frozen * sums.frozen_expert
    both = move(passes, np.stack((reduced * all_dense, dense)), np.stack((reduced * all_expert, expert)))
    if instances > 1:
        both[0] = both[0] + between(reduced * all_dense, reduced * all_expert)
    return Exchange(both[1], both[0], dense + expert, reduced * (all_dense + all_expert))


def _messages(sums: Stages, setting: Setting) -> Array:
    """Return [s, n]: collectives in which a stage's weights are gathered, or its gradients reduced."""
    together = setting.framework.together
    if together is Together.BLOCK:
        blocks: Array = setting.pipelines.counts.sum(axis=1)
        return blocks
    matrices = sums.matrices if together is Together.MATRIX and setting.zero == 3 else np.zeros_like(sums.matrices)
    several: Array = either.maximum(matrices, 1.0)
    return several


def exchanged_s(sums: Stages, points: Columns, setting: Setting) -> Array:
    """Return what reducing gradients and gathering weights adds to a step, copies included, minus what hides:
    [r, n].
    """
    if setting.pipelines.several and setting.zero not in EVERY_MICROBATCH:
        shown = _in_pipeline(sums, points, setting) + between_ends_s(sums, points, setting)
    else:
        shown = either.largest(_beside_microbatches(sums, points, setting)) + between_ends_s(sums, points, setting)
    return shown + copies_s(sums, points, setting) if setting.framework.copied_bytes else shown


def between_ends_s(sums: Stages, points: Columns, setting: Setting) -> Array:
    """Return the seconds of the all-reduce between the two producers of the gradient of a table that lies on the first
    and on the last stage: [n].
    """
    if not setting.pipelines.several or not sums.copied.any():
        return np.zeros_like(sums.copied)
    stride = points.tp * points.cp * points.dp * (setting.pipelines.pp - 1)
    amount = setting.bytes.gradient * sums.copied
    return ring(amount, 2.0, np.full_like(stride, 2.0), stride, setting.machine)


def copies_s(sums: Stages, points: Columns, setting: Setting) -> Array:
    """Return the seconds of moving weights and gradients between the collectives' buffers and the tensors, each
    microbatch: [n].
    """
    elements = either.largest(sums.dense + sums.expert)
    moved = points.num_microbatches * elements * setting.framework.copied_bytes
    result: Array = moved / setting.machine.hbm_bytes_per_s
    return result


def _beside_microbatches(sums: Stages, points: Columns, setting: Setting) -> Array:
    """Return what shows of the exchange without a pipeline, or where every microbatch exchanges: [s, r, n]."""
    moved, hide, m = exchange(sums, points, setting), setting.framework.hide, points.num_microbatches
    gather, reduce = moved.gather[:, None], moved.reduce[:, None]
    gathered, reduced = moved.gathered[:, None], moved.reduced[:, None]
    forward, backward = sums.forward + sums.forward_comm, sums.backward + sums.backward_comm

    def beside(seconds: Array, amount: Array, work: Array, share: float) -> Array:
        slowed = compiled.slowed_s(seconds, work, share, contention(amount, seconds, setting.machine.hbm_bytes_per_s))
        result: Array = compiled.exposed_s(seconds, work + slowed, share) + slowed
        return result

    if setting.zero == 3:
        share = hide.sharded_weights
        far = sums.largest[:, None] > setting.framework.reuse_elements
        regathered = (
            np.where(far, either.minimum(sums.again, forward) / np.where(forward > 0, forward, 1.0), 0.0) * gather
        )
        back, amount = regathered + gather + reduce, gathered + reduced
        result: Array = m * (beside(gather, gathered, forward, share) + beside(back, amount, backward, share))
        return result
    # The last microbatch's backward hides the reduction, the first one's forward the gather of new weights.
    times = m if setting.zero in setting.framework.reduce_each_microbatch else 1.0
    ahead = 0.0 if setting.framework.gathers_apart else hide.data
    return times * beside(reduce, reduced, backward, hide.data) + beside(gather, gathered, forward, ahead)


def contention(amount: Array | float, seconds: Array | float, hbm_bytes_per_s: Number) -> Array:
    """Share of a collective's time that the work beside it loses: compute units, and what the collective's own traffic
    takes of the memory's rate; as fitted, where the links are the fastest."""
    traffic = _TOUCHED * amount / np.where(seconds > 0, seconds, 1.0) / hbm_bytes_per_s
    result: Array = either.minimum(TAKEN + traffic, CONTENTION)
    return result


def _in_pipeline(sums: Stages, points: Columns, setting: Setting) -> Array:
    """Return nearly what the simulator says of the exchange where stages are alike (`chunks.overlap` says what runs
    when): [r, n].
    """
    moved, framework = exchange(sums, points, setting), setting.framework
    forward, backward = sums.forward + sums.forward_comm, sums.backward + sums.backward_comm
    gather, reduce = moved.gather[:, None], moved.reduce[:, None]
    if setting.pipelines.interleaved and framework.hide.data:
        group = either.minimum(setting.groups, points.num_microbatches)
        ends = sums.vocabulary / either.maximum(sums.dense + sums.expert, 1.0)
        gathered: Array = (
            _beside_own(gather, forward, np.zeros_like(_index(setting)), setting)
            if framework.gathers_apart
            else _between_groups(gather, forward, ends, group, setting)
        )
        return gathered + _between_groups(reduce, backward, ends, group, setting)
    first = framework.hide.data * (_index(setting) == 0)
    reduced = _beside_own(reduce, backward, first, setting)
    if not (framework.demanded_gathers and framework.hide.data):
        return reduced + _beside_own(gather, forward, 0 * first, setting)
    alike = setting.pipelines.alike[:, None] * (_index(setting) > 0)
    hidden = either.minimum(gather, first * forward)
    own = either.largest(np.where(first > 0, gather - hidden + TAKEN * hidden, 0.0))
    result: Array = reduced + own + (alike * gather).sum(axis=0)
    return result


def _beside_own(seconds: Array, work: Array, share: Array, setting: Setting) -> Array:
    """Return by how much a collective of each stage, beside a share of its own pass, outlasts the filling (draining) of
    the pipeline before it: [r, n].
    """
    hidden = either.minimum(seconds, share * work)
    left = seconds - hidden - _index(setting) * work.min(axis=0) / setting.pipelines.vpp
    result: Array = either.largest(either.maximum(left, TAKEN * hidden))
    return result


def _between_groups(seconds: Array, work: Array, ends: Array, group: Array, setting: Setting) -> Array:
    """Return by how much collectives, one a chunk, make an interleaved step longer: [r, n].

    Nothing hides the one of the chunk that has none before (after) it, which on the first stage is that with the
    look-up; each other one has the time of a group of microbatches in a chunk. ends: [s, n], share of the vocabulary.
    """
    vpp = setting.pipelines.vpp
    index = _index(setting)
    own = seconds * np.where(index == 0, ends[:, None] + (1 - ends[:, None]) / vpp, 1 / vpp)
    shown = either.maximum(own + TAKEN * (seconds - own), seconds - (1 - 1 / vpp) * group * work)
    result: Array = either.largest(either.maximum(shown - index * work.min(axis=0) / vpp, 0.0))
    return result


def _index(setting: Setting) -> Array:
    """Return the stages' numbers: [s, 1, n]"""
    return setting.pipelines.index[:, None]
