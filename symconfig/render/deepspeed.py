"""The DeepSpeed target: plan -> ds_config.json in two flavours, a training script, its launchers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from symconfig.errors import Problem
from symconfig.format import json_text
from symconfig.formats import deepspeed as formats
from symconfig.frameworks import counting
from symconfig.plans.plan import Plan
from symconfig.render import deepspeed_launch, going_on, monitors
from symconfig.render.deepspeed_limits import data_problems, refuse
from symconfig.render.files import File
from symconfig.render.target import Target
from symconfig.render.unsaid import Saving

Json = dict[str, Any]

TRAIN = "the generated training script"  # train.py


def variables(plan: Plan) -> dict[str, object]:
    """Return what its templates see. Raises InfeasibleError for what DeepSpeed cannot run."""
    refuse(plan, *data_problems(plan, TRAIN), *_generated_script(plan))
    return deepspeed_launch.variables(plan)


def texts(plan: Plan) -> Iterator[File]:
    """Yield the JSON in its two flavours, and what surrounds it."""
    yield File("ds_config.json", json_text(config(plan)))
    yield File("ds_config_hf.json", json_text(config_auto(plan)))
    yield from deepspeed_launch.texts(plan)


def words(plan: Plan) -> list[str]:
    """Return what train.py is given beside the JSON. Raises InfeasibleError for what DeepSpeed cannot run."""
    refuse(plan, *data_problems(plan, TRAIN), *_generated_script(plan))
    return [word for group in deepspeed_launch.arguments(plan).values() for word in group]


def config(plan: Plan) -> Json:
    """Return ds_config.json with native numbers: integers are integers, and nothing is left to a default that
    matters.
    """
    refuse(plan)
    return formats.write(plan) | monitors.deepspeed_sections(plan)


def config_auto(plan: Plan) -> Json:
    """Return the flavour for Transformers' Trainer, which has callbacks of its own for monitors: "auto" wherever it
    fills the value in from TrainingArguments."""
    refuse(plan)
    return formats.write(plan, auto=True)


def _generated_script(plan: Plan) -> tuple[Problem, ...]:
    """Return why the generated training script cannot run the optimizer: DeepSpeed makes its own from the JSON."""
    if formats.own_optimizer(plan):
        return ()
    return (
        Problem(
            "the generated training script has the optimizer that DeepSpeed makes, which is AdamW",
            field="optimizer",
            got=plan.job.optimizer.name,
            hint="--target transformers",
        ),
    )


TARGET = Target(
    name="deepspeed",
    does='DeepSpeed\'s JSON, native and with "auto", a training script for it, launch.sh',
    variables=variables,
    texts=texts,
    assumes={"backend": "deepspeed"},
    counts=counting.RENUMBERED,
    goes_on=going_on.launched,
    saving=Saving("--save", "SAVE=DIR bash launch.sh"),
    unsaid={
        "eval_iters": "train.py does not evaluate",
        "split": "train.py trains on all of its files",
        "manual_gc_interval": "train.py leaves garbage collection to Python",
        "tokenizer_type": "train.py takes Hugging Face's tokenizers",
    },
)
