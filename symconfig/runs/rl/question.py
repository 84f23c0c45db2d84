"""What is asked of a step of reinforcement learning, and what its answers share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.job import Job
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.rl import Rl
from symconfig.plans.plan import Plan
from symconfig.plans.rl import surprised
from symconfig.render.learning import Learns, Rewarding
from symconfig.runs.rl.engine import Generation, Replica, generate
from symconfig.runs.rl.phases import GAPS, Layout, Phase
from symconfig.solve.budget import surprise

ANY = Learns(algorithms=(), engines=())  # whose trainer is not known
Solve = Callable[[ModelDescriptor, Job, int], Plan]


@dataclass(frozen=True)
class Question:
    """The inputs of the search for an RL step.

    solve: returns the best plans of a model's job, up to a number. critic, reward: models to train and to run; None:
    none. learns: what the target supports.
    """

    model: ModelDescriptor
    cluster: ClusterDescriptor
    job: Job
    rl: Rl
    critic: ModelDescriptor | None
    solve: Solve
    reward: ModelDescriptor | None = None
    learns: Learns = ANY

    @property
    def usable_bytes(self) -> float:
        return self.job.limits.usable_bytes(self.cluster.gpu.memory_bytes.value)

    @cached_property
    def _ratio(self) -> float | None:
        return surprise(self.model, self.cluster, self.job.limits.memory_risk)

    def is_sure(self, layout: Layout) -> bool:
        """Return whether a layout meets the job's risk of running out of memory."""
        return layout.is_sure(self._ratio, self.cluster.gpu.memory_bytes.value)

    def has_room(self, phases: Iterable[Phase]) -> bool:
        """Return whether all phases fit into the usable bytes and meet the job's risk of running out of memory."""
        memory = self.cluster.gpu.memory_bytes.value
        return all(
            phase.bytes <= self.usable_bytes and surprised(phase.holds, self._ratio) <= memory for phase in phases
        )

    def room_bytes(self, layout: Layout) -> float:
        """Return the bytes of a GPU that a layout leaves to its engine, after allocator overhead, gaps, margin and
        memory risk; may be negative.
        """
        holds, memory = layout.beside_engine, self.cluster.gpu.memory_bytes.value
        resting = surprised(holds, layout.actor.reserved(1.0)) + GAPS * surprised(holds, 0.0)
        return min(self.usable_bytes - resting, memory - surprised(holds, self._ratio))

    def rank(self, layout: Layout) -> tuple[bool, float]:
        """Return the sort key of a layout: (exceeds the memory risk, step in seconds)."""
        return not self.is_sure(layout), layout.step_s

    @cached_property
    def _made(self) -> dict[tuple[int, int, float, int], Generation | None]:
        return {}

    def generation(self, replica: Replica, replicas: int) -> Generation | None:
        """Return a step's generation on these replicas, cached; None if the engine has no room."""
        key = (replica.engine.tp, replica.engine.dp, replica.share, replicas)
        if key not in self._made:
            self._made[key] = generate(replica, self.rl, replicas)
        return self._made[key]

    @property
    def way_of_rewards(self) -> Rewarding | None:
        """Return how the target runs the reward model; None if none runs on the job's GPUs."""
        named = self.rl.reward_model
        return None if named is None or self.reward is None else self.learns.rewards[named.placement]
