"""A run's length and learning rate, kept as functions of tokens when a step has another number of them.

How a program counts on is the target's `Counting` (frameworks.counting).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import ceil, cos, pi, sqrt
from typing import Literal

from symconfig.descriptor.training import WholeTraining
from symconfig.errors import InputError
from symconfig.format import count
from symconfig.frameworks.counting import Counting
from symconfig.plans.history import History
from symconfig.plans.plan import Batch

Mode = Literal["keep", "as-is"]
_NONE = History()
_INTERVALS = ("save_interval", "eval_interval", "eval_iters")


@dataclass(frozen=True, slots=True)
class Rescaled:
    """A field of `training` counted in iterations, before and after rescaling."""

    field: str
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """The training schedule of a new plan.

    training: as passed on. rescaled: changed fields. run: what was done before the new run resumes; history: the same
    as the new plan counts it. options: to be added to the new run's command. notes: sentences. lost: the old run's step
    if the new one restarts at 0.
    """

    training: WholeTraining
    rescaled: tuple[Rescaled, ...] = ()
    run: History = field(default_factory=History)
    history: History = field(default_factory=History)
    options: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    lost: int = 0

    @property
    def step(self) -> int:
        """Return the iterations done; 0: the run starts."""
        return self.run.step

    @property
    def consumed(self) -> int:
        """Return the sequences seen so far."""
        return self.run.sequences


def scheduled(
    training: WholeTraining, old: Batch, batch: int, seq_length: int, counting: Counting, run: History = _NONE,
    mode: Mode = "keep", anew: bool = False, past: History = _NONE,
) -> Schedule:  # fmt: skip
    """Return the schedule of a run of batches `old` that resumes after `run` with `batch` sequences of `seq_length`
    tokens.

    Iterations are rescaled to the same tokens unless `mode` is "as-is" or nothing changes. anew: whether the scheduler
    restarts at 0 (Megatron-LM with --no-load-optim without --finetune loads iteration and samples, not the scheduler).
    past: the old plan's history if `run` is empty although it had one. Raises InputError for a step after the run's
    end.
    """
    if run.step > training.train_iters:
        raise InputError(
            "is behind the end of the run",
            field="at_step",
            got=str(run.step),
            need=f"at most {training.train_iters}, its training.train_iters",
        )
    new = replace(old, global_=batch, seq_length=seq_length)
    anew = anew and run.step > 0
    if mode == "as-is" or (new == old and not anew):
        notes = (_as_is(training, old, new, run, counting),) if new != old else ()
        return Schedule(training, run=run, history=_recorded(run, new, counting, anew), notes=notes)
    clock = _Clock(old, new, _NONE if counting.renumbers else run, past, anew, counting.schedules_steps)
    every = tuple(_converted(training, clock))
    rescaled = tuple(each for each in every if each.after != getattr(training, each.field))
    changed = training.model_copy(update={each.field: each.after for each in rescaled})
    kept = _Kept(old=old, new=new, run=run, past=past, before=training, after=changed, counting=counting, anew=anew)
    return Schedule(
        changed,
        rescaled,
        run,
        _recorded(run, new, counting, anew),
        tuple(kept.options()),
        tuple(kept.notes()),
    )


def _recorded(run: History, new: Batch, counting: Counting, anew: bool) -> History:
    """Return the run's history as the new plan counts it."""
    if counting.renumbers:
        return run.renumbered(new.global_, new.seq_length)
    return replace(run, unscheduled=run.sequences) if anew else run


@dataclass(frozen=True, slots=True)
class _Clock:
    """Converts iterations of the old run, counted from `past`, to those of the new one, counted from `done`."""

    old: Batch
    new: Batch
    done: History
    past: History
    anew: bool = False  # whether the scheduler starts from 0 there
    steps: bool = False  # whether the scheduler counts iterations, too

    @property
    def ratio(self) -> Fraction:
        """Return the tokens of an old iteration over those of a new one."""
        return Fraction(self.old.global_ * self.old.seq_length, self._new_tokens)

    @property
    def _new_tokens(self) -> int:
        return self.new.global_ * self.new.seq_length

    def run(self, iteration: Fraction) -> Fraction:
        """Return the new iteration at the same tokens as an old one; iterations already done keep their numbers."""
        if not self.done.step:
            own = max(Fraction(0), iteration - self.past.step)
            before = Fraction(self.past.tokens, self._new_tokens)
            return (before if own or not self.past.step else before * iteration / self.past.step) + own * self.ratio
        step = Fraction(self.done.step)
        return min(iteration, step) + max(Fraction(0), iteration - step) * self.ratio

    def schedule(self, iteration: Fraction) -> Fraction:
        """Return the new iteration of an old one for the scheduler, which counts sequences (or steps, with `steps`).

        Sequences already seen count as they are, the others by their tokens.
        """
        if self.steps:
            return self.run(iteration)
        sequences, counted = iteration * self.old.global_, Fraction(self.done.scheduled)
        if not self.done.step:
            return self.past.tokens_of(self.past.unscheduled + sequences, self.old.seq_length) / self._new_tokens
        left = max(Fraction(0), sequences - counted)
        if self.anew:
            return left * self.ratio / self.old.global_
        later = left * Fraction(self.old.seq_length, self.new.seq_length)
        return (min(sequences, counted) + later) / self.new.global_

    def warmup(self, iteration: Fraction) -> Fraction:
        """Return the new iteration of the warmup's end; a scheduler that restarts at 0 warms up anew over the same
        tokens.
        """
        restarts = self.anew or (not self.done.step and self.past.unscheduled)
        return iteration * self.ratio if restarts else self.schedule(iteration)


