"""How much of a GPU's memory a plan may be predicted to take, and the probability that it is enough."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean

from symconfig.cost.framework import device_bytes, largest_peak_bytes
from symconfig.cost.machine import Machine
from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.model import ModelDescriptor
from symconfig.solve.interval import chance, quantile
from symconfig.solve.space import Request

MEMORY_RISK = "memory_risk"  # a job's limit, and the name of a plan's note that no plan meets it
NO_LIMIT = 1.0  # memory risk that means no limit


def peak_budget(request: Request, machine: Machine) -> float:
    """Return the largest predicted peak, in allocated bytes, that keeps the job's memory margin and memory risk.

    The lesser of what both leave; without a `request.surprise` the margin's.
    """
    framework, whole = request.framework, machine.memory_bytes
    margin = largest_peak_bytes(request.job.limits.usable_bytes(whole), machine, framework)
    return min(margin, largest_peak_bytes(whole, machine, framework) / request.surprise) if request.surprise else margin


def device_budget(request: Request, machine: Machine) -> float:
    """Return `peak_budget` as bytes in use on the device, allocator and context included."""
    return device_bytes(peak_budget(request, machine), machine, request.framework)


def fitting(request: Request, machine: Machine, peak_bytes: Iterable[float], cluster: ClusterDescriptor) -> float:
    """Return the probability that a plan does not run out of GPU memory: the mean over its predicted peaks in bytes."""
    room = largest_peak_bytes(machine.memory_bytes, machine, request.framework)
    return fmean(chance("memory", cluster, request.model, room / peak) for peak in peak_bytes)


def surprise(model: ModelDescriptor, cluster: ClusterDescriptor, risk: float) -> float | None:
    """Return the ratio of measured to predicted peak exceeded with probability `risk`; None if risk is 1 or more."""
    return None if risk >= NO_LIMIT else quantile("memory", cluster, model, 1.0 - risk)
