"""The degrees of parallelism: into how many parts each mesh axis splits the work."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import ConfigDict


@dataclass(frozen=True, kw_only=True, slots=True)
class Degrees:
    """tp * cp * dp * pp = GPUs; ep * etp divides tp * cp * dp.

    tp: tensor (DeepSpeed's AutoTP), pp: pipeline, vpp: chunks of each stage, cp: context (DeepSpeed's Ulysses), ep:
    expert, etp: tensor parallelism inside an expert, dp: data parallelism.
    """

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)
    tp: int
    pp: int
    vpp: int
    cp: int
    ep: int
    etp: int
    dp: int

    @property
    def world_size(self) -> int:
        """Return the number of GPUs: tp * pp * cp * dp."""
        return self.tp * self.pp * self.cp * self.dp

    @property
    def edp(self) -> int:
        """Return the number of replicas of each expert within a pipeline stage."""
        return self.tp * self.cp * self.dp // (self.ep * self.etp)
