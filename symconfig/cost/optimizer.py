"""The optimizer's step: what a rank keeps for it and how long it takes, element by element or by whole matrices.

Axes of the arrays: s stage shape, o offload, n point.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from symconfig.cost import formulas
from symconfig.cost.formulas import traffic_s
from symconfig.cost.lattice import Array
from symconfig.cost.stages import Setting, Stages
from symconfig.cost.tape import first_axis_max, maximum
from symconfig.plans.configuration_set import ConfigurationSet

# Host memory rate that one rank's share of CPU Adam reaches: half a socket's 200 GB/s over four ranks.
HOST_ADAM_BYTES_PER_S = 25e9


@dataclass(frozen=True, slots=True)
class Share:
    """A quantity of dense and of experts' weights, [s, n] each."""

    dense: Array
    expert: Array

    @property
    def sum(self) -> Array:
        return self.dense + self.expert

    def on_rank(self, ranks: tuple[Array | float, Array | float]) -> Array:
        """Return one rank's even share, dense / ranks[0] + expert / ranks[1]: [s, n]. ranks: as of `shards`."""
        result: Array = self.dense / ranks[0] + self.expert / ranks[1]
        return result

    def __add__(self, other: Share) -> Share:
        return Share(self.dense + other.dense, self.expert + other.expert)

    def __mul__(self, factor: float) -> Share:
        return Share(self.dense * factor, self.expert * factor)


def shards(points: ConfigurationSet, setting: Setting, sharded: bool) -> tuple[Array | float, Array | float]:
    """Return how many ranks share one copy of the dense and of the experts' state; (1, 1) if not `sharded`."""
    instances = setting.framework.optimizer_instances
    return (points.shards / instances, points.edp / instances) if sharded else (1.0, 1.0)


def dense_shared(sums: Stages, points: ConfigurationSet, setting: Setting) -> Array:
    """Return the trained dense parameters that the ranks of `shards` divide among them: [s, n].

    Where shards extend over tensor-parallel ranks, parameters that each tp rank holds whole count 1/tp.
    """
    if not setting.sharding.over_tensor:
        return sums.dense
    shared: Array = sums.dense - sums.whole * (1 - 1 / points.tp)
    return shared


def undivided_matrices(sums: Stages, points: ConfigurationSet, setting: Setting) -> Share:
    """Return the elements of orthogonalised matrices on the busiest rank, [s, n]; all of them without a sharded state.

    All too where one rank shares the state, or the optimizer orthogonalises nothing. Else a chunk's matrices are
    assigned undivided, bucket by bucket, each bucket's largest first to the rank with the fewest elements (Megatron-LM
    core_v0.18 to 0.19, optimizer/layer_wise_optimizer.py, _compute_per_buffer_param_layout).
    """
    how = setting.framework.orthogonal
    if how is None or not setting.sharding.state:
        return Share(sums.matrix, sums.matrix_expert)

    def part(whole: Array, ranks: Array | float, largest: Array) -> Array:
        # A bucket is closed at this number of elements, and holds the largest matrix at least.
        bucket = maximum(maximum(how.bucket, how.bucket_of_rank * ranks), maximum(how.filled * ranks, 1.0) * largest)
        several = formulas.undivided_elements(whole, ranks, largest, sums.chunks, bucket)
        return np.where(np.greater(ranks, 1), several, whole)

    over, over_experts = shards(points, setting, True)
    return Share(
        part(sums.matrix, over, sums.largest_matrix), part(sums.matrix_expert, over_experts, sums.largest_matrix_expert)
    )


def padding(sums: Stages, points: ConfigurationSet, setting: Setting) -> Share:
    """Return the padding of gradient and weight buffers in elements, of all ranks together: [s, n].

    Where matrices are assigned undivided, every rank's part is as long as the longest one. 0 without an orthogonalising
    optimizer, and without a sharded state.
    """
    if setting.framework.orthogonal is None or not setting.sharding.state:
        nothing = np.zeros_like(sums.dense)
        return Share(nothing, nothing)
    over, over_experts = shards(points, setting, True)
    held = undivided_matrices(sums, points, setting)
    return Share(held.dense * over - sums.matrix, held.expert * over_experts - sums.matrix_expert)


def elementwise(sums: Stages, points: ConfigurationSet, setting: Setting) -> Share:
    """Return the trained parameters that the optimizer steps element by element, before sharding: [s, n].

    These are all (dense ones as of `dense_shared`), without the matrices of an orthogonalising optimizer.
    """
    dense = dense_shared(sums, points, setting)
    if setting.framework.orthogonal is None:
        return Share(dense, sums.expert)
    return Share(dense - sums.matrix, sums.expert - sums.matrix_expert)


def _ratio(some: Array, whole: Array) -> Array:
    """Return some / whole; 0 where the whole is 0."""
    return np.where(whole > 0, some / np.where(whole > 0, whole, 1.0), 0.0)


def optimizer_s(sums: Stages, points: ConfigurationSet, setting: Setting) -> Array:
    """Return the seconds of the optimizer's step on the slowest stage, one row per offload setting: [o, n].

    The GPU's part, the transfers to and from the host, the step in host memory of the offloaded share, and the
    orthogonalised matrices follow one another. With offloaded weights every microbatch copies them from the host twice.
    """
    machine, sizes = setting.machine, setting.bytes
    of_stage = elementwise(sums, points, setting).on_rank(shards(points, setting, setting.sharding.state))
    matrices_s: Array | float = 0.0
    if setting.framework.orthogonal is not None:
        held = undivided_matrices(sums, points, setting)
        iterated_s = _ratio(held.dense, sums.matrix) * sums.matrix_s
        iterated_s = iterated_s + _ratio(held.expert, sums.matrix_expert) * sums.matrix_expert_s
        matrices_s = iterated_s + held.sum * setting.framework.orthogonal.touched / machine.hbm_bytes_per_s
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


def held_weights(sums: Stages, points: ConfigurationSet, setting: Setting) -> Array:
    """Return the bytes of a rank's shard of all weights, frozen ones included, on the largest stage: [n].

    The shard is that of ZeRO 3, whatever the setting's stage.
    """
    sizes = setting.bytes
    trained = dense_shared(sums, points, setting) * sizes.weight
    dense = trained + sums.frozen * sizes.frozen + sums.quantised * sizes.quantised
    expert = sums.expert * sizes.weight + sums.frozen_expert * sizes.frozen
    result: Array = first_axis_max(Share(dense, expert).on_rank(shards(points, setting, True)))
    return result
