"""The source paper's relative cost: Cost_total = sum over tensors of Cost_mem / gamma + Cost_comm.

Cost_mem(T) = sum over T's dims of d_i / s_i; Cost_comm(T) = elements that its collectives move on one rank.
Computation is left out, since total FLOPs do not change with the partition. It depends on no hardware.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from symconfig.cost.blocks import BlockCost
from symconfig.cost.lattice import Array, Lattice
from symconfig.cost.optimizer import shards
from symconfig.cost.stages import Setting
from symconfig.graph import dims as d
from symconfig.graph.block import Block
from symconfig.graph.derive import weight_layout
from symconfig.graph.layout import Layout
from symconfig.graph.monomial import Monomial
from symconfig.graph.operator import ELEMENT_BYTES, Element
from symconfig.graph.scheme import Scheme
from symconfig.graph.sharding import over_replicas
from symconfig.plans.columns import Columns


@dataclass(frozen=True, slots=True)
class Relative:
    """Relative costs of one block, [points]; weights are separate from activations, since ZeRO shards them further."""

    activations: Array
    weights: Array
    expert_weights: Array
    communication: Array
    parameters: Array
    expert_parameters: Array

    def at(self, chosen: NDArray[np.intp]) -> Relative:
        """Return the costs at the selected points."""
        return Relative(*(getattr(self, name)[chosen] for name in Relative.__slots__))


def relative(block: Block, cost: BlockCost, scheme: Scheme, lattice: Lattice) -> Relative:
    """Return the relative costs of one microbatch through the block.

    Weights that are shared with another block count there only.
    """
    zero = np.zeros(lattice.points)
    activations, weights, expert = zero, zero, zero
    for op in block.operators:
        for use in op.outputs:
            activations = activations + _local_size_sum(use.tensor.dims, scheme.layout(op, use), lattice)
        for weight in op.weights:
            if weight.shared:  # another block's tensor
                continue
            share = _local_size_sum(weight.dims, weight_layout(op, weight, scheme)[0], lattice)
            if d.EXPERTS in weight.dims:
                expert = expert + share
            else:
                weights = weights + share
    moved = zero
    for collective in cost.derived.collectives:
        ranks = lattice.value(Monomial.of(*collective.axes))
        moved = moved + collective.kind.passes * collective.times * (ranks - 1) / ranks * lattice.value(
            collective.elements
        )
    return Relative(activations, weights, expert, moved, cost.weights.dense, cost.weights.expert)


def _local_size_sum(dims: tuple[str, ...], layout: Layout, lattice: Lattice) -> Array:
    """Return the sum over dims of the local size d_i / s_i: [points]."""
    result = np.zeros(lattice.points)
    for dim in dims:
        parts = Monomial.of(*layout.axes_on(dim))
        result = result + lattice.value(d.local(d.size(dim) / parts))
    return result


def costs(
    blocks: list[Relative], counts: Array, boundary_bytes: Array, points: Columns, setting: Setting
) -> tuple[Array, Array]:
    """Return (memory, communication) of a whole plan in the source paper's units, [n] each.

    counts: of each block in the model. The layers dim is split over pp, the batch over dp; communication includes that
    over replicas and between stages.
    """
    m = points.num_microbatches
    pipelines = setting.pipelines

    def whole(name: str) -> Array:
        result: Array = np.tensordot(counts, np.array([getattr(block, name) for block in blocks]), axes=1)
        return result / pipelines.pp

    stored = shards(points, setting, setting.sharding.weight)
    parameters = (whole("parameters"), points.shards), (whole("expert_parameters"), points.edp)
    memory = m * whole("activations") + whole("weights") / stored[0] + whole("expert_weights") / stored[1]
    data = np.zeros_like(m)
    for way, moved in over_replicas(replace(setting.sharding, instances=False)):
        passes = sum(move.kind.passes for move in moved) * (1.0 if way.phase.once else m)
        data = data + sum(passes * (ranks - 1) / ranks * elements for elements, ranks in parameters)
    boundary = boundary_bytes / ELEMENT_BYTES[Element.ACTIVATION]
    sends = 2.0 * m * pipelines.vpp * boundary if pipelines.several else 0.0
    return memory, m * whole("communication") + data + sends
