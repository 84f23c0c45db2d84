"""A step of a whole plan: stages, pipeline, data-parallel communication, optimizer; seconds and peak bytes by part.

Axes of the arrays: s stage shape, r recompute policy, o offload, n point (tp, cp, ep, etp, micro-batch, and with the
pipeline degree fixed also dp and the number of microbatches).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from symconfig.cost import formulas
from symconfig.cost.blocks import SECONDS
from symconfig.cost.lattice import Array
from symconfig.cost.optimizer import (
    Share,
    dense_shared,
    elementwise,
    exchanged_s,
    held_weights,
    optimizer_s,
    padding,
    shards,
    undivided_matrices,
)
from symconfig.cost.pipeline import in_flight, pipelined
from symconfig.cost.stages import Setting, Stages, summed
from symconfig.cost.table import Table
from symconfig.cost.tape import maximum, minimum
from symconfig.plans.configuration_set import ConfigurationSet

# Of a parameter that is stepped in host memory: its gradient in fp32, pinned (Megatron-LM's hybrid_optimizer.py,
# cpu_copys_map_grad; deepspeed/runtime/zero/stage_1_and_2.py, single_partition_of_fp32_groups' grad).
HOST_GRADIENT_BYTES = 4.0
HOST_SHARE = 0.8  # of the host memory may be pinned; the rest is for data loading and the system


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

    def policy(self, row: int) -> Cost:
        """Return the cost under one recompute policy, whose axis keeps the length 1."""
        return Cost(
            {name: part[row : row + 1] if len(part) > 1 else part for name, part in self.time.items()},
            {name: part[:, row : row + 1] if part.shape[1] > 1 else part for name, part in self.memory.items()},
        )

    @property
    def peak_bytes(self) -> Array:
        """Return the peak bytes of the stage with most: [policies, offloads, points]."""
        result: Array = self.stage_bytes.max(axis=0)
        return result


def total(parts: dict[str, Array]) -> Array:
    """Return the sum of the parts, broadcast to a common shape; raise IndexError if there are none.

    Small arrays are added first, so that few sums are large.
    """
    ordered = sorted(parts.values(), key=lambda part: part.size)
    result = ordered[0]
    for part in ordered[1:]:
        result = result + part
    return result


def evaluate(sums: Stages, points: ConfigurationSet, setting: Setting) -> Cost:
    """Return seconds and bytes by part of every candidate: each recompute policy, offload and point."""
    return Cost(time_s(sums, points, setting), memory_bytes(sums, points, setting))


def _each_offload(array: Array) -> Array:
    """Return the array with an axis for offloads inserted: [..., 1, points] of [..., points]."""
    return array[..., None, :]


def time_s(sums: Stages, points: ConfigurationSet, setting: Setting) -> dict[str, Array]:
    """Return the seconds of a step by part, each of which broadcasts to [policies, offloads, points].

    The parts are compute, recompute, layer communication, pipeline send/receive (with several stages), pipeline bubble,
    data-parallel communication, optimizer and overhead.
    """
    passes = pipelined(sums.seconds, sums.rerun, sums.communication, sums=sums, points=points, setting=setting)
    parts = {name: _each_offload(part) for name, part in passes.items()}
    parts["data-parallel communication"] = _each_offload(exchanged_s(sums, points, setting))
    parts["optimizer"] = optimizer_s(sums, points, setting)[None]
    parts["overhead"] = _overhead(points, setting)[None, None, :]
    return parts


def _overhead(points: ConfigurationSet, setting: Setting) -> Array:
    """Return the framework's overhead of a step and of all its microbatches in seconds: [points]."""
    framework = setting.framework
    result: Array = framework.step_overhead_s + points.num_microbatches * framework.microbatch_overhead_s
    return result


def apart_s(sums: Stages, points: ConfigurationSet, setting: Setting) -> Array:
    """Return the seconds of the optimizer and the overhead together: [offloads, points]."""
    return optimizer_s(sums, points, setting) + _overhead(points, setting)


def memory_bytes(sums: Stages, points: ConfigurationSet, setting: Setting) -> dict[str, Array]:
    """Return the bytes of each stage by part, at its peak; each broadcasts to [stages, policies, offloads, points].

    Parts are activations (of all microbatches in flight), head and loss, working set, weights, gradients and optimizer
    state.
    """
    parts = {
        "activations": _each_offload(sums.kept * in_flight(points, setting)[:, None]),
        "head and loss": _each_offload(sums.ends),
        "working set": _each_offload(sums.transient),
    }
    parts |= {name: part[:, None] for name, part in states(sums, points, setting).items()}
    held = parts["activations"] + parts["head and loss"]
    return parts | {"gradients": _gradients_at_peak(parts["gradients"], held, sums, points, setting)}


