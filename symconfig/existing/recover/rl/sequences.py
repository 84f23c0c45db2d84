"""Sequences of a step as a script limits them: how long they are, and the micro-batches that they fill."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, hypot, sqrt
from statistics import NormalDist

from pydantic import ValidationError

from symconfig.descriptor.rl import Lengths, Rl
from symconfig.errors import InputError, Problem
from symconfig.existing.recover.rl.step import Read
from symconfig.existing.recover.run import Assumed
from symconfig.plans.degrees import Degrees
from symconfig.solve.lengths import longest_of

_RARE = 3.0  # standard deviations
_MEAN = 0.5  # of the longest, where nothing says how long sequences are in the mean


def lengths(longest: int, mean: float | None, what: str, assumed: list[Assumed]) -> Lengths:
    """Return mean and longest length in tokens of prompts or responses; the mean is at most `longest`.

    Without a mean half of the longest is taken, and recorded in `assumed`. what: "prompt" or "response".
    """
    if mean is None:
        why = f"half of the longest; --{what}-length says another mean"
        assumed.append(Assumed(f"{what}s", f"{_MEAN * longest:g} tokens in the mean", why))
    return Lengths(mean=min(float(longest), mean if mean is not None else max(1.0, _MEAN * longest)), max=longest)


def section(file: str, **fields: object) -> Rl:
    """Return the fields as a job's section of reinforcement learning. Raises InputError if they are invalid."""
    try:
        return Rl.model_validate(fields, strict=False)
    except ValidationError as error:
        sentences = [str(item.get("ctx", {}).get("error", item["msg"])) for item in error.errors(include_url=False)]
        raise InputError([Problem(f"makes no step: {text}", file=file) for text in sentences]) from None


def padded(rl: Rl, sequences: int) -> float:
    """Return the mean tokens per sequence of a micro-batch of `sequences`, each padded to the longest of them."""
    return min(float(rl.longest), rl.prompt_length.mean + longest_of(rl.response_length, sequences))


def together(rl: Rl, sequences: int) -> int:
    """Return the tokens of the largest of many micro-batches of `sequences` packed sequences.

    Mean plus three standard deviations of a normal sum, at least one longest sequence, at most all of them longest.
    """
    lengths = (rl.prompt_length, rl.response_length)
    spread = hypot(*((each.high - each.mean) / NormalDist().inv_cdf(0.95) for each in lengths))
    usual = sequences * rl.mean_tokens + _RARE * spread * sqrt(sequences)
    return max(rl.longest, min(sequences * rl.longest, ceil(usual)))


def in_a_row(degrees: Degrees) -> int:
    """Return the number that a replica's micro-batches must be a multiple of: pp with interleaved stages, else 1.

    verl 0.9.1, workers/engine/megatron/transformer_impl.py; slime 0.3.1, utils/dp_schedule.py:
    microbatch_group_size_per_vp_stage, which equals the number of stages.
    """
    return degrees.pp if degrees.vpp > 1 else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """Micro-batches of a trained model.

    Args:
        room: tokens of one, over all ranks of context parallelism.
        length: mean tokens per sequence, padding included.
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

        A sequence longer than `tokens` has a micro-batch alone, so the room is at least the longest sequence.

        Args:
            packs: whether sequences are packed without padding.
            widest_of: number of sequences to whose longest each is padded; None: those of the micro-batch.
        """
        if tokens is not None:
            return cls(room=max(tokens, rl.longest), length=rl.mean_tokens)
        if packs:
            return cls(room=together(rl, sequences), length=rl.mean_tokens, sequences=sequences)
        return cls(room=sequences * rl.longest, length=padded(rl, widest_of or sequences), sequences=sequences)

    def within(self, rl: Rl, dp: int) -> Packed:
        """Return a copy with the room limited to what a replica's share of an update needs, at least the longest
        sequence.
        """
        share = max(1, ceil(rl.batch / dp))
        return replace(self, room=min(self.room, max(rl.longest, ceil(share * self.length))))

    def spread(self, rl: Rl, dp: int, group: int = 1) -> int:
        """Return the number of micro-batches per update over all `dp` replicas.

        Each replica has a multiple of `group`.
        """
        return dp * self._passes(rl.batch / dp, group)

    def read(self, rl: Rl, dp: int, group: int = 1) -> Read:
        """Return the micro-batches in which each replica reads its share of a step's samples, without training.

        Their room is limited to what that share needs.
        """
        share = rl.sequences / dp
        packed = replace(self, room=min(self.room, max(rl.longest, ceil(share * self.length))))
        passes = packed._passes(share, group)
        return Read(room=packed.room, passes=passes, fill=share * self.length / (passes * packed.room))

    def as_trained(self, rl: Rl, dp: int, group: int = 1) -> Read:
        """Return the micro-batches of a program that reads a step's samples in those that it trains on."""
        passes = rl.updates * self._passes(rl.batch / dp, group)
        return Read(room=self.room, passes=passes, fill=rl.sequences / dp * self.length / (passes * self.room))

    def _passes(self, share: float, group: int) -> int:
        """Return the number of micro-batches for `share` sequences of a replica, rounded up to a multiple of
        `group`.
        """
        each = share * self.length / self.room if self.sequences is None else share / self.sequences
        return max(1, ceil(each / group)) * group

    def fill(self, rl: Rl, microbatches: int) -> float:
        """Return the share (0 to 1) of an update's `microbatches` that holds tokens, the rest being empty room."""
        return rl.batch * self.length / (microbatches * self.room)
