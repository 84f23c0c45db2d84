"""A step of a whole plan: stages, pipeline, data-parallel communication, optimizer; seconds and peak bytes by part.

Axes of the arrays: s stage shape, r recompute policy, o offload, n point (tp, cp, ep, etp, micro-batch, and with the
pipeline degree fixed also dp and the number of microbatches).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from symconfig.cost import compiled
from symconfig.cost.flight import in_flight
from symconfig.cost.framework import CONTENTION
from symconfig.cost.lattice import Array
from symconfig.cost.machine import Machine
from symconfig.cost.stages import Offload, Points, Setting, Stages, stages
from symconfig.cost.table import Table
from symconfig.cost.whole_gradients import whole_gradient_bytes
from symconfig.graph.layout import Kind

# Host memory rate that one rank's share of CPU Adam reaches: half a socket's 200 GB/s over four ranks.
HOST_ADAM_BYTES_PER_S = 25e9


@dataclass(frozen=True, slots=True)
class Cost:
    """time: seconds by part, to be broadcast to [r, o, n]; memory: bytes by part and stage, to [s, r, o, n]."""

    time: dict[str, Array]
    memory: dict[str, Array]

    @property
    def step_s(self) -> Array:
        return total(self.time)

    @property
    def stage_bytes(self) -> Array:
        return total(self.memory)

    @property
    def peak_bytes(self) -> Array:
        """Of the stage that needs most."""
        result: Array = self.stage_bytes.max(axis=0)
        return result


def total(parts: dict[str, Array]) -> Array:
    """Sum of the parts; small arrays first, so that each sum is as small as it can be until the last few."""
    ordered = sorted(parts.values(), key=lambda part: part.size)
    result = ordered[0]
    for part in ordered[1:]:
        result = result + part
    return result


def evaluate(sums: Stages, points: Points, setting: Setting) -> Cost:
    """Seconds and bytes of every candidate."""
    return Cost(_time(sums, points, setting), _memory(sums, points, setting))


def _each_offload(array: Array) -> Array:
    """[..., n] -> [..., 1, n]"""
    return array[..., None, :]


def _time(sums: Stages, points: Points, setting: Setting) -> dict[str, Array]:
    m = points.num_microbatches
    parts = {name: _each_offload(part) for name, part in _pipeline(sums, points, setting).items()}
    if setting.pp > 1:
        parts["pipeline send/receive"] = _sends(sums, points, setting)[None, None, :]
    parts["data-parallel communication"] = _each_offload(_data_parallel(sums, points, setting))
    if setting.framework.copied_bytes:
        parts["data-parallel communication"] = parts["data-parallel communication"] + _copies(sums, points, setting)
    parts["optimizer"] = _optimizer(sums, points, setting)[None]
    framework = setting.framework
    parts["overhead"] = (framework.step_overhead_s + m * framework.microbatch_overhead_s)[None, None, :]
    return parts


def _pipeline(sums: Stages, points: Points, setting: Setting) -> dict[str, Array]:
    """[r, n] each: the slowest stage's passes and the bubble."""
    m = points.num_microbatches
    seconds = sums.seconds
    alike = np.array([stage.alike for stage in setting.stages], dtype=np.float64)
    slowest = seconds.max(axis=0)
    heaviest = np.argmax(seconds, axis=0)[None]

    def of_slowest(array: Array) -> Array:
        result: Array = np.take_along_axis(array, heaviest, axis=0)[0] * m
        return result

    again, communication = of_slowest(sums.again), of_slowest(sums.communication)
    whole = compiled.pipeline_s(m, slowest, np.tensordot(alike, seconds, axes=1), float(setting.vpp))
    return {
        "compute": m * slowest - again - communication,
        "recompute": again,
        "layer communication": communication,
        "pipeline bubble": whole - m * slowest,
    }


