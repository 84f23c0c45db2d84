"""Machines for two kinds of GPUs: one of mean rates, by which degrees are ranked, one for messages between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from symconfig.cost.machine import Machine, Number
from symconfig.descriptor.cluster import NETWORK, ClusterDescriptor
from symconfig.descriptor.load import MixedCluster

_LEVELS = 4  # network levels of a machine
_OF_PEAK = {"efficiency": "high_peak_flops", "low_efficiency": "peak_flops"}  # shares of a rate
_MOST = ("memory_bytes", "host_memory_bytes_per_gpu")
_LEAST = ("size", "bytes_per_s")  # suffixes of numbers of a level of which less is worse


def mean(machines: Sequence[Machine], gpus: Sequence[int]) -> Machine:
    """Return a machine of mean rates, weighted by the numbers of GPUs of both kinds.

    Memory of GPU and host is the larger of both; network levels are the worse of both.
    """
    one, other = machines
    shares = [number / sum(gpus) for number in gpus]

    def of(name: str) -> Any:
        """Return the mean of one number of both machines; the larger one for memory."""
        first, second = (getattr(machine, name) for machine in machines)
        if first == second:
            return first
        if name in _MOST:
            return max(first, second)
        weights = shares
        if name in _OF_PEAK:
            rates = [share * getattr(machine, _OF_PEAK[name]) for share, machine in zip(shares, machines, strict=True)]
            weights = [rate / sum(rates) for rate in rates]
        return weights[0] * first + weights[1] * second

    numbers: dict[str, Any] = {
        name: of(name) for name in Machine.__slots__ if isinstance(getattr(one, name), int | float)
    }
    return replace(one, **numbers, levels=_worse(one.levels, other.levels))


def border(mixed: MixedCluster, machines: Sequence[Machine]) -> Machine:
    """Return a machine for messages between the kinds: the worse of both networks, and no faster links inside a node.

    Bandwidth is capped by `over_bytes_per_s` of the mixed cluster, if given, times the network efficiency.
    """
    clusters = [share.cluster for share in mixed.shares]
    one, other = (_between_nodes(*each) for each in zip(clusters, machines, strict=True))
    levels = _worse(one, other)
    if mixed.over_bytes_per_s is not None:
        rate = mixed.over_bytes_per_s * min(map(_efficiency, clusters))
        levels = {name: min(value, rate) if name.endswith("bytes_per_s") else value for name, value in levels.items()}
    return replace(machines[0], levels=levels)


def _between_nodes(cluster: ClusterDescriptor, machine: Machine) -> dict[str, Number]:
    """Return the levels of a machine, with those inside a node as slow as the first one between nodes."""
    names = [level.name for level in cluster.levels]
    first = next((place for place, name in enumerate(names) if name in NETWORK), len(names) - 1)
    levels = dict(machine.levels)
    for place in range(min(first, _LEVELS)):
        for end in ("bytes_per_s", "latency_s", "mesh"):
            levels[f"level{place}_{end}"] = machine.levels[f"level{min(first, _LEVELS - 1)}_{end}"]
    return levels


def _worse(one: dict[str, Number], other: dict[str, Number]) -> dict[str, Number]:
    """Return level by level the smaller domain, the lower bandwidth and the longer latency of both."""
    return {
        name: min(value, other[name]) if name.endswith(_LEAST) else max(value, other[name])
        for name, value in one.items()
    }


def _efficiency(cluster: ClusterDescriptor) -> float:
    """Return the share of the wire's bandwidth that collectives reach between nodes, from 0 to 1."""
    return (cluster.kernels.network_efficiency or cluster.kernels.link_efficiency).value
