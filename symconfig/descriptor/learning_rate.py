"""Learning rate, warm-up and weight decay that a job leaves open: by its task and the model's size, as published.

A rate between two published sizes lies on the straight line through both in the logarithms of size and rate; beyond
the smallest and the largest size it is theirs. The size is the number of parameters that work on a token: DeepSeek-V2
(21B of 236B, 2.4e-4; arXiv:2405.04434) and DeepSeek-V3 (37B of 671B, 2.2e-4; arXiv:2412.19437) were pretrained with
the rates of dense models of that size. A batch changes no rate here: the published ones had those of their papers.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from math import exp, log
from typing import Literal

from pydantic import Field

from symconfig.descriptor.document import load_yaml_strict
from symconfig.descriptor.strict import Strict, validate
from symconfig.descriptor.task import Task
from symconfig.descriptor.training import DERIVED, Training, WholeTraining
from symconfig.errors import Problem, Problems
from symconfig.resources import data_dir

# That have rates of their own where adapters are trained.
AdapterTask = Literal["dpo of adapters", "kto of adapters", "reward of adapters", "rl of adapters"]
# Tasks that are trained as others are: TRL 1.16 (scripts/kto.py) has KTO as DPO.
_AS: Mapping[Task, Task] = {"kto": "dpo"}
_OF_ADAPTERS: Mapping[Task, Task | AdapterTask] = {"dpo": "dpo of adapters", "reward": "lora", "rl": "rl of adapters"}


class Published(Strict):
    """A published learning rate for a model with this many parameters."""

    parameters: float
    lr: float
    source: str


class Habit(Strict):
    """The usual training of a task, as published.

    rates: by ascending number of parameters. floor: min_lr / lr. warmup: share of the decay's iterations, at most
    `most_warmup` iterations.
    """

    name: str
    rates: tuple[Published, ...] = Field(min_length=1)
    warmup: float
    source: str
    floor: float = 0.0
    most_warmup: int | None = None
    weight_decay: float = 0.0


class Habits(Strict):
    """The file, by a job's task, or by task "of adapters"."""

    schema_: Literal["symconfig.learning_rates/1"] = Field(alias="schema")
    tasks: dict[Task | AdapterTask, Habit]


@cache
def habits() -> Mapping[Task | AdapterTask, Habit]:
    """Return the usual training of each task; cached."""
    return validate(load_yaml_strict(data_dir("model_zoo") / "learning_rates.yaml"), Habits).tasks


_DIGITS = 2  # of a derived rate: a published one has no more


def row(task: Task, *, adapters: bool) -> Task | AdapterTask:
    """Return the key of `habits` for a task: KTO is trained as DPO, and some tasks with adapters have their own."""
    own = _AS.get(task, task)
    return _OF_ADAPTERS.get(own, own) if adapters else own


def derived(training: Training, task: Task | AdapterTask, parameters: float) -> WholeTraining:
    """Return the training with lr, min_lr, lr_warmup_iters and weight_decay filled in where the job leaves them open.

    The filled fields are named in `derived`; with none open the values are the job's. lr is that of the published runs
    (`rate`) unless stated, min_lr and warm-up are the task's usual shares of lr and of the decay's iterations, the
    latter cut at its maximum. weight_decay is the task's usual one.

    Args:
        training: The job's settings.
        task: A key of `habits`; KeyError for another one if a field is open.
        parameters: The base model's parameters that are active for a token.
    """
    if not (left := training.left_open):
        return WholeTraining.of(training)
    habit = habits()[task]
    lr = training.lr if training.lr is not None else rate(habit, parameters)
    most = training.decay_iters if habit.most_warmup is None else habit.most_warmup
    warmup = min(int(habit.warmup * training.decay_iters), most)
    values = dict(zip(DERIVED, (lr, _rounded(lr * habit.floor), warmup, habit.weight_decay), strict=True))
    return WholeTraining.model_validate({**dict(training), **{name: values[name] for name in left}, "derived": left})


def check(training: WholeTraining) -> None:
    """Return nothing; raise InputError, with both problems, if the warm-up is not shorter than the decay, or min_lr is
    above lr.
    """
    warmup, decay, problems = training.lr_warmup_iters, training.decay_iters, Problems()
    if warmup >= decay:
        what, field = "the warm-up does not end before the learning rate is at its lowest", "training.lr_warmup_iters"
        hint = f"a longer run (training.train_iters), or {field}: {decay // 10}"
        need = f"less than {decay} iterations"
        problems.add(Problem(what, field=field, got=str(warmup), need=need, hint=hint))
    if training.min_lr > training.lr:
        what, need = "the lowest learning rate is above the highest", f"at most {training.lr:g}"
        problems.add(Problem(what, field="training.min_lr", got=f"{training.min_lr:g}", need=need))
    problems.check()


def rate(habit: Habit, parameters: float) -> float:
    """Return the learning rate for a number of parameters, interpolated log-log between the habit's published sizes.

    Interpolated rates are rounded to two digits. At a published size, and beyond the smallest or largest, it is that
    size's rate as published.
    """
    below, above = neighbours(habit, parameters)
    if below.parameters == above.parameters:
        return below.lr
    part = log(parameters / below.parameters) / log(above.parameters / below.parameters)
    return _rounded(exp(log(below.lr) + part * log(above.lr / below.lr)))


def neighbours(habit: Habit, parameters: float) -> tuple[Published, Published]:
    """Return the habit's published sizes next below and next above a number of parameters, in this order.

    A published size equal to it is both; below the smallest or above the largest, that one is both.
    """
    below = [each for each in habit.rates if each.parameters <= parameters]
    above = [each for each in habit.rates if each.parameters >= parameters]
    return (below or above)[-1 if below else 0], (above or below)[0 if above else -1]


def why(training: Training, task: Task | AdapterTask, parameters: float, of: str = "parameters") -> tuple[str, ...]:
    """Return, in a tuple, the text that says which values were derived and from what; () if none was.

    The sources of the learning rate are named only if it was derived. of: the unit of `parameters` in the text, such as
    "active parameters".
    """
    words, by = _chosen(training, task, parameters, of)
    if not words:
        return ()
    habit, sources = habits()[task], ""
    if "lr" in training.derived:
        published = neighbours(habit, parameters)
        between = "that" if published[0].lr == published[1].lr else "between those"
        named = " and ".join(dict.fromkeys(each.source for each in published))
        sources = f" The learning rate is {between} of {named}."
    return (f"Chosen for {by}, since the job does not state them: {words}.{sources} The rest is as in {habit.source}.",)


def short(training: Training, task: Task | AdapterTask, parameters: float, of: str = "parameters") -> str:
    """Return one line with the derived values, for a terminal; empty if none was derived. of: as in `why`."""
    words, by = _chosen(training, task, parameters, of)
    return f"{words}: chosen for {by} (REPORT.md has the sources)" if words else ""


def _chosen(training: Training, task: Task | AdapterTask, parameters: float, of: str) -> tuple[str, str]:
    """Return the derived values by name, and the task and size that they are of, as texts; empty if none was."""
    words = ", ".join(f"{name} {getattr(training, name):g}" for name in DERIVED if name in training.derived)
    if not words:
        return "", ""
    size = f"{parameters / 1e9:.3g}B" if parameters >= 999.5e6 else f"{parameters / 1e6:.3g}M"
    return words, f"{habits()[task].name} of {size} {of}"


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS - 1}e}")
