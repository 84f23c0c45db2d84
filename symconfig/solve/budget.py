"""How much of a GPU's memory a plan may be predicted to take, and the probability that it is enough."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean

from symconfig.cost.device import device_bytes, largest_peak_bytes
from symconfig.cost.machine import Machine
from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.model import ModelDescriptor
from symconfig.solve.interval import chance, quantile
from symconfig.solve.space import Request

MEMORY_RISK = "memory_risk"  # the limit of a job, and what a plan says where nothing meets it
NO_LIMIT = 1.0  # of the risk


def peak_budget(request: Request, machine: Machine) -> float:
    """Return the largest predicted peak that leaves the margin free and meets the job's risk of running out."""
    framework, whole = request.framework, machine.memory_bytes
    margin = largest_peak_bytes(request.job.limits.usable_bytes(whole), machine, framework)
    return min(margin, largest_peak_bytes(whole, machine, framework) / request.surprise) if request.surprise else margin


def device_budget(request: Request, machine: Machine) -> float:
    """Return the same as bytes in use on the device."""
    return device_bytes(peak_budget(request, machine), machine, request.framework)


def fitting(request: Request, machine: Machine, peak_bytes: Iterable[float], cluster: ClusterDescriptor) -> float:
    """Return the probability that a plan with these predicted peaks, all as probable, does not run out of a GPU's
    memory."""
    room = largest_peak_bytes(machine.memory_bytes, machine, request.framework)
    return fmean(chance("memory", cluster, request.model, room / peak) for peak in peak_bytes)


def surprise(model: ModelDescriptor, cluster: ClusterDescriptor, risk: float) -> float | None:
    """Return the ratio of a measured to its predicted peak that is exceeded with this probability; None: with any."""
    return None if risk >= NO_LIMIT else quantile("memory", cluster, model, 1.0 - risk)
