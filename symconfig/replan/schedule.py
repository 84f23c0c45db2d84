"""A run's length and learning rate, kept as functions of tokens when a step has another number of them.

Megatron-LM counts iterations from the checkpoint on, but its scheduler counts sequences (training.py,
get_optimizer_param_scheduler: lr_decay_steps = lr_decay_iters x global_batch_size; checkpointing.py keeps
consumed_train_samples; core_v0.12 to core_v0.19). train.py of DeepSpeed's files counts steps, which it numbers anew by
the sequences that a checkpoint has seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil, sqrt
from typing import Literal

from symconfig.descriptor.job import Backend, Training
from symconfig.errors import InputError, Problem
from symconfig.format import count
from symconfig.plan import Batch
from symconfig.replan.rate import rate

Mode = Literal["keep", "as-is"]
_INTERVALS = ("save_interval", "eval_interval", "eval_iters")
# Megatron-LM asserts that a checkpoint's schedule is that of the arguments, unless told which one counts
# (megatron/core/optimizer_param_scheduler.py, _check_and_set).
OVERRIDE = "--override-opt_param-scheduler"


@dataclass(frozen=True, slots=True)
class Rescaled:
    """A field of `training`: iterations before and after, and exactly, where that is no whole number."""

    field: str
    before: int
    after: int
    exact: Fraction

    @property
    def rounded(self) -> float:
        """By how many iterations more than exactly."""
        return float(self.after - self.exact)


@dataclass(frozen=True, slots=True)
class Schedule:
    """training: what the new plan passes on. consumed: sequences that the run has seen at `step` (0: from its start).

    options: what the command of the new run must have beside its own. notes: sentences. lost: the step that the old run
    had come to, where the new one starts from its first.
    """

    training: Training
    rescaled: tuple[Rescaled, ...] = ()
    step: int = 0
    consumed: int = 0
    options: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    lost: int = 0


def scheduled(
    training: Training, old: Batch, batch: int, seq_length: int, backend: Backend, step: int = 0,
    consumed: int | None = None, mode: Mode = "keep", anew: bool = False,
) -> Schedule:  # fmt: skip
    """The schedule of a run of `old` that goes on at `step` with steps of `batch` sequences of `seq_length` tokens.

    consumed: sequences that it has seen; None: `step` batches of `old`. anew: Megatron-LM goes on at the step with a
    scheduler that starts from 0 (--no-load-optim without --finetune: checkpointing.py, load_checkpoint, takes
    iteration and consumed_train_samples, and the scheduler's state only with the optimizer's). Raises InputError for a
    step behind the run's end.
    """
    if step > training.train_iters:
        raise InputError(Problem("is behind the end of the run", field="at_step", got=str(step),
                                 need=f"at most {training.train_iters}, its training.train_iters"))
    new = replace(old, global_=batch, seq_length=seq_length)
    guessed = (_guessed(step, old),) if consumed is None and step else ()
    consumed = step * old.global_ if consumed is None else consumed
    anew = anew and step > 0
    if new == old and (not anew or mode == "as-is"):
        return Schedule(training, step=step, consumed=consumed)
    if mode == "as-is":
        return Schedule(training, step=step, consumed=consumed, notes=(_as_is(training, old, new),))
    clock = _Clock(old, new, step, consumed, anew) if backend == "megatron" else _Clock(old, new, 0, 0)
    rescaled = tuple(_rescaled(training, clock))
    changed = training.model_copy(update={one.field: one.after for one in rescaled})
    kept = _Kept(old, new, step, consumed, training, changed, backend, anew)
    return Schedule(changed, rescaled, step, consumed, tuple(kept.options()), (*kept.notes(), *guessed))


@dataclass(frozen=True, slots=True)
class _Clock:
    """Iterations of the old run in those of the new one, which goes on counting from `step` and `consumed`."""

    old: Batch
    new: Batch
    step: int
    consumed: int
    anew: bool = False  # whether the scheduler starts from 0 at the step

    @property
    def ratio(self) -> Fraction:
        """Tokens of an old iteration over those of a new one."""
        return Fraction(self.old.global_ * self.old.seq_length, self.new.global_ * self.new.seq_length)

    def run(self, iteration: int) -> Fraction:
        """Iterations go on from the checkpoint's."""
        return min(iteration, self.step) + max(0, iteration - self.step) * self.ratio

    def schedule(self, iteration: int) -> Fraction:
        """The scheduler counts sequences: those that were seen as they were, the others by their tokens."""
        sequences = iteration * self.old.global_
        if self.anew:
            return max(0, sequences - self.consumed) * self.ratio / self.old.global_
        later = max(0, sequences - self.consumed) * Fraction(self.old.seq_length, self.new.seq_length)
        return (min(sequences, self.consumed) + later) / self.new.global_


