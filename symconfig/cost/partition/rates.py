"""What moving bytes along one axis of a mesh costs: seconds, or elements as the source paper counts them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from symconfig.cost import compiled
from symconfig.cost.machine import Number
from symconfig.cost.protocols import LL128_BANDWIDTH, LL128_LATENCY
from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.mesh import NETWORK, Axis, Mesh

Array = NDArray[np.float64]
_MANY = 1e18  # bytes of which the latency is no part
_LEVELS = 4


@dataclass(frozen=True, slots=True)
class Affine:
    """fixed + each * amount. protocols: or with half of what is fixed and a little less bandwidth, if faster."""

    fixed: float
    each: float
    protocols: bool = False

    def __call__(self, amount: Array) -> Array:
        simple: Array = self.fixed + self.each * amount
        if not self.protocols:
            return simple
        result: Array = np.minimum(simple, LL128_LATENCY * self.fixed + self.each / LL128_BANDWIDTH * amount)
        return result


@dataclass(frozen=True, slots=True)
class Rate:
    """Costs along one axis of `size` ranks; amounts are of the larger buffer on one rank.

    ring: an all-gather or a reduce-scatter. send: to a neighbour.
    """

    size: int
    ring: Affine
    all_reduce: Affine
    all_to_all: Affine
    send: Affine


def levels(mesh: Mesh, cluster: ClusterDescriptor) -> dict[str, Number]:
    """Arguments of the collectives' formulas for a mesh, with the cluster's share of the wires' bandwidth."""
    kernels = cluster.kernels
    result: dict[str, Number] = {}
    if not mesh.levels:  # one GPU: there is nothing between which anything could move
        return result
    reach = [1]
    for level in mesh.levels:
        reach.append(reach[-1] * level.size)
    for index in range(_LEVELS):
        at = min(index, len(mesh.levels) - 1)
        level = mesh.levels[at]
        network = kernels.network_efficiency or kernels.link_efficiency
        share = network if level.name in NETWORK else kernels.link_efficiency
        result[f"level{index}_size"] = float(reach[at + 1])
        result[f"level{index}_bytes_per_s"] = level.bandwidth_bytes_per_s * share.value
        result[f"level{index}_latency_s"] = level.latency_s
        result[f"level{index}_mesh"] = 1.0 if level.mesh else 0.0
    return result


def seconds(axes: Sequence[Axis], numbers: dict[str, Number]) -> tuple[Rate, ...]:
    """numbers: of `levels`. The collectives' formulas are affine in the amount, but for the choice of a protocol."""

    def fitted(formula: Any, *arguments: float, protocols: bool) -> Affine:
        none = float(formula(0.0, *arguments, **numbers))
        many = float(formula(_MANY, *arguments, **numbers))
        return Affine(none / LL128_LATENCY if protocols else none, many / _MANY, protocols)

    return tuple(
        Rate(
            axis.size,
            fitted(compiled.ring_s, 1.0, float(axis.size), float(axis.stride), protocols=True),
            fitted(compiled.ring_s, 2.0, float(axis.size), float(axis.stride), protocols=True),
            fitted(compiled.all_to_all_s, float(axis.size), float(axis.stride), 1.0, 0.0, 1.0, 1.0, protocols=False),
            fitted(compiled.send_s, float(axis.size), float(axis.stride), protocols=False),
        )
        for axis in axes
    )


def elements(axes: Sequence[Axis]) -> tuple[Rate, ...]:
    """Elements that leave one rank, whatever the link: the source paper's Cost_comm."""

    def rate(size: int) -> Rate:
        share = Affine(0.0, (size - 1) / size)
        return Rate(size, share, Affine(0.0, 2 * share.each), share, Affine(0.0, 1.0))

    return tuple(rate(axis.size) for axis in axes)