def _converted(training: WholeTraining, clock: _Clock) -> Iterator[Rescaled]:
    """Yield each field of iterations with its value before and after, rounded up; the warmup is kept shorter than
    the decay.
    """

    decay = Fraction(training.lr_decay_iters or training.train_iters)
    given = training.lr_decay_iters is not None or (clock.done.step > 0 and not clock.steps)
    ends = clock.schedule if given else clock.run
    last = max(Fraction(1), ends(decay))
    exact = {"train_iters": clock.run(Fraction(training.train_iters))}
    if given:
        exact["lr_decay_iters"] = last
    if training.lr_decay_style == "WSD":
        exact["lr_wsd_decay_iters"] = max(Fraction(1), last - ends(max(Fraction(0), decay - training.wsd_decay_iters)))
    exact["lr_warmup_iters"] = clock.warmup(Fraction(training.lr_warmup_iters))
    exact |= {name: getattr(training, name) * clock.ratio for name in _INTERVALS}
    unsaid = {"lr_decay_iters": training.train_iters, "lr_wsd_decay_iters": training.wsd_decay_iters}
    for name, value in exact.items():
        after = ceil(value)
        if name == "lr_warmup_iters":  # shorter than the decay, or Megatron-LM stops at the start
            after = min(after, max(0, ceil(last) - 1))
        yield Rescaled(name, getattr(training, name) or unsaid.get(name, 0), after)


