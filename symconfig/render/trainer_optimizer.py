"""The job's optimizer in the words of Transformers' Trainer, and of a script with an optimizer of its own.

Names are those of Transformers 5.6 to 5.23 (`training_args.py`, OptimizerNames; `trainer_optimizer.py`). Trainer makes
every optimizer that the DeepSpeed JSON does not have itself, and tells DeepSpeed to take it
(`integrations/deepspeed.py`, deepspeed_optim_sched); on the host it becomes DeepSpeed's (Accelerate 1.11,
`map_pytorch_optim_to_deepspeed`).
"""

from __future__ import annotations

from typing import Any

from symconfig.errors import Problem
from symconfig.plans.plan import Plan
from symconfig.render.summary import Row

_TRAINER = {"adam": "adamw_torch_fused", "adam8bit": "adamw_bnb_8bit", "adafactor": "adafactor", "sgd": "sgd"}


def own_optimizer(plan: Plan) -> bool:
    """Return whether DeepSpeed makes the optimizer, from its JSON.

    Before TRL 1.16 the reference of pairs was given to DeepSpeed with the same JSON (`models/utils.py`,
    prepare_deepspeed): with an optimizer in it the reference has one, too, or fails (ZeRO-3).
    """
    preference = plan.job.preference
    copied = preference is not None and preference.has_reference and plan.model.adapter is None
    return plan.job.optimizer.name == "adam" and not copied


def arguments(plan: Plan) -> dict[str, Any]:
    """Return the TrainingArguments that name the optimizer; of AdamW the DeepSpeed JSON says it."""
    optimizer = plan.job.optimizer
    if own_optimizer(plan):
        return {}
    fields = {"optim": _TRAINER[optimizer.name]}
    return {**fields, "optim_args": f"momentum={optimizer.speed}"} if optimizer.name == "sgd" else fields


def generated_script(plan: Plan) -> tuple[Problem, ...]:
    """Return why the generated training script cannot run the optimizer: DeepSpeed makes its own from the JSON."""
    if own_optimizer(plan):
        return ()
    return (
        Problem(
            "the generated training script has the optimizer that DeepSpeed makes, which is AdamW",
            field="optimizer",
            got=plan.job.optimizer.name,
            hint="--target transformers",
        ),
    )


def script_row(plan: Plan) -> Row:
    """Return what a script makes itself, with the plan's values."""
    training, optimizer = plan.training, plan.job.optimizer
    lr, decay = f"lr={training.lr}", f"weight_decay={training.weight_decay}"
    adam = f"{lr}, betas=({training.adam_beta1}, {training.adam_beta2}), eps={training.adam_eps}, {decay}"
    match optimizer.name:
        case "adam8bit":
            return Row("optimizer", (f"bitsandbytes.optim.AdamW8bit({adam})",))
        case "adafactor":
            fixed = "scale_parameter=False, relative_step=False"
            return Row("optimizer", (f"transformers.Adafactor({lr}, {decay}, {fixed})",))
        case "sgd":
            return Row("optimizer", (f"torch.optim.SGD({lr}, momentum={optimizer.speed}, {decay})",))
        case _:
            return Row("AdamW", (adam,))
