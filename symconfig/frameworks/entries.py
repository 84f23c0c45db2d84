"""What a training script imports of symconfig, and the libraries whose releases its plan is held against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from symconfig.descriptor.job import Backend as BackendName
from symconfig.frameworks.backend import Backend
from symconfig.frameworks.known import BACKENDS
from symconfig.plans.plan import Plan

Name = BackendName | Literal["transformers"]


@dataclass(frozen=True, slots=True)
class Entry:
    """A module such as `symconfig.transformers`. backend: the framework that its values are for; libraries: those
    through which the script runs it, whose releases the written files bound."""

    backend: Backend
    libraries: tuple[str, ...] = ()


ENTRIES: Mapping[Name, Entry] = {
    **{backend.name: Entry(backend) for backend in BACKENDS.values()},
    "transformers": Entry(BACKENDS["deepspeed"], ("transformers",)),
}


def entry_of(target: str, plan: Plan) -> Name:
    """Return the name of the entry whose installed release is checked.

    It is the target itself if it is an entry, else the framework that the plan is for.
    """
    return next((name for name in ENTRIES if name == target), plan.best.target.backend)