def _sends(sums: Stages, points: Points, setting: Setting) -> Array:
    """[n]: activations forward and gradients backward across each border, once a chunk.

    Those of an interleaved schedule run beside the next chunk; what a chunk's forward does not hide shows.
    """
    stride = points.tp * points.cp * points.dp
    machine = setting.machine
    scattered = setting.framework.scattered_sends
    amount = sums.boundary / np.where(sums.replicated > 0, points.tp, 1.0) if scattered else sums.boundary
    once: Array = compiled.send_s(amount, float(setting.pp), stride, **machine.levels)
    if scattered:
        once = once + sums.replicated * ring(sums.boundary, 1.0, points.tp, 1.0, machine)
    if setting.vpp > 1:
        # The forward is the same under every recompute policy, so that bounds hold.
        once = compiled.exposed_s(once, sums.forward[:, 0].min(axis=0) / setting.vpp, setting.framework.hide.pp)
    passes = points.num_microbatches * setting.vpp + (setting.pp - 1)
    return 2.0 * (once + setting.framework.handover_s) * passes


def ring(amount: Array, passes: float, ranks: Array, stride: object, machine: Machine) -> Array:
    """Seconds of a collective over `ranks`; 0 for a group of one."""
    return np.where(ranks > 1, compiled.ring_s(amount, passes, ranks, stride, **machine.levels), 0.0)


def _data_parallel(sums: Stages, points: Points, setting: Setting) -> Array:
    """[r, n]: gradients reduced and weights gathered, as the ZeRO stage and framework do it, minus what hides."""
    worst: Array = _exchange(sums, points, setting).max(axis=0)
    if setting.pp > 1 and sums.copied.any():
        # A table on the first and on the last stage has a producer of its gradient on either: an all-reduce of two.
        stride = points.tp * points.cp * points.dp * (setting.pp - 1)
        worst = worst + ring(
            setting.bytes.gradient * sums.copied, 2.0, np.full_like(stride, 2.0), stride, setting.machine
        )
    return worst


def _exchange(sums: Stages, points: Points, setting: Setting) -> Array:
    """[s, r, n]"""
    framework, sizes, zero = setting.framework, setting.bytes, setting.zero
    counts = np.array([[float(sum(stage.counts))] for stage in setting.stages])
    messages = counts if framework.by_block else np.ones_like(counts)
    over, over_experts = framework.stride(("cp", "dp"), points.degrees), framework.stride(("edp",), points.degrees)

    def move(kind: Kind, dense_bytes: Array, expert_bytes: Array) -> Array:
        passes = 2.0 if kind is Kind.ALL_REDUCE else 1.0
        seconds = messages * ring(dense_bytes / messages, passes, points.shards, over, setting.machine)
        if expert_bytes.any():
            seconds = seconds + ring(expert_bytes, passes, points.expert_shards, over_experts, setting.machine)
        return seconds[:, None, :]

    forward, backward = sums.forward + sums.forward_comm, sums.backward + sums.backward_comm
    m = points.num_microbatches
    reduced = sizes.gradient if framework.reduced_bytes is None else framework.reduced_bytes
    reduce = move(
        Kind.ALL_REDUCE if zero == 0 or framework.all_reduced_gradients else Kind.REDUCE_SCATTER,
        reduced * sums.dense,
        reduced * sums.expert,
    )
    hide = framework.hide

    def beside(seconds: Array, work: Array, share: float) -> Array:
        slowed = compiled.slowed_s(seconds, work, share, CONTENTION)
        result: Array = compiled.exposed_s(seconds, work + slowed, share) + slowed
        return result

    if zero < 3:
        # The last microbatch's backward hides the reduction, the first one's forward the gather of new weights. Of an
        # interleaved schedule a chunk ends `pp` microbatches before the chunk below it does, and begins as much after.
        if setting.vpp > 1:
            wait = 1 / setting.vpp + (1 - 1 / setting.vpp) * np.minimum(float(setting.pp), m)
            forward, backward = forward * wait, backward * wait
        times = m if zero in framework.reduce_each_microbatch else 1.0
        exposed: Array = times * beside(reduce, backward, hide.data)
        if zero:
            gather = move(Kind.ALL_GATHER, sizes.weight * sums.dense, sizes.weight * sums.expert)
            exposed = exposed + beside(gather, forward, hide.data)
        return exposed
    frozen = sizes.frozen * sums.frozen + sizes.quantised * sums.quantised
    gather = move(
        Kind.ALL_GATHER,
        sizes.weight * sums.dense + frozen,
        sizes.weight * sums.expert + sizes.frozen * sums.frozen_expert,
    )
    share = hide.sharded_weights
    result: Array = m * (beside(gather, forward, share) + beside(gather + reduce, backward, share))
    return result


