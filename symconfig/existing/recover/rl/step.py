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
    """Micro-batches in which a step's samples are read for log-probabilities, without training.

    Args:
        room: tokens of one, over all ranks of context parallelism.
        passes: number of them on each replica.
        fill: share of their room that holds tokens, 0 to 1.
    """

    room: int
    passes: int
    fill: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Alone:
    """An update of a trainer that generates nothing: SFT, preferences, or a classifier.

    Args:
        preference: loss and pairs, if it trains on preferences.
        classifies: whether the model classifies sequences.
        reference: where the frozen copy is that also reads the pairs.
    """

    trainer: Trainer
    workers: Workers
    preference: Preference | None = None
    classifies: bool = False
    reference: ReferencePlace = "resident"

    @property
    def scores(self) -> bool:
        """Return whether the model's head gives scores per sequence instead of logits over the vocabulary."""
        return self.classifies or (self.preference is not None and self.preference.means.scores)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step of reinforcement learning around the run of its actor.

    Args:
        rl: the step as a job's section.
        fill, critic_fill: share of their micro-batches' room that holds tokens, 0 to 1.
        read, reference_read: micro-batches of the actor's and the reference's log-probabilities.
        reward_model, reward: the reward model, and its placement; None without one.
        away: parts of trained models that are offloaded to the host while not needed.
        reference: where the reference is while it is not needed.
        weight_bytes: bytes per weight in the inference engine.
        fused_logits: whether the loss is computed without logits in memory.
        chunked_logits: whether log-probabilities are computed chunk by chunk.
        scaled_logits: whether logits are divided by a temperature other than 1.
        apart: roles with GPUs of their own.
        sleeps: whether a colocated engine frees its memory while the others train.
        waits: whether a separate engine is idle during training.
        assumed_lengths: whether the memory of a phase depends on mean lengths that were assumed.
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
