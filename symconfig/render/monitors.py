"""TensorBoard, Weights & Biases and the timeout of collectives, where they are said in variables of launch.sh.

DeepSpeed 0.19.8: `monitor/config.py`, `constants.py`. Transformers 5.23: `integrations/integration_utils.py`.
W&B itself reads WANDB_PROJECT and WANDB_NAME.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from symconfig.frameworks.megatron.environment import Variable
from symconfig.plans.plan import Plan

SECONDS = 60  # of a minute
JOB = "what the job asks for"


def run_name(plan: Plan) -> str:
    """Return the run's name in Weights & Biases; by default the model's name."""
    return plan.training.wandb_name or plan.model.name


def deepspeed_variables(plan: Plan) -> Iterator[Variable]:
    """Yield environment variables for Weights & Biases and the collectives' timeout, which DeepSpeed's
    JSON cannot set.
    """
    if plan.training.wandb_project is not None:
        yield _variable("WANDB_PROJECT", plan.training.wandb_project, "the project in Weights & Biases")
        yield _variable("WANDB_NAME", run_name(plan), "the run's name in Weights & Biases")
    if plan.training.distributed_timeout_minutes is not None:
        minutes = str(plan.training.distributed_timeout_minutes)
        yield _variable("DEEPSPEED_TIMEOUT", minutes, "minutes that a collective may wait")


def deepspeed_sections(plan: Plan) -> dict[str, Any]:
    """Return the JSON sections of DeepSpeed's monitors; {} if the job has none."""
    training, sections = plan.training, dict[str, Any]()
    if training.tensorboard_dir is not None:
        sections["tensorboard"] = {
            "enabled": True,
            "output_path": training.tensorboard_dir,
            "job_name": run_name(plan),
        }
    if training.wandb_project is not None:
        sections["wandb"] = {"enabled": True, "project": training.wandb_project}
    return sections


def trainer_arguments(plan: Plan) -> dict[str, Any]:
    """Return TrainingArguments for monitors and the timeout (in seconds); {} if the job has none."""
    training, arguments = plan.training, dict[str, Any]()
    to = [
        name
        for name, wanted in (("tensorboard", training.tensorboard_dir), ("wandb", training.wandb_project))
        if wanted is not None
    ]
    if to:
        arguments["report_to"] = to
    if training.wandb_project is not None:
        arguments["run_name"] = run_name(plan)
    if training.distributed_timeout_minutes is not None:
        arguments["ddp_timeout"] = training.distributed_timeout_minutes * SECONDS
    return arguments


def trainer_variables(plan: Plan) -> Iterator[Variable]:
    """Yield environment variables for TensorBoard's folder and the project in Weights & Biases, which
    are no arguments.
    """
    if plan.training.tensorboard_dir is not None:
        yield _variable("TENSORBOARD_LOGGING_DIR", plan.training.tensorboard_dir, "the folder of TensorBoard's files")
    if plan.training.wandb_project is not None:
        yield _variable("WANDB_PROJECT", plan.training.wandb_project, "the project in Weights & Biases")


def _variable(name: str, value: str, what: str) -> Variable:
    return Variable(name, value, f"{what}: {JOB}", literal=True)
