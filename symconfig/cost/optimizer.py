"""The optimizer's step: what a rank keeps for it and how long it takes, element by element or by whole matrices.

Axes of the arrays: s stage shape, o offload, n point.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from symconfig.cost import formulas
from symconfig.cost.framework import Orthogonal
from symconfig.cost.kernels import traffic_s
from symconfig.cost.lattice import Array
from symconfig.cost.stages import Setting, Stages
from symconfig.cost.tape import first_axis_max, maximum
from symconfig.plans.columns import Columns

# Host memory rate that one rank's share of CPU Adam reaches: half a socket's 200 GB/s over four ranks.
HOST_ADAM_BYTES_PER_S = 25e9


@dataclass(frozen=True, slots=True)
class Share:
    """A quantity of a rank's dense and of its experts' weights, [s, n] each."""

    dense: Array
    expert: Array

    @property
    def sum(self) -> Array:
        return self.dense + self.expert

    def on_rank(self, ranks: tuple[Array | float, Array | float]) -> Array:
        """Return what a rank has where so many, as of `shards`, share the quantity evenly: [s, n]."""
        result: Array = self.dense / ranks[0] + self.expert / ranks[1]
        return result

    def __add__(self, other: Share) -> Share:
        return Share(self.dense + other.dense, self.expert + other.expert)

    def __mul__(self, factor: float) -> Share:
        return Share(self.dense * factor, self.expert * factor)


def shards(points: Columns, setting: Setting, sharded: bool) -> tuple[Array | float, Array | float]:
    """Count the ranks that share one state of the dense and of the experts' parameters."""
    instances = setting.framework.optimizer_instances
    return (points.shards / instances, points.edp / instances) if sharded else (1.0, 1.0)


def dense_shared(sums: Stages, points: Columns, setting: Setting) -> Array:
    """Return [s, n]: trained parameters outside the experts as many as the ranks of `shards` share out."""
    if not setting.sharding.over_tensor:
        return sums.dense
    shared: Array = sums.dense - sums.whole * (1 - 1 / points.tp)
    return shared


def _bucket(ranks: Array | float, largest: Array, how: Orthogonal) -> Array:
    """Return the elements from which on a bucket of whole matrices is closed."""
    least = maximum(how.bucket, how.bucket_of_rank * ranks)
    result: Array = maximum(maximum(least, how.filled * ranks * largest), largest)
    return result


def elements_of_rank(sums: Stages, points: Columns, setting: Setting) -> Array:
    """Return [s, n]: parameters whose state a rank keeps, were all shared out evenly."""
    shared = Share(dense_shared(sums, points, setting), sums.expert)
    return shared.on_rank(shards(points, setting, setting.sharding.state))


def dealt(sums: Stages, points: Columns, setting: Setting) -> Share:
    """Return the elements of matrices that are made orthogonal on the rank with most of them.

    At ZeRO 1 a chunk's matrices are dealt out whole, bucket by bucket, largest first to whoever has least (Megatron-LM
    core_v0.18 to 0.19, optimizer/layer_wise_optimizer.py, _compute_per_buffer_param_layout).
    """
    how = setting.framework.orthogonal
    if how is None or not setting.sharding.state:
        return Share(sums.matrix, sums.matrix_expert)

    def part(whole: Array, ranks: Array | float, largest: Array) -> Array:
        several = formulas.dealt(whole, ranks, largest, sums.chunks, _bucket(ranks, largest, how))
        return np.where(np.greater(ranks, 1), several, whole)

    over, over_experts = shards(points, setting, True)
    return Share(
        part(sums.matrix, over, sums.largest_matrix), part(sums.matrix_expert, over_experts, sums.largest_matrix_expert)
    )


def padding(sums: Stages, points: Columns, setting: Setting) -> Share:
    """Return the elements by which buffers of gradients and of weights are longer than what is in them.

    Where matrices are dealt out whole every rank's part is as long as the longest one.
    """
    if setting.framework.orthogonal is None or not setting.sharding.state:
        nothing = np.zeros_like(sums.dense)
        return Share(nothing, nothing)
    over, over_experts = shards(points, setting, True)
    held = dealt(sums, points, setting)
    return Share(held.dense * over - sums.matrix, held.expert * over_experts - sums.matrix_expert)


def elementwise(sums: Stages, points: Columns, setting: Setting) -> Share:
    """Return the parameters that are stepped element by element, before they are shared out."""
    dense = dense_shared(sums, points, setting)
    if setting.framework.orthogonal is None:
        return Share(dense, sums.expert)
    return Share(dense - sums.matrix, sums.expert - sums.matrix_expert)


def state_of_matrices(sums: Stages, points: Columns, setting: Setting) -> Array:
    """Return [s, n]: bytes of the state of matrices that are made orthogonal."""
    if setting.framework.orthogonal is None:
        return np.zeros_like(sums.dense)
    result: Array = dealt(sums, points, setting).sum * setting.framework.orthogonal.state
    return result


def _of_matrices_s(sums: Stages, points: Columns, setting: Setting) -> Array | float:
    """Return [s, n]: seconds of orthogonalising a rank's matrices and of stepping them."""
    how = setting.framework.orthogonal
    if how is None:
        return 0.0
    held = dealt(sums, points, setting)
    iterated = (
        _part(held.dense, sums.matrix) * sums.matrix_s + _part(held.expert, sums.matrix_expert) * sums.matrix_expert_s
    )
    result: Array = iterated + held.sum * how.touched / setting.machine.hbm_bytes_per_s
    return result


def _part(some: Array, whole: Array) -> Array:
    """Return the share of a whole; nothing of nothing."""
    return np.where(whole > 0, some / np.where(whole > 0, whole, 1.0), 0.0)


def optimizer_s(sums: Stages, points: Columns, setting: Setting) -> Array:
    """Return the seconds of the optimizer's step: the part on the GPU, then the part in host memory with its transfers,
    [o, n].
    """
    machine, sizes = setting.machine, setting.bytes
    of_stage = elementwise(sums, points, setting).on_rank(shards(points, setting, setting.sharding.state))
    matrices_s = _of_matrices_s(sums, points, setting)
    rows = []
    for offload in setting.offload:
        here = traffic_s(machine, of_stage * (1 - offload.optimizer) * setting.framework.adam_bytes)
        away = of_stage * offload.optimizer
        moved = away * (sizes.gradient + sizes.weight) / machine.host_bytes_per_s
        row = first_axis_max(here + moved + away * setting.framework.adam_bytes / HOST_ADAM_BYTES_PER_S + matrices_s)
        if offload.weights:
            # Each microbatch brings every weight over twice, forward and backward.
            row = row + held_weights(sums, points, setting) * 2 * points.num_microbatches / machine.host_bytes_per_s
        rows.append(row)
    return np.array(rows)


def held_weights(sums: Stages, points: Columns, setting: Setting) -> Array:
    """Return [n]: bytes of one rank's share of all weights at ZeRO-3, frozen ones included, on the stage that
    has most.
    """
    sizes = setting.bytes
    trained = dense_shared(sums, points, setting) * sizes.weight
    dense = trained + sums.frozen * sizes.frozen + sums.quantised * sizes.quantised
    expert = sums.expert * sizes.weight + sums.frozen_expert * sizes.frozen
    result: Array = first_axis_max(Share(dense, expert).on_rank(shards(points, setting, True)))
    return result
