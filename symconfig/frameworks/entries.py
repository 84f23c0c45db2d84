"""What a training script imports of symconfig, and the libraries whose releases its plan is held against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from symconfig.frameworks.backend import Backend
from symconfig.frameworks.known import BACKENDS
from symconfig.plans.plan import Plan

Name = Literal["megatron", "deepspeed", "transformers"]


@dataclass(frozen=True, slots=True)
class Entry:
    """A module such as `symconfig.transformers`. backend: the framework that its values are for; beside: libraries
    through which the script runs it, whose releases the written files bound."""

    backend: Backend
    beside: tuple[str, ...] = ()


ENTRIES: Mapping[str, Entry] = {
    **{name: Entry(backend) for name, backend in BACKENDS.items()},
    "transformers": Entry(BACKENDS["deepspeed"], ("transformers",)),
}


def entry_of(target: str, plan: Plan) -> Name:
    """Whose release is looked at: a target that is no entry's name starts the framework that the plan is for."""
    return target if target in ENTRIES else plan.best.target.backend  # type: ignore[return-value]
