"""A step of reinforcement learning as a script says it, around the runs of its actor and its critic."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, hypot, sqrt
from statistics import NormalDist
from typing import TYPE_CHECKING, Literal

from pydantic import ValidationError

from symconfig.descriptor.rl import Lengths, Rl
from symconfig.errors import InputError, Problem
from symconfig.existing.recover.rl.values import Trainer
from symconfig.existing.recover.run import Assumed

if TYPE_CHECKING:
    from symconfig.existing.recover.run import Run

Workers = Literal["megatron", "fsdp"]
_RARE = 3.0  # standard deviations
_MEAN = 0.5  # of the longest, where nothing says how long sequences are in the mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """Micro-batches of a trained model.

    room: tokens of one, on all ranks of context parallelism. length: of a sequence in the mean, padding included.
    """

    room: int
    length: float

    def within(self, rl: Rl, dp: int) -> Packed:
        """Return the same with no more room than a replica's share of an update needs."""
        share = max(1, ceil(rl.batch / dp))
        return replace(self, room=min(self.room, max(rl.longest, ceil(share * self.length))))

    def spread(self, rl: Rl, dp: int) -> int:
        """Return how many micro-batches an update has on all replicas."""
        return dp * max(1, ceil(rl.batch * self.length / (dp * self.room)))

    def fill(self, rl: Rl, microbatches: int) -> float:
        """Return the share of the room of an update's micro-batches that has tokens."""
        return rl.batch * self.length / (microbatches * self.room)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """rl: in a job's terms, each number as the script says it. fill: of the actor's micro-batches. read, reference_read:
    tokens of a micro-batch whose log-probabilities are computed, of the actor and the reference, over those of one that
    is trained on. away: parts of the trained models that are in host memory while they are not needed.
    weight_bytes: of a weight in the engine. reference_away: the reference is away, too. fused_logits: the loss is made with no logits in memory. assumed_lengths: nobody
    says how long sequences are in the mean, and the memory of a phase depends on it. critic: its run, where one is trained, and the fill of its micro-batches.
    """

    trainer: Trainer
    workers: Workers
    rl: Rl
    fill: float
    read: float = 1.0
    reference_read: float = 1.0
    away: tuple[str, ...] = ()
    reference_away: bool = True
    weight_bytes: float = 2.0
    fused_logits: bool = False
    assumed_lengths: bool = False
    critic: tuple[Run, float] | None = None


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
        said = [str(item.get("ctx", {}).get("error", item["msg"])) for item in error.errors(include_url=False)]
        raise InputError([Problem(f"makes no step: {text}", file=file) for text in said]) from None


def together(rl: Rl, sequences: int) -> int:
    """Return the tokens of the fullest of many micro-batches of so many sequences without padding: their mean and three
    standard deviations, as if sums were normal; a sequence may be the longest."""
    lengths = (rl.prompt_length, rl.response_length)
    spread = hypot(*((each.high - each.mean) / NormalDist().inv_cdf(0.95) for each in lengths))
    usual = sequences * rl.mean_tokens + _RARE * spread * sqrt(sequences)
    return max(rl.longest, min(sequences * rl.longest, ceil(usual)))
