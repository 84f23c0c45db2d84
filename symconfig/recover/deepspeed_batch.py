"""The batch of a DeepSpeed JSON: any two of its three sizes give the third, as DeepSpeed resolves them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from symconfig.errors import Problem
from symconfig.recover.arguments import Arguments
from symconfig.recover.deepspeed_auto import ACCUMULATION, AUTO, MICRO, MICRO_ARGUMENTS, TRAIN, uses_trainer
from symconfig.recover.run import Assumed

_SAID_BY = {MICRO: MICRO_ARGUMENTS, ACCUMULATION: (ACCUMULATION,)}


@dataclass(frozen=True, slots=True)
class Sizes:
    """micro: sequences of a data rank and microbatch. steps: microbatches of a step. gpus: of the launch."""

    micro: int
    steps: int
    gpus: int


@dataclass(frozen=True, slots=True)
class Grid:
    """Ranks that share a sequence's work: of AutoTP, which DeepSpeed counts as data ranks, of Ulysses, which it does
    not."""

    tensor: int
    sequence: int


def sizes(
    config: Mapping[str, Any], arguments: Arguments, gpus: int | None, grid: Grid, file: str, problems: list[Problem]
) -> tuple[Sizes | None, tuple[Assumed, ...]]:
    """The sizes, or None with what is missing or wrong in `problems`.

    Without a number of GPUs all three sizes give it (runtime/config.py, _set_batch_related_parameters, 0.19.8).
    """
    told = len(problems)
    micro, accumulated = (_size(config, arguments, key, file, problems) for key in (MICRO, ACCUMULATION))
    train = None if config.get(TRAIN) == AUTO else _number(config.get(TRAIN), TRAIN, file, problems)
    if len(problems) > told:
        return None, ()
    assumed: list[Assumed] = []
    if gpus is None and train and micro and accumulated and train % (micro * accumulated) == 0:
        gpus = train // (micro * accumulated) * grid.sequence
        assumed.append(Assumed("GPUs", str(gpus), f"{TRAIN} over micro-batch and accumulation"))
    if gpus is None:
        problems.append(Problem("the number of GPUs is not said", file=file, hint="--gpus N"))
        if train is None and micro is None:
            problems.append(_missing(file))
        return None, ()
    found = _resolved(train, micro, accumulated, gpus, grid, file, problems)
    if found is not None and accumulated is None and train is None:
        assumed.append(Assumed("microbatches of a step", "1", "neither the JSON nor the arguments say how many"))
    return found, tuple(assumed)


def _resolved(train: int | None, micro: int | None, accumulated: int | None, gpus: int, grid: Grid, file: str,
              problems: list[Problem]) -> Sizes | None:
    if gpus % (grid.tensor * grid.sequence):
        what = f"{gpus} GPUs do not divide by AutoTP {grid.tensor} x Ulysses {grid.sequence}"
        problems.append(Problem(what, file=file))
        return None
    ranks = gpus // grid.sequence
    if train is None and micro is None:
        problems.append(_missing(file))
        return None
    if train is None:
        return Sizes(micro or 1, accumulated or 1, gpus)
    micro = micro or (train // (ranks * (accumulated or 1)))
    steps = accumulated or (train // (ranks * micro) if micro else 0)
    if micro * steps * ranks != train:
        product = f"{micro or '?'} x accumulation {steps or '?'} x {ranks} data ranks"
        problems.append(Problem(f"is not micro-batch {product}", file=file, field=TRAIN, got=str(train),
                                need=str(micro * steps * ranks) if micro * steps else f"a multiple of {ranks}",
                                hint=f"leave {TRAIN} out, and DeepSpeed multiplies it out"))
        return None
    return Sizes(micro, steps, gpus)


def _size(config: Mapping[str, Any], arguments: Arguments, key: str, file: str, problems: list[Problem]) -> int | None:
    """Of the JSON; where it is "auto" or not there, of the Trainer's arguments."""
    value = config.get(key)
    if value not in (None, AUTO):
        return _number(value, key, file, problems)
    trainer = uses_trainer(arguments)
    if trainer and arguments.given(*_SAID_BY[key]):
        return arguments.whole(*_SAID_BY[key])
    if value == AUTO and not (trainer and key == ACCUMULATION and arguments.settings):
        what = 'is "auto", and no argument says it' if trainer else 'is "auto", which only the Trainer fills in'
        problems.append(Problem(what, file=file, field=key, hint=f"--{_SAID_BY[key][0]} N beside it, or a number"))
    return None


def _number(value: Any, key: str, file: str, problems: list[Problem]) -> int | None:
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    problems.append(Problem("is no size of a batch", file=file, field=key, got=repr(value)[:60],
                            need="a whole number above zero"))
    return None


def _missing(file: str) -> Problem:
    return Problem(f"has neither {TRAIN} nor {MICRO}", file=file, hint=f"--{MICRO_ARGUMENTS[0]} N, or {MICRO} in it")
