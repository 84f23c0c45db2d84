"""A configuration with what its costs depend on beside: the behaviour of its framework, packing and routing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from symconfig.cost.framework import Framework
from symconfig.descriptor.job import Backend, Packing
from symconfig.format import picked
from symconfig.frameworks.megatron.behaviour import MEGATRON
from symconfig.plans.configuration import FIELDS, Configuration
from symconfig.plans.plan import Candidate


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup(Configuration):
    """A configuration of a training run. framework: its cost model, usually a known one with `dataclasses.replace`.

    natural_routing: routers are not forced to balance. version: None: the one that symconfig writes for.
    """

    framework: Framework = MEGATRON
    natural_routing: bool = False
    packing: Packing | None = None
    backend: Backend = "megatron"
    version: str | None = None

    @classmethod
    def of(cls, candidate: Candidate, framework: Framework, **more: Any) -> Self:
        """Return a candidate's configuration with its framework's behaviour, and further fields, which win."""
        target = picked(candidate.target, "backend", "version")
        return cls(**picked(candidate.configuration, *FIELDS) | target | {"framework": framework} | more)

    @property
    def plain(self) -> Configuration:
        """Return the configuration alone."""
        return Configuration(**picked(self, *FIELDS))
