"""What each framework's log says of its steps."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

from tools.verify.training.cases import GRPO, LENGTH, SEQUENCES
from tools.verify.training.results import Step

TRAIN_PY = re.compile(r"\bstep \d+ loss (\S+) lr (\S+) ")
BATCH = re.compile(r"micro-batch (\d+) x (\d+) x (\d+) sequences")
MEGATRON = re.compile(
    r"iteration +\d+/.*?consumed samples: +(\d+).*?learning rate: (\S+) .*?lm loss: (\S+) (?:.*?grad norm: (\S+))?"
)
LOGGED = re.compile(r"logged (\{.*\})$", re.MULTILINE)
TRAINER = re.compile(r"(\{'loss'.*?\})")
NUMBER = re.compile(r"-?[\d.]+(e[-+]?\d+)?|nan|-?inf")
Reader = Callable[[str], list[Step]]


def of_train_py(log: str) -> list[Step]:
    """Of the generated script. The batch is in its first line."""
    found = BATCH.search(log)
    sequences = None if found is None else int(found[1]) * int(found[2]) * int(found[3])
    return [Step(float(loss), float(rate), sequences) for loss, rate in TRAIN_PY.findall(log)]


def of_megatron(log: str) -> list[Step]:
    found = MEGATRON.findall(log)
    rates = _of_the_step([float(rate) for _, rate, _, _ in found])
    counts = [0, *(int(consumed) for consumed, *_ in found)]
    return [
        Step(float(loss), rate, after - before, float(norm) if norm else None)
        for (_, _, loss, norm), rate, (before, after) in zip(found, rates, pairwise(counts), strict=True)
    ]


def of_scripts(log: str) -> list[Step]:
    """Of those in scripts/."""
    return [_step(json.loads(line)) for line in LOGGED.findall(log)]


def of_trainer(log: str) -> list[Step]:
    """Of Trainer's own lines.

    Transformers 5.6 divides the sum of a step's losses by all its labels, of which the first of a sequence has none.
    """
    return [replace(step, loss=step.loss * LENGTH / (LENGTH - 1)) for step in of_answers(log)]


def of_answers(log: str, epoch: int = SEQUENCES) -> list[Step]:
    """Of Trainer's own lines: dictionaries of Python with numbers as text. epoch: sequences of one.

    It says the step's own rate where it made the optimizer, and the next one where DeepSpeed did.
    """
    lines = _lines_of_trainer(log)
    rates = [line["learning_rate"] for line in lines]
    rates = rates if rates[:1] == [0.0] else _of_the_step(rates)
    epochs = [0.0, *(line["epoch"] for line in lines)]
    return [
        _step({**line, "learning_rate": rate, "sequences": round((after - before) * epoch)})
        for line, rate, (before, after) in zip(lines, rates, pairwise(epochs), strict=True)
    ]


def of_rewards(log: str) -> list[Step]:
    """Of GRPO: a step's loss is minus the mean reward of what was generated for it."""
    given = (line.get("reward") for line in _lines_of_trainer(log))
    rewards: Iterator[float | None] = accumulate(given, lambda last, new: new or last)
    steps = of_answers(log, GRPO["prompts"] * GRPO["samples"])
    return [replace(step, loss=-(reward or 0.0)) for step, reward in zip(steps, rewards, strict=True)]


def _lines_of_trainer(log: str) -> list[dict[str, float]]:
    lines = [ast.literal_eval(line).items() for line in TRAINER.findall(log)]
    return [{name: float(value) for name, value in line if NUMBER.fullmatch(value)} for line in lines]


def _step(line: dict[str, Any]) -> Step:
    return Step(float(line["loss"]), float(line["learning_rate"]), line["sequences"], line.get("grad_norm"))


def _of_the_step(rates: Sequence[float]) -> list[float]:
    """Megatron-LM and Trainer log a step's rate when the schedule has moved on. The first step's is not told: all
    plans here warm up from 0, and a loss that does not move in the first step says the same."""
    return [0.0, *rates][: len(rates)]