def _rescaled(training: Training, clock: _Clock) -> Iterator[Rescaled]:
    """Every number of iterations that is another one."""
    decay = training.lr_decay_iters or (training.train_iters if clock.step else None)
    last = clock.run(training.train_iters) if decay is None else max(Fraction(1), clock.schedule(decay))
    exact = {"train_iters": (training.train_iters, clock.run(training.train_iters))}
    if decay is not None:
        exact["lr_decay_iters"] = (decay, last)
    warmup = training.lr_warmup_iters
    exact["lr_warmup_iters"] = (warmup, warmup * clock.ratio if clock.anew else clock.schedule(warmup))
    exact |= {name: (before := getattr(training, name), before * clock.ratio) for name in _INTERVALS}
    for field, (before, value) in exact.items():
        after = ceil(value)
        if field == "lr_warmup_iters":  # shorter than the decay, or Megatron-LM stops at the start
            after = min(after, max(0, ceil(last) - 1))
        if after != getattr(training, field):
            yield Rescaled(field, before, after, value)


def _guessed(step: int, old: Batch) -> str:
    return (f"{count(step * old.global_)} sequences are {count(step)} steps of {count(old.global_)}: if some of these "
            "steps had another batch, before an earlier change, only the checkpoint knows (--checkpoint DIR)")


def _as_is(training: Training, old: Batch, new: Batch) -> str:
    tokens, now = (training.train_iters * batch.global_ * batch.seq_length for batch in (old, new))
    return (f"iterations stay as they are: {count(training.train_iters)} of them saw {count(tokens)} tokens and see "
            f"{count(now)} now")


@dataclass(frozen=True, slots=True)
class _Kept:
    """A schedule that was kept in tokens."""

    old: Batch
    new: Batch
    step: int
    consumed: int
    before: Training
    after: Training
    backend: Backend
    anew: bool

    def options(self) -> Iterator[str]:
        """What the new run's command needs to go on."""
        if not self.step or self.anew:
            return
        if self.backend == "megatron":
            yield OVERRIDE
        elif self.old.seq_length != self.new.seq_length:
            yield f"--consumed-sequences={self._seen // self.new.seq_length}"

    @property
    def _seen(self) -> int:
        """Tokens at the step."""
        return self.consumed * self.old.seq_length

    def notes(self) -> Iterator[str]:
        """What else a person must know."""
        if self.old != self.new:
            yield from self._tokens()
            yield self._learning_rate()
        if self.step:
            yield from self._megatron() if self.backend == "megatron" else self._deepspeed()

    def _tokens(self) -> Iterator[str]:
        old, new = (batch.global_ * batch.seq_length for batch in (self.old, self.new))
        before, after = self.before.train_iters * old, self.after.train_iters * new
        if self.backend == "megatron":
            before, after = before - self.step * old, after - self.step * new
        else:
            before, after = before - self._seen, after - self._seen
        more = f", {count(after - before)} more, since steps are whole" if after > before else ""
        of = "what is left of the run" if self.step else "the run"
        yield f"tokens of a step {count(old)} -> {count(new)}; of {of} {count(before)} -> {count(after)}{more}"

    def _learning_rate(self) -> str:
        ratio = self.new.global_ / self.old.global_
        if ratio == 1:
            return f"the learning rate stays {self.after.lr:g}"
        return (f"the learning rate stays {self.after.lr:g}: a batch {ratio:.4g} times as large would have "
                f"{self.after.lr * sqrt(ratio):.3g} by the square-root rule and {self.after.lr * ratio:.3g} by the "
                "linear one")

    def _megatron(self) -> Iterator[str]:
        if self.anew:
            after = self.after.lr_decay_iters or self.after.train_iters
            yield (f"iterations count on from {count(self.step)}, and data go on behind the {count(self.consumed)} "
                   f"sequences that the checkpoint has seen; the learning rate's schedule starts anew: it warms up "
                   f"over {count(self.after.lr_warmup_iters)} iterations and ends where the old one does, "
                   f"{count(after)} iterations on")
        elif self.old.seq_length == self.new.seq_length:
            yield (f"iterations count on from {count(self.step)}; data and schedule go on behind the "
                   f"{count(self.consumed)} sequences that the checkpoint has seen "
                   f"(consumed_train_samples); without {OVERRIDE} Megatron-LM stops, since iterations x batch are not "
                   "the checkpoint's")
        if self.old.seq_length == self.new.seq_length:
            return
        skipped = self.consumed * self.new.seq_length
        yield (f"Megatron-LM counts sequences, whatever their length: it goes on behind the first "
               f"{count(self.consumed)} sequences of the new length, which are {count(skipped)} tokens of the data and "
               f"not the {count(self._seen)} that were seen")
        was = rate(self.before, self.consumed, self.old.global_)
        now = rate(self.after, self.consumed, self.new.global_)
        if not self.anew and abs(now - was) > 1e-3 * was:
            yield (f"and the schedule goes on in sequences: at the step the learning rate turns from {was:.4g} to "
                   f"{now:.4g}; it ends after the same tokens")

    def _deepspeed(self) -> Iterator[str]:
        start = Fraction(self._seen, self.new.global_ * self.new.seq_length)
        yield (f"steps are numbered anew: after {count(self.consumed)} sequences train.py goes on at step "
               f"{count(int(start))}")
        if start.denominator != 1:
            again = int((start - int(start)) * self.new.global_)
            yield f"the last {count(again)} of the sequences that were seen come once more, since steps are whole"