def _gradients_at_peak(
    gradients: Array, held: Array, sums: Stages, points: ConfigurationSet, setting: Setting
) -> Array:
    """Return the bytes of gradients at a stage's peak.

    Gradients that appear only during the last backward count as far as they exceed `held`, the activations that are
    freed meanwhile: those queued for reduction where gradients are sharded and the framework has a queue, or, if the
    optimizer frees gradients, all of them with one microbatch and none else.
    """
    every, queued = sums.dense + sums.expert, setting.framework.queued_elements
    if not queued or not setting.sharding.gradient:
        waiting = np.zeros_like(every)
    else:
        most = maximum(queued, 2 * sums.largest) if setting.sharding.weight else every
        waiting = setting.bytes.gradient * minimum(every, most)
    coming = np.expand_dims(waiting, tuple(range(1, gradients.ndim - 1)))
    if setting.framework.frees_gradients:
        coming = gradients * (points.num_microbatches == 1)
        gradients = gradients - coming
    return np.asarray(gradients + maximum(coming - held, 0.0))


def states(sums: Stages, points: ConfigurationSet, setting: Setting) -> dict[str, Array]:
    """Return a rank's bytes by part; each broadcasts to [stages, offloads, points].

    The parts are "weights", with low-precision copies, frozen weights, and at ZeRO 3 the gathered blocks, or with
    offloaded weights the gathered blocks alone; "gradients" (with the further copies that some frameworks keep) and
    "optimizer state", both without their offloaded share.
    """
    sizes, sharding, offloads = setting.bytes, setting.sharding, setting.offload
    every = Share(dense_shared(sums, points, setting), sums.expert)
    buffers = every + padding(sums, points, setting)
    stored, reduced, stepped = (
        shards(points, setting, way) for way in (sharding.weight, sharding.gradient, sharding.state)
    )
    resting = sizes.frozen + (sizes.frozen_rest if sharding.weight else 0.0)
    still = Share(sums.frozen * resting + sums.quantised * sizes.quantised, sums.frozen_expert * resting)
    tables = np.where(sums.frozen > 0, sums.vocabulary, 0.0)  # beside adapters all else is frozen
    trained = Share(sums.dense - (sums.vocabulary - tables), sums.expert).on_rank(stored)
    frozen = Share(sums.frozen - tables, sums.frozen_expert).on_rank(stored)
    copies = sizes.weight_cache * trained + sizes.frozen_cache * frozen
    whole = _each_offload(sizes.weight * buffers.on_rank(stored) + (still.on_rank(stored) + copies))
    # ZeRO-3 gathers a block while it computes it, and the next one, or more, ahead of time.
    rest = sums.dense + sums.expert + sums.frozen + sums.frozen_expert - sums.largest
    ahead = maximum(sums.largest, minimum(setting.framework.queued_elements / 2, rest))
    live = _each_offload(sizes.weight * (sums.largest + ahead)) if sharding.weight else np.zeros_like(whole)
    # Sharded gradients are offloaded with the optimizer state by some frameworks.
    follow = setting.framework.offloads_gradients and sharding.gradient
    stay = _column(1.0 - offload.optimizer * follow for offload in offloads)
    gradients = sizes.gradient * stay * _each_offload(buffers.on_rank(reduced))
    gradients = gradients + setting.framework.beside_bytes * _each_offload(every.sum)
    if setting.zero in setting.framework.added_gradients_at and sizes.gradient > sizes.weight:
        on_gpu = _column(offload.optimizer == 0 for offload in offloads)
        gradients = gradients + on_gpu * sizes.weight * _each_offload(every.sum)
    on_device = _column(1.0 - offload.optimizer for offload in offloads)
    state = sizes.optimizer * on_device * _each_offload(elementwise(sums, points, setting).on_rank(stepped))
    if setting.framework.orthogonal is not None:
        state = state + _each_offload(
            undivided_matrices(sums, points, setting).sum * setting.framework.orthogonal.state
        )
    return {
        "weights": np.where(_column(offload.weights for offload in offloads) > 0, live, whole + live),
        "gradients": gradients,
        "optimizer state": state,
    }


def _column(values: Iterable[float]) -> Array:
    """Return one value for each offload as a column: [offloads, 1]."""
    return np.array([[1.0 * value] for value in values])


def bound_s(sums: Stages, points: ConfigurationSet, setting: Setting) -> Array:
    """Return a lower bound of a step's seconds over all policies, offloads and ZeRO stages: [points].

    Only passes and bubble are in it. sums: of a `bound_table`.
    """
    passes = pipelined(sums.seconds, sums.rerun, sums.communication, sums=sums, points=points, setting=setting)
    return np.asarray(total(passes)[0])


def bound_bytes(sums: Stages, points: ConfigurationSet, setting: Setting) -> Array:
    """Return a lower bound of the peak bytes over all policies, at this ZeRO stage, by offload: [offloads, points].

    sums: of a `bound_table`. More offload leaves fewer bytes on the GPU.
    """
    parts = states(sums, points, setting)
    held = (sums.kept[:, 0] * in_flight(points, setting) + sums.ends[:, 0])[:, None]
    parts["gradients"] = _gradients_at_peak(parts["gradients"], held, sums, points, setting)
    state: Array = sum(parts.values(), np.zeros(()))
    return np.asarray((held + sums.transient[:, :1] + state).max(axis=0))


