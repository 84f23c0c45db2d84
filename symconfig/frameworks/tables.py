"""The constraints of every framework, by its name and release."""

from __future__ import annotations

from symconfig.frameworks.constraint import Constraint, in_force
from symconfig.frameworks.deepspeed import constraints as deepspeed
from symconfig.frameworks.megatron import constraints as megatron


def constraints(backend: str, release: str) -> tuple[Constraint, ...]:
    """Return the constraints that hold for a release of a framework."""
    table = {"megatron": megatron.MEGATRON, "deepspeed": deepspeed.DEEPSPEED}[backend]
    return in_force(table, release)