def _copies(sums: Stages, points: Points, setting: Setting) -> Array:
    """[n]: moving weights and gradients between the collectives' buffers and the tensors, each microbatch."""
    elements = (sums.dense + sums.expert).max(axis=0)
    moved = points.num_microbatches * elements * setting.framework.copied_bytes
    result: Array = moved / setting.machine.hbm_bytes_per_s
    return result


def _shards(points: Points, setting: Setting, sharded: bool) -> tuple[Array | float, Array | float]:
    """Ranks that share one state of the dense and of the experts' parameters."""
    instances = setting.framework.optimizer_instances
    return (points.shards / instances, points.expert_shards / instances) if sharded else (1.0, 1.0)


def _dense(sums: Stages, points: Points, setting: Setting) -> Array:
    """[s, n]: trained parameters outside the experts as many as the ranks of `_shards` share out."""
    if setting.zero < 3 or not setting.framework.shards_over_tensor:
        return sums.dense
    return sums.dense - sums.whole * (1 - 1 / points.tp)


def _optimizer(sums: Stages, points: Points, setting: Setting) -> Array:
    """[o, n]: the part on the GPU, then the part in host memory with its transfers."""
    machine, sizes = setting.machine, setting.bytes
    over, over_experts = _shards(points, setting, setting.zero >= 1)
    mine = (_dense(sums, points, setting) / over + sums.expert / over_experts).max(axis=0)
    stepped = (sums.dense + sums.expert).max(axis=0) * setting.framework.stepped_bytes / machine.hbm_bytes_per_s
    rows = []
    for offload in setting.offload:
        here = compiled.optimizer_s(
            mine * (1 - offload.optimizer), 1.0, setting.framework.adam_bytes, machine.hbm_bytes_per_s, machine.launch_s
        )
        away = mine * offload.optimizer
        moved = away * (sizes.gradient + sizes.weight) / machine.host_bytes_per_s
        row = here + moved + away * setting.framework.adam_bytes / HOST_ADAM_BYTES_PER_S
        if offload.weights:
            # Each microbatch brings every weight over twice, forward and backward.
            row = row + _held_weights(sums, points, setting) * 2 * points.num_microbatches / machine.host_bytes_per_s
        rows.append(row + stepped)
    return np.array(rows)


def _memory(sums: Stages, points: Points, setting: Setting) -> dict[str, Array]:
    """Bytes by part, [s, r, o, n], at the moment of each stage's peak."""
    parts = {
        "activations": _each_offload(sums.kept * in_flight(points, setting)[:, None, :]),
        "logits and loss": _each_offload(sums.ends),
        "working set": _each_offload(sums.transient),
    }
    states = _states(sums, points, setting)
    return parts | {name: part[:, None] for name, part in states.items()}


