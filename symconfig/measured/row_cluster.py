"""The cluster that a measured row ran on: one of the zoo, or a change of one that is stated as data."""

from __future__ import annotations

from functools import cache

from symconfig.descriptor.cluster import ClusterDescriptor, Level
from symconfig.descriptor.load import load_cluster, zoo_clusters
from symconfig.descriptor.measurements import Row
from symconfig.errors import InputError, Problem
from symconfig.measured.assumptions import Assumption, assumptions
from symconfig.units import GIB


def forget_zoo() -> None:
    """After a file of the zoo has changed."""
    _zoo_clusters.cache_clear()


@cache
def _zoo_clusters() -> dict[str, ClusterDescriptor]:
    known = [load_cluster(name) for name in zoo_clusters()]
    return {name: cluster for cluster in known for name in (cluster.name, *cluster.aliases)}


def known(name: str) -> bool:
    """Whether the zoo has a cluster of this name."""
    return name in _zoo_clusters()


def cluster_of(row: Row, assumption: Assumption) -> ClusterDescriptor:
    """Raises InputError when the GPU is not stated or not known."""
    name = row.cluster.gpu or assumption.gpu
    if name is None:
        raise InputError(Problem("is not stated", field="cluster.gpu"))
    change = next((item for item in assumptions().clusters if item.gpu == name), None)
    base = _zoo_clusters().get(change.base if change else name)
    if base is None:
        raise InputError(Problem("is no GPU of the zoo", field="cluster.gpu", got=name))
    if assumption.network_ports is not None:
        base = _with_ports(base, assumption.network_ports)
    if change is None:
        return base
    gpu, levels, kernels = base.gpu, base.levels, base.kernels
    if change.memory_gib:
        gpu = gpu.model_copy(
            update={"memory_bytes": gpu.memory_bytes.model_copy(update={"value": change.memory_gib * GIB})}
        )
    if change.memory_bandwidth_bytes_per_s:
        rate = gpu.memory_bandwidth_bytes_per_s.model_copy(update={"value": change.memory_bandwidth_bytes_per_s})
        gpu = gpu.model_copy(update={"memory_bandwidth_bytes_per_s": rate})
    if change.power_w and gpu.power_w:
        # Dynamic power goes with the clock and the square of the voltage, which goes with the clock, too.
        # Attention leaves the tensor cores idle for half of the time or more and stays below the limit.
        clock = (change.power_w / gpu.power_w.value) ** (1 / 3)
        peaks = {name: getattr(gpu.peak_flops, name) for name in type(gpu.peak_flops).model_fields}
        slower = {name: q.model_copy(update={"value": q.value * clock}) for name, q in peaks.items() if q is not None}
        gpu = gpu.model_copy(update={"peak_flops": gpu.peak_flops.model_copy(update=slower)})
        rate = kernels.attention_efficiency
        rate = rate.model_copy(update={"value": rate.value / clock})
        kernels = kernels.model_copy(update={"attention_efficiency": rate})
    if change.nvlink_domain:
        levels = (levels[0].model_copy(update={"size": change.nvlink_domain}), *levels[1:])
    return base.model_copy(update={"gpu": gpu, "levels": levels, "kernels": kernels})


def _with_ports(base: ClusterDescriptor, ports: int) -> ClusterDescriptor:
    """The cluster with so many network ports a node: each GPU has its share of them."""

    def shared(level: Level) -> Level:
        rate = level.bandwidth_bytes_per_s
        share = rate.model_copy(update={"value": rate.value * ports / base.gpus_per_node})
        return level.model_copy(update={"bandwidth_bytes_per_s": share})

    return base.model_copy(update={"levels": (base.levels[0], *map(shared, base.levels[1:]))})
