"""What targets are told of the weights that a run starts from, and of a vision tower."""

from __future__ import annotations

from collections.abc import Iterator

from symconfig.descriptor.model import ModelDescriptor
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


def outer_type(model: ModelDescriptor) -> str:
    """Return the model_type of the whole file, where the language model has one of its own."""
    return model.model_type if model.vision is None else model.vision.model_type


def pixels(plan: Plan) -> int | None:
    """Return the most pixels of an image, where the tower takes any; None: it takes one size, or there is none."""
    vision = plan.model.vision
    return vision.image_size**2 if vision is not None and vision.any_resolution else None


def notes(plan: Plan, name: str | None = None) -> tuple[str, ...]:
    """Say what of the images a target's files cannot make so. name: of what bounds their size there."""
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
