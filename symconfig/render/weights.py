"""What targets are told of the weights that a run starts from, and of a vision tower."""

from __future__ import annotations

from collections.abc import Iterator

from symconfig.descriptor.model import ModelDescriptor
from symconfig.errors import Problem
from symconfig.plans.plan import Plan


def fine_tuned(plan: Plan) -> bool:
    """Return whether training starts from existing weights."""
    tuned = plan.model.adapter is not None or plan.job.task not in (None, "pretrain")
    return tuned or plan.job.training.hf_weights is not None


def hf_weights(plan: Plan) -> str | None:
    """Return the Hugging Face folder or id to start from: the job's, or for fine-tuning the model's id.

    None for random weights, and for a model without an id.
    """
    if plan.job.training.hf_weights is not None or not fine_tuned(plan):
        return plan.job.training.hf_weights
    return plan.model.huggingface_id


def unread(plan: Plan, reader: str) -> Iterator[Problem]:
    """Yield a problem if the job names Hugging Face weights, which `reader` does not load."""
    if plan.job.training.hf_weights is not None:
        yield Problem(
            f"{reader} does not start from Hugging Face weights",
            field="training.hf_weights",
            got=plan.job.training.hf_weights,
            hint="--target bridge, or --backend deepspeed",
        )


def outer_type(model: ModelDescriptor) -> str:
    """Return the model_type of the whole checkpoint: with a vision tower the tower model's, else the
    language model's.
    """
    return model.model_type if model.vision is None else model.vision.model_type


def pixels(plan: Plan) -> int | None:
    """Return the largest number of pixels per image; None if the tower takes one fixed size, or there is none."""
    vision = plan.model.vision
    return vision.image_size**2 if vision is not None and vision.any_resolution else None


def notes(plan: Plan, name: str | None = None) -> tuple[str, ...]:
    """Return sentences about images that the files cannot ensure; () without a vision tower.

    name: the program's option for their size.
    """
    vision = plan.model.vision
    if vision is None:
        return ()
    sentences = [
        f"The prediction is for {vision.images_per_sequence:g} images of {vision.tokens} tokens in every sequence: how "
        "many there are is up to the data"
    ]
    if name is not None and vision.any_resolution:
        sentences.append(f"{name} shrinks larger images; smaller ones become fewer tokens than planned")
    return tuple(sentences)
