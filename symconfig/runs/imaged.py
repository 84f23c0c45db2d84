"""The images that a job trains on, laid over its model's vision tower."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from symconfig.descriptor.job import Images, Job
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.vision import Vision
from symconfig.errors import InputError, Problem
from symconfig.runs.adapted import adapted
from symconfig.solve.whole import USUAL_LENGTH

_TEXT_ALONE = "trained on text alone: its vision tower is not loaded (images.per_sequence, --images-per-sequence)"


def as_trained(model: ModelDescriptor, job: Job) -> tuple[ModelDescriptor, Job]:
    """Return the model with the job's images and adapter, and the job with the open fields of its adapter filled in."""
    model, job = adapted(imaged(model, job), job)
    return imaged(model, job), job


def imaged(model: ModelDescriptor, job: Job) -> ModelDescriptor:
    """Return the model with the job's images; without images it loses its vision tower and gets a note.

    Raises InputError for images without a tower, of a wrong size, or of more tokens than a sequence.
    """
    images = job.images or Images()
    if model.vision is None:
        if images.per_sequence:
            raise InputError(
                f"{model.name} has no vision tower",
                field="images.per_sequence",
                got=f"{images.per_sequence:g}",
                need="0",
                hint="a multimodal config.json, or a descriptor with the section vision",
            )
        return model
    if not images.per_sequence:
        return model.model_copy(update={"vision": None, "notes": (*model.notes, _TEXT_ALONE)})
    vision = _laid_over(model.vision, images, beside_adapters=model.adapter is not None)
    _fits(vision, images, job.seq_length or min(model.max_position_embeddings, USUAL_LENGTH))
    return model.model_copy(update={"vision": vision})


def _laid_over(vision: Vision, images: Images, *, beside_adapters: bool) -> Vision:
    """Return the vision tower with the job's number and size of images and frozen parts; beside adapters all is frozen.

    Raises InputError for another size than a fixed-size tower takes, or one that it refuses.
    """
    changed: dict[str, Any] = {"images_per_sequence": images.per_sequence}
    if images.size is not None and images.size != vision.image_size:
        if not vision.any_resolution:
            what = f"the tower of {vision.model_type} takes images of one size"
            need = f"{vision.image_size}, or none said"
            raise InputError(what, field="images.size", got=str(images.size), need=need)
        changed["image_size"] = images.size
    frozen = "all" if beside_adapters else images.frozen
    if frozen is not None:
        changed |= {"frozen": frozen != "none", "projector_frozen": frozen == "all"}
    try:
        return Vision.model_validate({**vision.model_dump(), **changed})
    except ValidationError as error:
        whats = [item["msg"].removeprefix("Value error, ") for item in error.errors()]
        raise InputError([Problem(what, field="images.size", got=str(images.size)) for what in whats]) from None


def _fits(vision: Vision, images: Images, seq_length: int) -> None:
    """Raise InputError if the images of a sequence have more tokens than `seq_length`."""
    tokens = images.per_sequence * vision.tokens
    if tokens > seq_length:
        raise InputError(
            f"{images.per_sequence:g} images of {vision.tokens} tokens are more than a sequence holds",
            field="images.per_sequence",
            got=f"{tokens:g} tokens",
            need=f"at most {seq_length}",
            hint="fewer or smaller images, or a larger seq_length",
        )
