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
    """Return the lengths of prompts or responses. mean: as a person says it."""
    if mean is None:
        why = f"half of the longest; --{what}-length says another mean"
        assumed.append(Assumed(f"{what}s", f"{_MEAN * longest:g} tokens in the mean", why))
    return Lengths(mean=min(float(longest), mean if mean is not None else max(1.0, _MEAN * longest)), max=longest)


def section(file: str, **fields: object) -> Rl:
    """Return the numbers of a script as a job's section. Raises InputError where they make no step."""
    try:
        return Rl.model_validate(fields, strict=False)
    except ValidationError as error:
        sentences = [str(item.get("ctx", {}).get("error", item["msg"])) for item in error.errors(include_url=False)]
        raise InputError([Problem(f"makes no step: {text}", file=file) for text in sentences]) from None


def padded(rl: Rl, sequences: int) -> float:
    """Return the tokens of a sequence in a micro-batch of so many, in the mean: as many as its longest has."""
    return min(float(rl.longest), rl.prompt_length.mean + longest_of(rl.response_length, sequences))


def together(rl: Rl, sequences: int) -> int:
    """Return the tokens of the fullest of many micro-batches of so many sequences without padding: their mean and three
    standard deviations, as if sums were normal; a sequence may be the longest."""
    lengths = (rl.prompt_length, rl.response_length)
    spread = hypot(*((each.high - each.mean) / NormalDist().inv_cdf(0.95) for each in lengths))
    usual = sequences * rl.mean_tokens + _RARE * spread * sqrt(sequences)
    return max(rl.longest, min(sequences * rl.longest, ceil(usual)))


def in_a_row(degrees: Degrees) -> int:
    """Return of how many micro-batches a replica has a multiple: stages of several chunks take them in groups (verl
    0.9.1, workers/engine/megatron/transformer_impl.py; slime 0.3.1, utils/dp_schedule.py: of
    microbatch_group_size_per_vp_stage, which is the number of stages)."""
    return degrees.pp if degrees.vpp > 1 else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """Micro-batches of a trained model.

    room: tokens of one, on all ranks of context parallelism. length: of a sequence in the mean, padding included.
    sequences: in each; None: as many as there is room for.
    """

    room: int
    length: float
    sequences: int | None = None

    @classmethod
    def of(
        cls, rl: Rl, sequences: int, *, tokens: int | None = None, packs: bool = True, widest_of: int | None = None
    ) -> Packed:
        """Return micro-batches of so many tokens, of which a longer sequence has one by itself; where no number of them
        is stated, of so many sequences. packs: these have no padding. widest_of: sequences to the longest of which
        they are padded; None: those of the micro-batch."""
        if tokens is not None:
            return cls(room=max(tokens, rl.longest), length=rl.mean_tokens)
        if packs:
            return cls(room=together(rl, sequences), length=rl.mean_tokens, sequences=sequences)
        return cls(room=sequences * rl.longest, length=padded(rl, widest_of or sequences), sequences=sequences)

    def within(self, rl: Rl, dp: int) -> Packed:
        """Return the same with no more room than a replica's share of an update needs."""
        share = max(1, ceil(rl.batch / dp))
        return replace(self, room=min(self.room, max(rl.longest, ceil(share * self.length))))

    def spread(self, rl: Rl, dp: int, group: int = 1) -> int:
        """Return how many micro-batches an update has on all replicas. group: as of `in_a_row`."""
        return dp * self._passes(rl.batch / dp, group)

    def read(self, rl: Rl, dp: int, group: int = 1) -> Read:
        """Return the micro-batches in which each replica reads its share of a step's samples, which may be fewer than
        one has room for."""
        share = rl.sequences / dp
        packed = replace(self, room=min(self.room, max(rl.longest, ceil(share * self.length))))
        passes = packed._passes(share, group)
        return Read(room=packed.room, passes=passes, fill=share * self.length / (passes * packed.room))

    def as_trained(self, rl: Rl, dp: int, group: int = 1) -> Read:
        """Return the micro-batches of a program that reads samples in those of its updates."""
        passes = rl.updates * self._passes(rl.batch / dp, group)
        return Read(room=self.room, passes=passes, fill=rl.sequences / dp * self.length / (passes * self.room))

    def _passes(self, share: float, group: int) -> int:
        """Count the micro-batches of so many sequences."""
        each = share * self.length / self.room if self.sequences is None else share / self.sequences
        return max(1, ceil(each / group)) * group

    def fill(self, rl: Rl, microbatches: int) -> float:
        """Return the share of the room of an update's micro-batches that has tokens."""
        return rl.batch * self.length / (microbatches * self.room)
