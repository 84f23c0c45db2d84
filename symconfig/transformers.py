"""A plan in a script that uses Transformers' Trainer.

import symconfig.transformers

trainer = Trainer(model, symconfig.transformers.training_arguments("plan/", output_dir="out"), ...)
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from symconfig import install
from symconfig.api.planning import AnyPlan
from symconfig.errors import InputError
from symconfig.render import deepspeed, shared, trainer
from symconfig.runs.start import OnMismatch, started

if TYPE_CHECKING:
    from transformers import TrainingArguments


def training_arguments(
    plan: AnyPlan, *, output_dir: str, world_size: int | None = None, on_mismatch: OnMismatch = "fail", **more: Any
) -> TrainingArguments:
    """Return Transformers' TrainingArguments of a plan, with DeepSpeed's configuration; `more`: fields that replace
    any.

    Sets environment variables in this process: Accelerate's for Ulysses, replacing old ones, and TensorBoard's and
    W&B's where they are not set. `load` is not checked if `more` has resume_from_checkpoint. Raises InputError without
    Transformers, MismatchError and InputError as `symconfig.runs.start.started` (ranks, GPU, releases),
    InfeasibleError for what Trainer cannot run, and what TrainingArguments raises.
    """
    try:
        from transformers import TrainingArguments
    except ImportError:
        raise InputError("Transformers is not installed", hint=install.EXTRA) from None
    ready = started(plan, "transformers", world_size, on_mismatch)
    loads = () if "resume_from_checkpoint" in more else trainer.load_problems(ready)
    own = (*shared.program_problems(ready, "transformers"), *trainer.schedule_problems(ready), *loads)
    shared.refuse(ready, *own)
    fields = trainer.arguments(ready, "") | {"deepspeed": deepspeed.config_auto(ready), "output_dir": output_dir}
    os.environ.update((variable.name, variable.value) for variable in trainer.ulysses_variables(ready))
    for variable in deepspeed.set_by_job(ready, deepspeed.BY_TRAINER):
        os.environ.setdefault(variable.name, variable.value)
    if "activation_checkpointing" in TrainingArguments.__dataclass_fields__ and "gradient_checkpointing" not in more:
        fields["activation_checkpointing"] = fields.pop("gradient_checkpointing")  # its name since Transformers 5.24
    return TrainingArguments(**{**fields, **more})
