"""A planned step of several phases, beside the plan of the model that it trains: frozen data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from pydantic import ConfigDict

from symconfig.plans.configuration import Configuration

# Where the reference is while it is not read: on the GPU; on the host, from which it comes whole, layer by layer, or in
# the place of the actor's weights.
ReferencePlace = Literal["resident", "offloaded", "streamed", "swapped"]
READING = "log-probabilities"  # a phase
BUSIEST = "experts beyond the mean"  # what the GPU whose experts have most tokens has more than others
AWAKE, ASLEEP, LIBRARIES = "engine: weights, keys and values", "engine's process", "libraries"
REWARDING, REWARDED = "engine of rewards: weights, keys and values", "process of rewards"
_STATED = (AWAKE, ASLEEP, LIBRARIES, REWARDING, REWARDED)  # parts of a phase whose size is set, and not predicted
_CONFIG = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


def surprised(holds: Mapping[str, float], ratio: float | None) -> float:
    """Return the bytes of a phase if its predicted parts take `ratio` times what is predicted; None stands for 1.
    holds: bytes by part; parts whose size is set, such as an engine's memory, are not multiplied.
    """
    return sum(size * (1.0 if name in _STATED or ratio is None else ratio) for name, size in holds.items())


@dataclass(frozen=True, slots=True)
class PlannedPhase:
    """seconds: of a step. bytes: on the fullest GPU. holds: what of it each part takes. tokens: of a micro-batch, on
    each GPU; 0: there are none."""

    __pydantic_config__ = _CONFIG
    name: str
    seconds: float
    bytes: float
    holds: dict[str, float]
    tokens: int = 0

    @classmethod
    def of(cls, name: str, seconds: float, holds: dict[str, float], tokens: int = 0) -> PlannedPhase:
        """Return the phase whose bytes are the sum of its parts."""
        return cls(name, seconds, sum(holds.values()), holds, tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStep:
    """A step around one candidate, phase by phase. host_bytes: on the host, for each GPU. interval: likely seconds of
    the step."""

    __pydantic_config__ = _CONFIG
    host_bytes: float
    step_s: float
    interval: tuple[float, float]
    phases: tuple[PlannedPhase, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the plain data as it stands in plan.json."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedReward:
    """The network of rewards of a step. gpus: of its own; 0: those that train. tp, memory_share: of the engine that
    serves it; 0: workers run it."""

    __pydantic_config__ = _CONFIG
    gpus: int
    tp: int
    memory_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRl(PlannedStep):
    """The way in which a step of reinforcement learning is run around one candidate of the actor.

    rollout_tp: GPUs of a replica of the engine, or of each of its ranks of data, of which it has rollout_dp;
    rollout_gpus: of all replicas. memory_share: of a GPU, for the engine. sleep_level: of one beside what is trained;
    at 1 its weights are on the host meanwhile. at_once: sequences that a replica decodes together; at_longest: if all
    are as long as they may be. tokens_per_gpu: of a micro-batch, on each GPU at most. away: parts of the trained models
    that are in host memory between phases. critic: where one is trained, with the actor's batch; reward: a network that
    rewards, where one runs here.
    """

    __pydantic_config__ = _CONFIG
    rollout_tp: int
    rollout_gpus: int
    memory_share: float
    at_once: int
    tokens_per_gpu: int
    away: tuple[str, ...]
    generated_per_s_per_gpu: float
    critic: Configuration | None = None
    rollout_dp: int = 1
    sleep_level: int = 2
    at_longest: int = 0
    reward: PlannedReward | None = None

    @property
    def replica_gpus(self) -> int:
        """Return the number of GPUs of a replica of the engine."""
        return self.rollout_tp * self.rollout_dp

    @property
    def read_per_gpu(self) -> int:
        """Return the tokens per GPU of a micro-batch whose log-probabilities are computed. Those of the first phase of
        that name; `tokens_per_gpu` if there is none or it has 0.
        """
        return next((each.tokens for each in self.phases if each.name == READING), 0) or self.tokens_per_gpu

    def to_dict(self) -> dict[str, Any]:
        """Return the plain data as it stands in plan.json, the critic in the sections of a configuration."""
        return {**asdict(self), "critic": None if self.critic is None else self.critic.to_dict()}