def _as_is(training: WholeTraining, old: Batch, new: Batch, run: History, counting: Counting) -> str:
    """Return a sentence with the tokens of the whole run before and now, if iterations stay the same."""
    seen, left = (0, training.train_iters) if counting.renumbers else (run.tokens, training.train_iters - run.step)
    tokens, now = (seen + left * batch.global_ * batch.seq_length for batch in (old, new))
    return (
        f"iterations stay as they are: {count(training.train_iters)} of them saw {count(tokens)} tokens and see "
        f"{count(now)} now"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """A schedule rescaled to the same tokens, with the options and notes that follow."""

    old: Batch
    new: Batch
    run: History
    past: History
    before: WholeTraining
    after: WholeTraining
    counting: Counting
    anew: bool

    def options(self) -> Iterator[str]:
        """Yield the options that the new run's command needs to resume; none at step 0 or with a restarted
        scheduler.
        """
        if not self.run.step or self.anew:
            return
        if self.counting.override:
            yield self.counting.override
        elif self.counting.renumbers and self.old.seq_length != self.new.seq_length:
            yield f"--consumed-sequences={self.run.tokens // self.new.seq_length}"

    def notes(self) -> Iterator[str]:
        """Yield sentences on tokens, learning rate, history and the program's counting."""
        if self.old != self.new:
            yield from self._tokens()
            yield self._learning_rate()
        if len(self.run.segments) > 1:
            yield f"the run has had {self.run}: {count(self.run.sequences)} sequences"
        if self.run.step:
            if self.counting.renumbers:
                yield from self._renumbered()
            elif self.counting.schedules_steps:
                yield from self._steps()
            else:
                yield from self._sequences()

    def _tokens(self) -> Iterator[str]:
        """Yield a sentence with the tokens of a step and of what remains, before and after."""
        old, new = (batch.global_ * batch.seq_length for batch in (self.old, self.new))
        if not self.counting.renumbers:
            before = (
                (self.before.train_iters - self.run.step) * old
                if self.run.step
                else (self.past.tokens + (self.before.train_iters - self.past.step) * old)
            )
            after = (self.after.train_iters - self.run.step) * new
        else:
            before, after = (
                iters * size - self.run.tokens
                for iters, size in ((self.before.train_iters, old), (self.after.train_iters, new))
            )
        more = f", {count(after - before)} more, since steps are whole" if after > before else ""
        of = "what is left of the run" if self.run.step else "the run"
        yield f"tokens of a step {count(old)} -> {count(new)}; of {of} {count(before)} -> {count(after)}{more}"

    def _learning_rate(self) -> str:
        """Return a sentence with the unchanged learning rate and those of the square-root and the linear rule."""
        ratio = self.new.global_ / self.old.global_
        if ratio == 1:
            return f"the learning rate stays {self.after.lr:g}"
        return (
            f"the learning rate stays {self.after.lr:g}: a batch {ratio:.4g} times as large would have "
            f"{self.after.lr * sqrt(ratio):.3g} by the square-root rule and {self.after.lr * ratio:.3g} by the "
            "linear one"
        )

    def _sequences(self) -> Iterator[str]:
        """Yield sentences for programs that count sequences (Megatron-LM): data, schedule and their jumps."""
        if self.anew:
            after = self.after.lr_decay_iters or self.after.train_iters
            yield (
                f"iterations count on from {count(self.run.step)}, and data go on behind the "
                f"{count(self.run.sequences)} sequences that the checkpoint has seen; the learning rate's schedule "
                f"starts anew: it warms up over {count(self.after.lr_warmup_iters)} iterations and ends where the "
                f"old one does, {count(after)} iterations on"
            )
        elif self.old.seq_length == self.new.seq_length:
            option = self.counting.override
            stops = (
                f"; without {option} Megatron-LM stops, since iterations x batch are not the checkpoint's"
                if option
                else ""
            )
            yield (
                f"iterations count on from {count(self.run.step)}; data and schedule go on behind the "
                f"{count(self.run.sequences)} sequences that the checkpoint has seen "
                f"(consumed_train_samples){stops}"
            )
        if self.counting.own_schedule:
            yield "the learning rate and its schedule are the checkpoint's, whatever the files say"
        end, batch = self.after.train_iters, self.new.global_
        sampled = self.run.spanned(end, batch)
        if sampled > end and self.counting.spans:
            yield (
                f"Megatron-LM has data for train-iters x batch = {count(end * batch)} sequences, of which "
                f"{count(self.run.sequences)} were seen with other batches: the files say --train-iters "
                f"{count(sampled)} and --exit-interval {count(end)}, so that they last to iteration {count(end)}"
            )
        if self.old.seq_length == self.new.seq_length:
            return
        skipped = self.run.sequences * self.new.seq_length
        yield (
            f"Megatron-LM counts sequences, whatever their length: it goes on behind the first "
            f"{count(self.run.sequences)} sequences of the new length, which are {count(skipped)} tokens of the "
            f"data and not the {count(self.run.tokens)} that were seen"
        )
        was = rate(self.before, self.run.scheduled, self.old.global_)
        now = rate(self.after, self.run.scheduled, self.new.global_)
        if not self.anew and abs(now - was) > 1e-3 * was:
            yield (
                f"and the schedule goes on in sequences: at the step the learning rate turns from {was:.4g} to "
                f"{now:.4g}; it ends after the same tokens"
            )

    def _renumbered(self) -> Iterator[str]:
        """Yield sentences for train.py, which renumbers its steps by the new batch."""
        start = Fraction(self.run.tokens, self.new.global_ * self.new.seq_length)
        yield (
            f"steps are numbered anew: after {count(self.run.sequences)} sequences train.py goes on at step "
            f"{count(int(start))}"
        )
        if start.denominator != 1:
            repeated = int((start - int(start)) * self.new.global_)
            yield f"the last {count(repeated)} of the sequences that were seen come once more, since steps are whole"

    def _steps(self) -> Iterator[str]:
        """Yield sentences for programs whose scheduler counts steps."""
        yield (
            f"steps count on from the checkpoint's {count(self.run.step)}, and the learning rate's schedule with "
            "them: the last one is where the tokens are those of the old run"
        )
        was, now = rate(self.before, self.run.step, 1), rate(self.after, self.run.step, 1)
        if abs(now - was) > 1e-3 * was:
            yield f"at the step the learning rate turns from {was:.4g} to {now:.4g}; it ends after the same tokens"
        yield (
            f"{count(self.run.sequences)} sequences were seen; data that are skipped by the number of steps are "
            f"{count(self.run.step * self.new.global_)} of them"
        )


def rate(training: WholeTraining, sequences: float, batch: int) -> float:
    """Return the learning rate after `sequences` sequences, with `batch` of them per iteration, as Megatron-LM
    computes it (megatron/core/optimizer_param_scheduler.py, get_lr).
    """
    decay = (training.lr_decay_iters or training.train_iters) * batch
    warmup = training.lr_warmup_iters * batch
    if warmup and sequences <= warmup:
        return training.lr * sequences / warmup
    if training.lr_decay_style == "constant":
        return training.lr
    if sequences > decay:
        return training.min_lr
    if training.lr_decay_style == "inverse-square-root":
        return max(training.min_lr, training.lr * sqrt(max(warmup, 1) / max(sequences, 1)))
    return training.min_lr + _coefficient(training, sequences, warmup, decay, batch) * (training.lr - training.min_lr)


def _coefficient(training: WholeTraining, sequences: float, warmup: int, decay: int, batch: int) -> float:
    """Return the decay's coefficient between the minimum (0) and the peak rate (1): linear, cosine, or else WSD with
    a linear decay.
    """
    done = (sequences - warmup) / (decay - warmup)
    if training.lr_decay_style == "linear":
        return 1.0 - done
    if training.lr_decay_style == "cosine":
        return 0.5 * (cos(pi * done) + 1.0)
    last = training.wsd_decay_iters * batch
    into = sequences - (decay - last)
    return 1.0 if into <= 0 else 1.0 - into / last  # linear, as the rendered files say
