"""From the peak of what is allocated to what the GPU must have, and back."""

from __future__ import annotations

from typing import TypeVar

from symconfig.cost.framework import Framework
from symconfig.cost.lattice import Array
from symconfig.cost.machine import Machine

Bytes = TypeVar("Bytes", float, Array)


def reserved_bytes(peak_bytes: Bytes, framework: Framework) -> Bytes:
    """Return the bytes that the caching allocator reserves for a peak of allocated bytes, fragmentation included."""
    return peak_bytes * (1 + framework.fragmentation)


def device_bytes(peak_bytes: Bytes, machine: Machine, framework: Framework) -> Bytes:
    """Return the bytes in use on the device for a peak of allocated bytes: reserved memory and the CUDA context."""
    return reserved_bytes(peak_bytes, framework) + machine.context_bytes


def largest_peak_bytes(usable_bytes: float, machine: Machine, framework: Framework) -> float:
    """Return the peak of allocated bytes for which `device_bytes` equals usable_bytes: its inverse."""
    return (usable_bytes - machine.context_bytes) / (1 + framework.fragmentation)
