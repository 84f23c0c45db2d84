"""A launch script of a trainer of reinforcement learning, as its reader goes through it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.errors import Problem
from symconfig.existing.launch.reading import Reading
from symconfig.existing.recover.rl.values import Trainer, Values
from symconfig.existing.recover.run import Assumed
from symconfig.existing.recover.supplied import Supplied

MANY = 4  # micro-batches of an update on each replica, at least, that are full whatever lengths are


@dataclass(slots=True)
class Script:
    """One script on so many GPUs; what is wrong and what is assumed is gathered. cluster: where a run is asked for."""

    TRAINER: ClassVar[Trainer]

    reading: Reading
    supplied: Supplied
    gpus: int = 0
    cluster: ClusterDescriptor | None = None
    values: Values = field(init=False)
    problems: list[Problem] = field(default_factory=list)
    assumed: list[Assumed] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.values = Values(self.TRAINER, self.reading.options)

    @property
    def known_cluster(self) -> ClusterDescriptor:
        """Return the cluster of a run."""
        assert self.cluster is not None, "is there where a run is asked for"
        return self.cluster
