"""What a run did before its plan took it over, so that a plan made again, and again from that, counts exactly.

Fresh plans have none of it. Iterations are those that the plan's own files count: Megatron-LM's count on over all plans
of a run; train.py of DeepSpeed's files numbers its steps anew, so that all of them are steps of its plan's batch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil
from typing import Annotated

from pydantic import ConfigDict, Field

from symconfig.errors import InputError
from symconfig.format import count

_CONFIG = ConfigDict(extra="forbid", strict=True)
_Positive = Annotated[int, Field(gt=0)]
_Count = Annotated[int, Field(ge=0)]


@dataclass(frozen=True, slots=True)
class Segment:
    """Steps one after another with the same batch. sequences: of all of them, seq_length tokens each."""

    __pydantic_config__ = _CONFIG
    steps: _Positive
    sequences: _Count
    seq_length: _Positive

    def __str__(self) -> str:
        batch, rest = divmod(self.sequences, self.steps)
        number = f"of {count(batch)}" if not rest else f"with {count(self.sequences)}"
        return f"{count(self.steps)} steps {number} sequences"


@dataclass(frozen=True, slots=True)
class History:
    """segments: from the run's first step on, without the plan's own steps.

    unscheduled: the sequences, from the first on, that the learning rate's scheduler has not counted, since it started
    anew behind them.
    """

    __pydantic_config__ = _CONFIG
    segments: tuple[Segment, ...] = ()
    unscheduled: _Count = 0

    @property
    def step(self) -> int:
        """Return the number of iterations before the plan's first one."""
        return sum(each.steps for each in self.segments)

    @property
    def sequences(self) -> int:
        """Return how many sequences the run has seen before the plan (Megatron-LM's consumed_train_samples)."""
        return sum(each.sequences for each in self.segments)

    @property
    def tokens(self) -> int:
        return sum(each.sequences * each.seq_length for each in self.segments)

    def tokens_of(self, sequences: Fraction, seq_length: int) -> Fraction:
        """Return the tokens of the run's first `sequences` sequences, in order of the segments. seq_length: of each
        sequence after the history.
        """
        tokens, left = Fraction(0), sequences
        for each in self.segments:
            some = min(left, Fraction(each.sequences))
            tokens, left = tokens + some * each.seq_length, left - some
        return tokens + left * seq_length

    @property
    def scheduled(self) -> int:
        """Return how many sequences the learning rate's scheduler has counted; 0 at least."""
        return max(0, self.sequences - self.unscheduled)

    def until(self, step: int | None, batch: int, seq_length: int) -> History:
        """Return the history extended by a segment of the plan's steps before `step`, each of `batch` sequences. step:
        counted from the run's start; None, or the plan's first one, gives the history itself. Raises InputError if the
        step is before the plan's first one.
        """
        if step is not None and step < self.step:
            what, hint = "is before the plan took over its run", "the plan with which the run did that step"
            raise InputError(what, field="at_step", got=str(step), need=f"at least {self.step}", hint=hint)
        own = 0 if step is None else step - self.step
        return replace(self, segments=(*self.segments, Segment(own, own * batch, seq_length))) if own else self

    def seen(self, sequences: int) -> History:
        """Return the history with `sequences` sequences in all; the last segment takes the difference. If the earlier
        segments have more than that, all steps become one segment of the last length. The history itself is returned if
        it has no steps or as many sequences.
        """
        if not self.segments or sequences == self.sequences:
            return self
        *earlier, last = self.segments
        before = sum(each.sequences for each in earlier)
        if sequences < before:  # then nothing that was recorded is so
            return replace(self, segments=(Segment(self.step, sequences, last.seq_length),))
        return replace(self, segments=(*earlier, replace(last, sequences=sequences - before)))

    def renumbered(self, batch: int, seq_length: int) -> History:
        """Return a history of one segment of whole steps of `batch` sequences that has as many tokens, rounded down.
        seq_length: of each of them. The remainder of the tokens will be trained on again. No segment for less than a
        step; `unscheduled` is kept.
        """
        steps = self.tokens // (batch * seq_length)
        return replace(self, segments=(Segment(steps, steps * batch, seq_length),) if steps else ())

    def spanned(self, iterations: int, batch: int) -> int:
        """Return how many iterations of `batch` sequences cover all sequences seen by the run's end, rounded up.
        iterations: the run's last one, counted from its start.
        """
        return ceil(Fraction(self.sequences + (iterations - self.step) * batch, batch))

    def __str__(self) -> str:
        """Return the history in words: `333 steps of 64 sequences and 167 steps of 96 sequences`. `no step` if it is
        empty.
        """
        alike = len({each.seq_length for each in self.segments}) == 1
        words = (str(each) if alike else f"{each} of {count(each.seq_length)} tokens" for each in self.segments)
        return " and ".join(words) or "no step"
