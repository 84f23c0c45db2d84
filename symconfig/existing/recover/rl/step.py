"""A step of reinforcement learning around the run of its actor: its phases, the lengths of its sequences, and the
micro-batches that they fill.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, hypot, sqrt
from statistics import NormalDist

from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.tuning import Preference, Rl
from symconfig.existing.recover.rl.values import Workers
from symconfig.formats.keys import Trainer
from symconfig.plans.configuration import Configuration
from symconfig.plans.rl import PlannedReward, ReferencePlace
from symconfig.solve.lengths import longest_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """Micro-batches in which a step's samples are read for log-probabilities, without training.

    room: tokens of one, over all ranks. passes: number on each replica. fill: share of the room that holds tokens.
    """

    room: int
    passes: int
    fill: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Alone:
    """An update of a trainer that generates nothing: SFT, preferences, or a classifier.

    preference: loss and pairs, if any. reference: where the frozen copy is that also reads the pairs.
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


_RARE = 3.0  # standard deviations


def padded(rl: Rl, sequences: int) -> float:
    """Return the mean tokens per sequence of a micro-batch of `sequences`, each padded to the longest of them."""
    return min(float(rl.longest), rl.prompt_length.mean + longest_of(rl.response_length, sequences))


def together(rl: Rl, sequences: int) -> int:
    """Return the tokens of the largest of many micro-batches of `sequences` packed ones: mean + 3 deviations."""
    lengths = (rl.prompt_length, rl.response_length)
    spread = hypot(*((each.high - each.mean) / NormalDist().inv_cdf(0.95) for each in lengths))
    usual = sequences * rl.mean_tokens + _RARE * spread * sqrt(sequences)
    return max(rl.longest, min(sequences * rl.longest, ceil(usual)))


def in_a_row(degrees: Configuration) -> int:
    """Return what a replica's micro-batches are a multiple of (verl, slime): pp with interleaved stages, else 1."""
    return degrees.pp if degrees.vpp > 1 else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """Micro-batches of a trained model.

    room: tokens of one, over all ranks of context parallelism. length: mean tokens per sequence, padding included.
    sequences: in each micro-batch; None: as many as fit.
    """

    room: int
    length: float
    sequences: int | None = None

    @classmethod
    def of(
        cls, rl: Rl, sequences: int, *, tokens: int | None = None, packs: bool = True, widest_of: int | None = None
    ) -> Packed:
        """Return micro-batches of at most `tokens` tokens, else of `sequences` sequences if `tokens` is None.

        packs: without padding. widest_of: number of sequences to whose longest each is padded; None: the micro-batch's.
        """
        if tokens is not None:
            return cls(room=max(tokens, rl.longest), length=rl.mean_tokens)
        if packs:
            return cls(room=together(rl, sequences), length=rl.mean_tokens, sequences=sequences)
        return cls(room=sequences * rl.longest, length=padded(rl, widest_of or sequences), sequences=sequences)

    def within(self, rl: Rl, dp: int) -> Packed:
        """Return a copy whose room is at most what a replica's update needs, but at least the longest sequence."""
        share = max(1, ceil(rl.batch / dp))
        return replace(self, room=min(self.room, max(rl.longest, ceil(share * self.length))))

    def spread(self, rl: Rl, dp: int, group: int = 1) -> int:
        """Return the micro-batches per update over all `dp` replicas, each of which has a multiple of `group`."""
        return dp * self._passes(rl.batch / dp, group)

    def read(self, rl: Rl, dp: int, group: int = 1) -> Read:
        """Return the micro-batches in which each replica reads its share of a step's samples, without training."""
        share = rl.sequences / dp
        packed = replace(self, room=min(self.room, max(rl.longest, ceil(share * self.length))))
        passes = packed._passes(share, group)
        return Read(room=packed.room, passes=passes, fill=share * self.length / (passes * packed.room))

    def as_trained(self, rl: Rl, dp: int, group: int = 1) -> Read:
        """Return what a replica reads per step if the program reads samples in the micro-batches of training."""
        passes = rl.updates * self._passes(rl.batch / dp, group)
        return Read(room=self.room, passes=passes, fill=rl.sequences / dp * self.length / (passes * self.room))

    def _passes(self, share: float, group: int) -> int:
        """Return the micro-batches for a replica's `share` sequences, rounded up to a multiple of `group`."""
        each = share * self.length / self.room if self.sequences is None else share / self.sequences
        return max(1, ceil(each / group)) * group

    def fill(self, rl: Rl, microbatches: int) -> float:
        """Return the share (0 to 1) of an update's `microbatches` that holds tokens, the rest being empty room."""
        return rl.batch * self.length / (microbatches * self.room)
