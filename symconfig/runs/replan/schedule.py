"""A run's length and learning rate, kept as functions of tokens when a step has another number of them.

How a program counts on is the target's `Counting` (render.shared).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import ceil, cos, pi, sqrt
from typing import Literal, NamedTuple

from symconfig.descriptor.training import WholeTraining
from symconfig.errors import InputError
from symconfig.format import count
from symconfig.plans.history import History
from symconfig.render.shared import Counting

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
    mode: Mode = "keep", restarts: bool = False, past: History = _NONE,
) -> Schedule:  # fmt: skip
    """Return the schedule of a run of batches `old` that resumes after `run` with `batch` sequences of `seq_length`
    tokens.

    Iterations are rescaled to the same tokens, the learning rate stays; unchanged if `mode` is "as-is" (then with a
    note on tokens), or if batch and length stay and the scheduler does not restart. `options` has what makes a resumed
    program take the new schedule. restarts: the scheduler restarts at 0, if the run has begun (Megatron-LM with
    --no-load-optim without --finetune loads iteration and samples, not the scheduler). past: the old plan's history if
    `run` is empty although it had one. Raises InputError for a step after the run's end.
    """
    if run.step > training.train_iters:
        need = f"at most {training.train_iters}, its training.train_iters"
        raise InputError("is behind the end of the run", field="at_step", got=str(run.step), need=need)
    new = Batch(batch, seq_length)
    restarts, old_tokens, step_tokens = restarts and run.step > 0, old.global_batch * old.seq_length, batch * seq_length
    history = run.renumbered(batch, seq_length) if counting.renumbers else run
    if restarts and not counting.renumbers:
        history = replace(run, unscheduled=run.sequences)
    if mode == "as-is" or (new == old and not restarts):
        done = _NONE if counting.renumbers else run
        before, after = (done.tokens + (training.train_iters - done.step) * size for size in (old_tokens, step_tokens))
        note = f"iterations stay as they are: they saw {count(before)} tokens and see {count(after)} now"
        return Schedule(training, run=run, history=history, notes=(note,) if new != old else ())
    clock = _Clock(old, new, _NONE if counting.renumbers else run, past, restarts)
    every = _converted(training, clock, counting.schedules_steps)
    rescaled = tuple(each for each in every if each.after != getattr(training, each.field))
    changed = training.model_copy(update={each.field: each.after for each in rescaled})
    options: tuple[str, ...] = ()
    if run.step and not restarts:
        if counting.override:
            options = (counting.override,)
        elif counting.renumbers and old.seq_length != seq_length:
            options = (f"--consumed-sequences={run.tokens // seq_length}",)
    notes = []
    if new != old:
        ratio, lr = batch / old.global_batch, training.lr
        rules = f": the square-root rule would have {lr * sqrt(ratio):.3g}, the linear one {lr * ratio:.3g}"
        behind = run.step + past.step
        left = [
            past.tokens + (training.train_iters - behind) * old_tokens,
            (changed.train_iters - run.step) * step_tokens,
        ]
        if counting.renumbers:
            left = [training.train_iters * old_tokens - run.tokens, changed.train_iters * step_tokens - run.tokens]
        tokens = f"tokens of a step {count(old_tokens)} -> {count(step_tokens)}"
        notes = [
            f"{tokens}; of {'what is left of the run' if run.step else 'the run'} {' -> '.join(map(count, left))}",
            f"the learning rate stays {lr:g}{rules if ratio != 1 else ''}",
        ]
    if len(run.segments) > 1:
        notes.append(f"the run has had {run}: {count(run.sequences)} sequences")
    if run.step:
        notes += _resumed(training, changed, old, new, run, counting, restarts)
    return Schedule(changed, rescaled, run, history, options, tuple(notes))


class Batch(NamedTuple):
    """Sequences of a step, and tokens of each."""

    global_batch: int
    seq_length: int


@dataclass(frozen=True, slots=True)
class _Clock:
    """Converts iterations of the old run, counted from `past`, to those of the new one, counted from `done`."""

    old: Batch
    new: Batch
    done: History
    past: History
    restarts: bool = False  # whether the scheduler starts from 0 there

    @property
    def ratio(self) -> Fraction:
        """Return the tokens of an old iteration over those of a new one."""
        return Fraction(self.old.global_batch * self.old.seq_length, self._new_tokens)

    @property
    def _new_tokens(self) -> int:
        return self.new.global_batch * self.new.seq_length

    def run(self, iteration: Fraction) -> Fraction:
        """Return the new iteration at the same tokens as an old one; iterations already done keep their numbers. If
        nothing is done, iterations of `past` are converted by its mean tokens.
        """
        if not self.done.step:
            own = max(Fraction(0), iteration - self.past.step)
            before = Fraction(self.past.tokens, self._new_tokens)
            return (before if own or not self.past.step else before * iteration / self.past.step) + own * self.ratio
        step = Fraction(self.done.step)
        return min(iteration, step) + max(Fraction(0), iteration - step) * self.ratio

    def schedule(self, iteration: Fraction) -> Fraction:
        """Return the new iteration of an old one for a scheduler that counts sequences. Sequences already seen count as
        they are, later ones by their tokens; with `restarts` only later ones count, from 0. If nothing is done, those
        of `past` count by their tokens.
        """
        sequences, counted = iteration * self.old.global_batch, Fraction(self.done.scheduled)
        if not self.done.step:
            return self.past.tokens_of(self.past.unscheduled + sequences, self.old.seq_length) / self._new_tokens
        left = max(Fraction(0), sequences - counted)
        if self.restarts:
            return left * self.ratio / self.old.global_batch
        later = left * Fraction(self.old.seq_length, self.new.seq_length)
        return (min(sequences, counted) + later) / self.new.global_batch


def _converted(training: WholeTraining, clock: _Clock, schedules_steps: bool) -> Iterator[Rescaled]:
    """Yield each field of iterations with its value before (unset ones' defaults) and after, rounded up; unchanged
    ones, too. lr_decay_iters is included if set, or if the run resumes with a scheduler of sequences,
    lr_wsd_decay_iters for WSD; the warmup is kept shorter than the decay. A scheduler that restarts at 0 warms up anew.
    save_interval, eval_interval and eval_iters are scaled as a whole, of the others only what is not done yet.
    schedules_steps: whether the scheduler counts iterations, not sequences.
    """

    decay = Fraction(training.lr_decay_iters or training.train_iters)
    given = training.lr_decay_iters is not None or (clock.done.step > 0 and not schedules_steps)
    placed = clock.run if schedules_steps else clock.schedule
    ends = placed if given else clock.run
    last = max(Fraction(1), ends(decay))
    exact = {"train_iters": clock.run(Fraction(training.train_iters))}
    if given:
        exact["lr_decay_iters"] = last
    if training.lr_decay_style == "WSD":
        exact["lr_wsd_decay_iters"] = max(Fraction(1), last - ends(max(Fraction(0), decay - training.wsd_decay_iters)))
    warmup = Fraction(training.lr_warmup_iters)
    restarts = clock.restarts or (not clock.done.step and clock.past.unscheduled)
    exact["lr_warmup_iters"] = warmup * clock.ratio if restarts else placed(warmup)
    exact |= {name: getattr(training, name) * clock.ratio for name in _INTERVALS}
    defaults = {"lr_decay_iters": training.train_iters, "lr_wsd_decay_iters": training.wsd_decay_iters}
    for name, value in exact.items():
        after = ceil(value)
        if name == "lr_warmup_iters":  # shorter than the decay, or Megatron-LM stops at the start
            after = min(after, max(0, ceil(last) - 1))
        yield Rescaled(name, getattr(training, name) or defaults.get(name, 0), after)


def _resumed(
    before: WholeTraining,
    after: WholeTraining,
    old: Batch,
    new: Batch,
    run: History,
    counting: Counting,
    restarts: bool,
) -> Iterator[str]:
    """Yield sentences on how the program counts on behind `run`: steps, data and the learning rate's schedule. before,
    after: the training of the old and the new plan. restarts: the scheduler restarts. A jump of the rate by more than
    0.1 % is mentioned.
    """
    seen = f"the {count(run.sequences)} sequences that the checkpoint has seen"
    if counting.renumbers:
        start = Fraction(run.tokens, new.global_batch * new.seq_length)
        yield f"steps are numbered anew: behind {seen} train.py goes on at step {count(int(start))}"
        if start.denominator != 1:
            repeated = int((start - int(start)) * new.global_batch)
            yield f"the last {count(repeated)} of the sequences that were seen come once more, since steps are whole"
        return
    if counting.schedules_steps:
        yield f"steps and the learning rate's schedule count on from the checkpoint's {count(run.step)}"
    elif restarts:
        yield (
            f"iterations count on from {count(run.step)} and data behind {seen}; the learning rate's schedule starts "
            f"anew: it warms up over {count(after.lr_warmup_iters)} iterations and ends "
            f"{count(after.lr_decay_iters or after.train_iters)} iterations on"
        )
    else:
        stops = f"; without {counting.override} Megatron-LM stops" if counting.override else ""
        yield f"iterations count on from {count(run.step)}; data and schedule go on behind {seen}{stops}"
    if counting.own_schedule:
        yield "the learning rate and its schedule are the checkpoint's, not those of the files"
    if old.seq_length != new.seq_length and not counting.schedules_steps:
        skipped = run.sequences * new.seq_length
        yield (
            f"the program skips as many sequences of the new length: {count(skipped)} tokens of the data and not the "
            f"{count(run.tokens)} that were seen"
        )
    place = (run.step, 1, 1) if counting.schedules_steps else (run.scheduled, old.global_batch, new.global_batch)
    was, now = rate(before, place[0], place[1]), rate(after, place[0], place[2])
    if not restarts and abs(now - was) > 1e-3 * was:
        yield f"at the step the learning rate turns from {was:.4g} to {now:.4g}; it ends after the same tokens"


def rate(training: WholeTraining, sequences: float, batch: int) -> float:
    """Return the learning rate after `sequences` sequences, with `batch` of them per iteration, as Megatron-LM computes
    it (megatron/core/optimizer_param_scheduler.py, get_lr). The warmup is linear from 0; after the decay it is min_lr,
    except for a constant one. Styles but constant, inverse-square-root, cosine and WSD decay linearly.
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
    done = (sequences - warmup) / (decay - warmup)
    last = training.wsd_decay_iters * batch
    coefficient = min(1.0, (decay - sequences) / last) if training.lr_decay_style == "WSD" else 1.0 - done
    if training.lr_decay_style == "cosine":
        coefficient = 0.5 * (cos(pi * done) + 1.0)
    return training.min_lr + coefficient * (training.lr - training.min_lr)
