"""What targets are told of a vision tower."""

from __future__ import annotations

from symconfig.descriptor.model import ModelDescriptor
from symconfig.plans.plan import Plan


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
