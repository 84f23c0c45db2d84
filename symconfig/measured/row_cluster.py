"""The cluster that a measured row ran on: one of the zoo, or a change of one that is stated as data."""

from __future__ import annotations

from functools import cache

from symconfig.descriptor.amounts import at_rate, gpu_bytes_per_s, with_network
from symconfig.descriptor.cluster import ClusterDescriptor, Level, Quantity
from symconfig.descriptor.load import load_cluster, zoo_clusters
from symconfig.descriptor.measurements import Row
from symconfig.errors import InputError
from symconfig.measured.assumptions import Assumption, assumptions
from symconfig.units import GIB

# Dynamic power goes with the clock and the square of the voltage, which goes with the clock, too.
CLOCK_OF_POWER = 1 / 3
ACROSS_SOCKETS = "a100-80gb-pcie"  # a cluster of the zoo in whose nodes some GPUs reach each other through processors


def forget_zoo() -> None:
    """Clear the cache of zoo clusters, after a file of the zoo has changed."""
    _zoo_clusters.cache_clear()


@cache
def _zoo_clusters() -> dict[str, ClusterDescriptor]:
    known = [load_cluster(name) for name in zoo_clusters()]
    return {name: cluster for cluster in known for name in (cluster.name, *cluster.aliases)}


def known(name: str) -> bool:
    """Return whether the zoo has a cluster of this name or alias."""
    return name in _zoo_clusters()


def cluster_of(row: Row, assumption: Assumption) -> ClusterDescriptor:
    """Return the row's cluster with its links and network, and with memory, bandwidth and clock (from
    power^CLOCK_OF_POWER) changed as the assumptions list for its GPU. The GPU is the row's, else the source's. Raises
    InputError if no GPU is stated or assumed, or if it is unknown.
    """
    name = row.cluster.gpu or assumption.gpu
    if name is None:
        raise InputError("is not stated", field="cluster.gpu")
    change = next((item for item in assumptions().clusters if item.gpu == name), None)
    base = _zoo_clusters().get(change.base if change else name)
    if base is None:
        raise InputError("is no GPU of the zoo", field="cluster.gpu", got=name)
    base = _connected(base, row, assumption)
    if change is None:
        return base
    gpu = base.gpu
    if change.memory_gib:
        gpu = gpu.model_copy(
            update={"memory_bytes": gpu.memory_bytes.model_copy(update={"value": change.memory_gib * GIB})}
        )
    if change.memory_bandwidth_bytes_per_s:
        rate = gpu.memory_bandwidth_bytes_per_s.model_copy(update={"value": change.memory_bandwidth_bytes_per_s})
        gpu = gpu.model_copy(update={"memory_bandwidth_bytes_per_s": rate})
    if change.power_w and gpu.power_w:
        clock = (change.power_w / gpu.power_w.value) ** CLOCK_OF_POWER
        gpu = gpu.model_copy(update={"clock": Quantity(value=clock, source=change.reason)})
    return base.model_copy(update={"gpu": gpu})


def network_stated(row: Row) -> str | None:
    """Return the row's text on the network between nodes, or None if it states no understood speed."""
    return _understood(row.cluster.inter_node, None)


def unread_network(row: Row) -> tuple[str, ...]:
    """Return as `name: value` the row's texts on its links that state no understood speed."""
    stated = {"inter_node": (row.cluster.inter_node, None), "intra_node": (row.cluster.intra_node, "gpu")}
    return tuple(f"{name}: {text}" for name, (text, alone) in stated.items() if text and not _understood(text, alone))


def _understood(text: str | None, alone: str | None) -> str | None:
    """Return the text if a speed can be parsed from it, else None. alone: unit that a bare speed is per."""
    try:
        return text if text and gpu_bytes_per_s(text, 1, alone) else None
    except InputError:
        return None


def _connected(base: ClusterDescriptor, row: Row, assumption: Assumption) -> ClusterDescriptor:
    """Return the cluster with the NVLink domain, GPU links and network of the row, as far as their speeds can be
    parsed.

    A domain counts if larger than 1 and smaller than the cluster's first level; if smaller than a node, a level across
    sockets (of ACROSS_SOCKETS) is added. The source's assumed network is used if the row states none; without either
    the cluster's stays.
    """
    stated, first, between = row.cluster, base.levels[0], tuple[Level, ...]()
    gpus_per_node, domain = stated.gpus_per_node or base.gpus_per_node, stated.nvlink_domain
    if domain is not None and 1 < domain < (first.size or 0):
        first = first.model_copy(update={"size": domain, "mesh": domain < gpus_per_node})
        if domain < gpus_per_node:  # boards without a switch, each with links between its GPUs alone
            (across,) = (level for level in _zoo_clusters()[ACROSS_SOCKETS].levels if level.name == "node")
            between = (across.model_copy(update={"size": gpus_per_node}),)
    if link := _understood(stated.intra_node, "gpu"):
        first = at_rate(first, gpu_bytes_per_s(link, gpus_per_node, "gpu"), link)
    if first is not base.levels[0]:
        base = base.model_copy(update={"levels": (first, *between, *base.levels[1:])})
    network = network_stated(row) or assumption.network
    return with_network(base, network, network, stated.gpus_per_node) if network else base
