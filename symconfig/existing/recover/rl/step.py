"""A step of reinforcement learning as a script says it, around the run of its actor."""

from __future__ import annotations

from dataclasses import dataclass

from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.rl import Rl
from symconfig.descriptor.tuning import Preference
from symconfig.existing.recover.rl.values import Trainer, Workers
from symconfig.plans.rl import PlannedReward, ReferencePlace


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """Micro-batches of a step's samples that are read and not learnt from. room: tokens of one, on all ranks of context
    parallelism. passes: of them on each replica. fill: the share of their room that has tokens."""

    room: int
    passes: int
    fill: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Alone:
    """An update of a model that nothing is generated for, by these workers. preference: what answers it is of;
    classifies: of a model that gives labels of sequences. reference: where a copy of it is that reads them, too. fill:
    of its micro-batches.
    """

    trainer: Trainer
    workers: Workers
    preference: Preference | None = None
    classifies: bool = False
    reference: ReferencePlace = "resident"
    fill: float = 1.0

    @property
    def scores(self) -> bool:
        """Tell whether the model gives numbers of a sequence, and no logits."""
        return self.classifies or (self.preference is not None and self.preference.means.scores)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step around the run of its actor.

    rl: in a job's terms, each number as the script says it. fill, critic_fill: of the micro-batches of each. read,
    reference_read: micro-batches whose log-probabilities are computed, of the actor and the reference. away: parts of
    the trained models that are in host memory while they are not needed; reference: where it is meanwhile.
    weight_bytes: of a weight in the engine. fused_logits: the loss is made with no logits in memory; chunked_logits:
    log-probabilities are made chunk by chunk; scaled_logits: of logits over a temperature that is not one.
    assumed_lengths: nobody says how long sequences are in the mean, and what a phase holds depends on it. apart: roles
    with GPUs of their own.
    sleeps: an engine on the same GPUs gives its memory back while others train. waits: an engine of its own does not
    generate meanwhile. reward_model: of a network that rewards, which stands as reward says.
    """

    trainer: Trainer
    workers: Workers
    rl: Rl
    fill: float
    read: Read
    reference_read: Read
    reward_model: ModelDescriptor | None = None
    reward: PlannedReward | None = None
    critic_fill: float = 1.0
    away: tuple[str, ...] = ()
    reference: ReferencePlace = "offloaded"
    weight_bytes: float = 2.0
    fused_logits: bool = False
    chunked_logits: bool = False
    scaled_logits: bool = False
    apart: frozenset[str] = frozenset()
    sleeps: bool = True
    waits: bool = False
    assumed_lengths: bool = False