def _states(sums: Stages, points: Points, setting: Setting) -> dict[str, Array]:
    """Weights, gradients and optimizer state: [s, o, n]."""
    sizes, zero, dense = setting.bytes, setting.zero, _dense(sums, points, setting)

    def each(weight: float, gradient: float, optimizer: float, device: float) -> Array:
        result: Array = compiled.states_bytes(
            dense,
            sums.expert,
            weight,
            gradient,
            optimizer,
            *_shards(points, setting, True),
            float(zero >= 1),
            float(zero >= 2),
            float(zero >= 3),
            device,
        )
        return result

    over, over_experts = _shards(points, setting, zero >= 3)
    held = (
        sums.frozen * sizes.frozen + sums.quantised * sizes.quantised
    ) / over + sums.frozen_expert * sizes.frozen / over_experts
    cached = (sums.dense + sums.frozen - sums.vocabulary) / over + (sums.expert + sums.frozen_expert) / over_experts
    whole = each(sizes.weight, 0.0, 0.0, 0.0) + held + sizes.weight_cache * cached
    # ZeRO-3 gathers a block while it computes it, and the next one ahead of time.
    live = 2.0 * sizes.weight * sums.largest if zero >= 3 else np.zeros_like(whole)
    return {
        "weights": np.stack([live if offload.weights else whole + live for offload in setting.offload], axis=1),
        "gradients": np.stack(
            [
                each(0.0, _gradient_bytes(setting, offload), 0.0, 0.0)
                + whole_gradient_bytes(sums, points, setting, offload)
                for offload in setting.offload
            ],
            axis=1,
        ),
        "optimizer state": np.stack(
            [each(0.0, 0.0, sizes.optimizer, 1.0 - offload.optimizer) for offload in setting.offload], axis=1
        ),
    }


def _gradient_bytes(setting: Setting, offload: Offload) -> float:
    """Of an element, on the device."""
    beside = setting.framework.beside_offload_bytes
    if beside is None or setting.zero < 2 or not offload.optimizer:
        return setting.bytes.gradient
    return beside * (1 - offload.optimizer)


@dataclass(frozen=True, slots=True)
class Bound:
    """Lower bounds over all policies and offloads, [n]: nothing at this point is faster or leaner."""

    step_s: Array
    bytes: dict[int, Array]  # by ZeRO stage


def bound(table: Table, chosen: NDArray[np.intp], points: Points, settings: Sequence[Setting]) -> Bound:
    """From a table whose one policy no policy can beat (`bound_table`)."""
    sums = stages(table, settings[0].stages, chosen, settings[0].tied)
    pipeline = total(_pipeline(sums, points, settings[0]))[0]
    if settings[0].pp > 1:
        pipeline = pipeline + _sends(sums, points, settings[0])
    held = {}
    for setting in settings:
        # Offloads are in rising order: the last one leaves least on the GPU.
        lean = replace(setting, offload=setting.offload[-1:])
        states = sum(part.min(axis=1) for part in _states(sums, points, lean).values())
        live = sums.kept[:, 0] * in_flight(points, setting) + sums.ends[:, 0] + sums.transient[:, 0]
        held[setting.zero] = np.asarray((live + states).max(axis=0))
    return Bound(pipeline, held)


def _held_weights(sums: Stages, points: Points, setting: Setting) -> Array:
    """[n]: bytes of one rank's share of all weights at ZeRO-3, frozen ones included, on the stage that has most."""
    sizes = setting.bytes
    trained = _dense(sums, points, setting) * sizes.weight
    dense = trained + sums.frozen * sizes.frozen + sums.quantised * sizes.quantised
    expert = sums.expert * sizes.weight + sums.frozen_expert * sizes.frozen
    over, over_experts = _shards(points, setting, True)
    result: Array = (dense / over + expert / over_experts).max(axis=0)
    return result


def host_bytes(sums: Stages, points: Points, setting: Setting) -> Array:
    """Pinned host memory of one rank, [o, n]."""
    over, over_experts = _shards(points, setting, setting.zero >= 1)
    mine = (_dense(sums, points, setting) / over + sums.expert / over_experts).max(axis=0)
    weights = _held_weights(sums, points, setting)
    return np.array(
        [mine * offload.optimizer * setting.bytes.optimizer + weights * offload.weights for offload in setting.offload]
    )