def host_bytes(sums: Stages, points: ConfigurationSet, setting: Setting) -> Array:
    """Return the pinned host memory of one rank in bytes: [policies, offloads, points].

    The sum of offloaded activations of all microbatches in flight, on the stage with most, and, each on its largest
    stage, the offloaded share of optimizer state with its fp32 gradients, and weights if they are offloaded.
    """
    shared = Share(dense_shared(sums, points, setting), sums.expert)
    mine = shared.on_rank(shards(points, setting, setting.sharding.state)).max(axis=0)
    weights = held_weights(sums, points, setting)
    state = setting.bytes.optimizer + HOST_GRADIENT_BYTES
    states = np.array([mine * offload.optimizer * state + weights * offload.weights for offload in setting.offload])
    activations = (sums.away * in_flight(points, setting)[:, None]).max(axis=0)
    result: Array = activations[:, None] + states
    return result


Prefix = tuple[tuple[int, ...], ...]  # [n]: blocks of each kind among the first n layers of the stage's chunks


class FirstLayers(NamedTuple):
    """The cost of each candidate with its first `layers` layers of every chunk recomputed, [1, o, n]; 0: none fits."""

    layers: NDArray[np.intp]
    cost: Cost


@dataclass(frozen=True, slots=True)
class Extremes:
    """The policies without recompute (keep) and with full recompute (rerun), as rows of the table.

    sums: of all policies at the `chosen` points of the table. plain: the cost without recompute at these points.
    """

    keep: int
    rerun: int
    table: Table
    chosen: NDArray[np.intp]
    sums: Stages
    plain: Cost


def evaluate_block(
    extremes: Extremes, points: ConfigurationSet, setting: Setting, prefix: Array, budget_bytes: float
) -> FirstLayers:
    """Return the fewest first layers of every chunk to recompute, at least one, so that memory fits, and their cost.

    A number fits if no stage's peak is above budget_bytes (of peak allocated bytes). Where none does, layers is 0 and
    the cost is that without recompute. Each point and offload is decided for itself.

    prefix: blocks of each kind among the first layers, [stages, layers, kinds, points].
    """
    plain, passes = extremes.plain, extremes.table.passes
    plain_sums, full_sums = extremes.sums.policy(extremes.keep), extremes.sums.policy(extremes.rerun)
    repeated, keep = (passes[:, row][..., extremes.chosen] for row in (extremes.rerun, extremes.keep))
    change = repeated - keep  # [PASSES, kinds, n]
    kept = extremes.table.kept(extremes.chosen, setting.pipelines.pp)
    heads = prefix.sum(axis=2)
    # The heads of all chunks are as long, so that they are in flight as a stage of even chunks is. [s, layers, n]
    pipelines, m = setting.pipelines, points.num_microbatches[None]
    even = formulas.in_flight(pipelines.index, pipelines.pp, pipelines.vpp, m, setting.groups)
    less = summed(prefix, kept[extremes.rerun] - kept[extremes.keep]) * even[:, None]
    activations = plain.memory["activations"][:, 0] + less
    touched = heads > 0
    working = np.where(touched, maximum(plain_sums.transient, full_sums.transient), plain_sums.transient)
    fixed = total({name: part for name, part in plain.memory.items() if name not in ("activations", "working set")})
    movable = activations + working
    fits = np.asarray((movable[:, :, None, :] + fixed[:, 0][:, None]).max(axis=0) <= budget_bytes)  # [layers, o, n]
    fits &= touched.any(axis=0)[:, None]
    layers = np.where(fits.any(axis=0), fits.argmax(axis=0), 0)[None]
    memory = {**plain.memory, "activations": _pick(activations, layers), "working set": _pick(working, layers)}
    extra = _pick(summed(prefix, change[SECONDS].sum(axis=0)), layers)
    seconds, communication = plain_sums.seconds[:, :, None], plain_sums.communication[:, :, None]
    time = pipelined(seconds + extra, extra, communication, sums=plain_sums, points=points, setting=setting)
    return FirstLayers(layers, Cost(plain.time | time, memory))


def prefixed(each: Sequence[Sequence[Prefix]], which: NDArray[np.intp] | None, shapes: int) -> Array:
    """Return the prefixes of every pipeline's stage shapes as one array: [stages, layers, kinds, points].

    each: per pipeline, per stage shape, blocks of each kind among its first layers. which: index of each point's
    pipeline in `each`; None for a single one, whose array has one point. shapes: the number of stage shapes. Where a
    pipeline has fewer shapes or layers, its last ones are repeated.
    """
    most = max(len(prefix) for one in each for prefix in one)
    rows = [
        [[*prefix, *[prefix[-1]] * (most - len(prefix))] for prefix in (*one, *[one[-1]] * (shapes - len(one)))]
        for one in each
    ]
    sums = np.moveaxis(np.array(rows, dtype=np.float64), 0, -1)
    return sums if which is None else sums[..., which]


def _pick(table: Array, layers: NDArray[np.intp]) -> Array:
    """Return a table's entries at the chosen number of layers of every candidate: [stages, 1, offloads, points].

    table: [stages, layers, points]. layers: [1, offloads, points].
    """
    return table[:, layers, np.arange(layers.shape[-1])]
