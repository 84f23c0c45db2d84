"""Where the weights of a run come from that does not start with random ones."""

from __future__ import annotations

from collections.abc import Iterator

from symconfig.errors import Problem
from symconfig.plans.plan import Plan


def fine_tuned(plan: Plan) -> bool:
    """Return whether it starts from weights that exist."""
    tuned = plan.model.adapter is not None or plan.job.task not in (None, "pretrain")
    return tuned or plan.job.training.hf_weights is not None


def hf_weights(plan: Plan) -> str | None:
    """Return the Hugging Face folder or id that it starts from: the job's, or what tuning starts from by itself.

    None where weights are random, and of a model that has no id.
    """
    if plan.job.training.hf_weights is not None or not fine_tuned(plan):
        return plan.job.training.hf_weights
    return plan.model.huggingface_id


def unread(plan: Plan, reader: str) -> Iterator[Problem]:
    """Yield what a program that reads no Hugging Face weights is asked for."""
    if plan.job.training.hf_weights is not None:
        yield Problem(
            f"{reader} does not start from Hugging Face weights",
            field="training.hf_weights",
            got=plan.job.training.hf_weights,
            hint="--target bridge, or --backend deepspeed",
        )
