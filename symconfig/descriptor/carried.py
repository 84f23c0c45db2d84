"""Constants of kernels that were fitted with one machine and are used for one that differs from it."""

from __future__ import annotations

from collections.abc import Mapping

from symconfig.descriptor.cluster import ClusterDescriptor, Kernels, Level, Precisions, Quantity
from symconfig.descriptor.mesh import NETWORK

# How sure a constant is that was fitted with other hardware than it is used for: as sure as one of a GPU of which no
# run was seen (`ANY_GPU` of measured/priors.py; tests/descriptor/test_carried.py holds them to each other).
CARRIED: Mapping[str, Mapping[str, float]] = {
    "network": {"network_efficiency": 0.2},
    "links": {"link_efficiency": 0.25},
    "peak": {"gemm_efficiency": 0.2, "gemm_efficiency_low": 0.25, "attention_efficiency": 0.3},
    "memory": {"hbm_efficiency": 0.15},
}
_WORDS = {"network": "another network", "links": "other links", "peak": "another peak", "memory": "another memory"}


def carried(base: ClusterDescriptor, cluster: ClusterDescriptor, stated: frozenset[str]) -> ClusterDescriptor:
    """Return the cluster with less trust in the base's constants that belong to hardware which is another one now."""
    update: dict[str, Quantity] = {}
    before, now = _hardware(base), _hardware(cluster)
    for what, constants in CARRIED.items():
        if all(now[what][name] == rate for name, rate in before[what].items() if name in now[what]):
            continue
        for name, least in constants.items():
            quantity: Quantity | None = getattr(cluster.kernels, name)
            if quantity is not None and name not in stated:
                source = f"{quantity.source}; carried over from {base.name} to {_WORDS[what]}"
                spread = max(quantity.uncertainty, least)
                update[name] = quantity.model_copy(update={"source": source, "uncertainty": spread})
    if not update:
        return cluster
    kernels: Kernels = cluster.kernels.model_copy(update=update)
    return cluster.model_copy(update={"kernels": kernels})


def _hardware(cluster: ClusterDescriptor) -> dict[str, dict[str, float]]:
    """Return what the kernels' constants are shares of, by name."""
    rates = {level.name: _link(level) for level in cluster.levels}
    gpu = cluster.gpu
    peaks: dict[str, Quantity | None] = {name: getattr(gpu.peak_flops, name) for name in Precisions.model_fields}
    return {
        "network": {name: rate for name, rate in rates.items() if name in NETWORK},
        "links": {name: rate for name, rate in rates.items() if name not in NETWORK},
        "peak": {name: peak.value for name, peak in peaks.items() if peak is not None},
        "memory": {"bandwidth": gpu.memory_bandwidth_bytes_per_s.value},
    }


def _link(level: Level) -> float:
    """Return the bandwidth of a level's port, or of one of its links to each peer."""
    rate = level.bandwidth_bytes_per_s.value
    return rate / (level.size - 1) if level.mesh and level.size else rate
