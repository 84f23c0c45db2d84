"""The constraints of every framework, by its name and release."""

from __future__ import annotations

from collections.abc import Mapping

from symconfig.frameworks.constraint import Constraint, in_force
from symconfig.frameworks.deepspeed import constraints as deepspeed
from symconfig.frameworks.deepspeed import maturity as deepspeed_maturity
from symconfig.frameworks.fsdp import constraints as fsdp
from symconfig.frameworks.maturity import Option
from symconfig.frameworks.megatron import constraints as megatron
from symconfig.frameworks.megatron import maturity as megatron_maturity
from symconfig.frameworks.programs import PROGRAMS

_OPTIONS: Mapping[str, tuple[Option, ...]] = {
    "megatron": megatron_maturity.OPTIONS,
    "deepspeed": deepspeed_maturity.OPTIONS,
    "fsdp": deepspeed_maturity.OPTIONS,
}


def options(backend: str) -> tuple[Option, ...]:
    """Return the options of a framework that have a maturity; KeyError for an unknown framework."""
    return _OPTIONS[backend]


def constraints(backend: str, release: str) -> tuple[Constraint, ...]:
    """Return the constraints that hold for a release of a framework; KeyError for an unknown framework."""
    table = {"megatron": megatron.MEGATRON, "deepspeed": deepspeed.DEEPSPEED, "fsdp": fsdp.FSDP}[backend]
    return in_force(table, release)


def of_program(target: str | None) -> tuple[Constraint, ...]:
    """Return the constraints of a target's program beside its framework's; () for None and a framework's own target."""
    return PROGRAMS.get(target or "", ())
