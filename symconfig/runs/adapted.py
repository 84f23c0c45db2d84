"""The adapters and images that a job asks for, laid over its model."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import partial
from typing import Any

from pydantic import ValidationError

from symconfig.descriptor.job import ALL_LINEAR, OF_ATTENTION, OF_MLP, TARGET_GROUPS, Images, Job, Lora
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import Adapter, AdapterTarget
from symconfig.descriptor.task import WITH_OR_WITHOUT
from symconfig.descriptor.vision import Vision
from symconfig.errors import InputError, Problem, Problems, nearest
from symconfig.frameworks.known import BACKENDS
from symconfig.frameworks.megatron.adapters import peft_names
from symconfig.graph.model import ATTENTION_TARGETS, MLP_TARGETS, Targets, adapter_targets, without_overlap
from symconfig.render import target_of

ALPHA_OVER_R = 2.0  # where a job says none


def adapted(model: ModelDescriptor, job: Job) -> tuple[ModelDescriptor, Job]:
    """Return the model with the job's adapter, and the job with task (default "lora") and `lora` filled in.

    Both are returned unchanged if the job wants no adapters, or if it has no `lora` and the model has an adapter. With
    both, the model keeps its own, and fields set in `lora` must agree. alpha is 2 r by default. Raises InputError for
    `lora` with a task without adapters, target modules that the model lacks or that are MLPs beside experts, and all
    fields that disagree.
    """
    if job.lora is not None and job.task not in (None, "lora", *WITH_OR_WITHOUT):
        what, need = "trains no adapters, and the job asks for some", " or ".join(("lora", *WITH_OR_WITHOUT))
        raise InputError(what, field="task", got=job.task, need=need)
    if not job.wants_adapters or (job.lora is None and model.adapter is not None):
        return model, job
    lora = job.lora or Lora()
    adapter = Adapter(
        method=lora.method,
        r=lora.r,
        lora_alpha=ALPHA_OVER_R * lora.r if lora.alpha is None else lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=_modules(lora, model, job),
    )
    if model.adapter is None:
        model = model.model_copy(update={"adapter": adapter})
    elif problems := list(_against(model, model.adapter, adapter, lora)):
        raise InputError(problems)
    return model, job.model_copy(update={"task": job.task or "lora", "lora": lora})


def bare(model: ModelDescriptor, job: Job) -> ModelDescriptor:
    """Return the model of a plan without the adapter that its job added; unchanged if the job has no `lora`."""
    return model if job.lora is None else model.model_copy(update={"adapter": None})


def _against(model: ModelDescriptor, own: Adapter, adapter: Adapter, lora: Lora) -> Iterator[Problem]:
    """Yield a problem for each field set in the job's `lora` in which its adapter differs from the model's own; targets
    are compared as sets.
    """
    fields = {"alpha": "lora_alpha", "dropout": "lora_dropout", "targets": "target_modules"}
    for name in Lora.model_fields:
        need, got = (_shown(getattr(one, fields.get(name, name))) for one in (own, adapter))
        if name in lora.model_fields_set and need != got:
            what = f"{model.name} has adapters of its own, with other {name}"
            hint = "the model without its adapters, or leave this out"
            yield Problem(what, field=f"lora.{name}", got=got, need=need, hint=hint)


def _shown(value: object) -> str:
    return ", ".join(sorted(set(value))) if isinstance(value, tuple) else str(value)


def _modules(lora: Lora, model: ModelDescriptor, job: Job) -> Targets:
    """Return the model's modules that the job's targets select, in the model's order and without repeats. Raises one
    InputError with all targets that select none, or MLPs beside experts.
    """
    known = adapter_targets(model.model_copy(update={"adapter": None}))
    backend: str = job.backend
    if "backend" not in job.model_fields_set:  # then the one that its target assumes
        backend = target_of(model, job).assumes.get("backend", backend)
    fuses = BACKENDS[backend].fuses(model)
    problems = Problems()
    selected = [problems.collect(partial(_selected, target, known, model, fuses)) for target in lora.targets]
    chosen = {name for names in map(problems.need, selected) for name in names}
    return tuple(name for name in known if name in chosen)


def _selected(target: str, known: Targets, model: ModelDescriptor, fuses: Collection[AdapterTarget]) -> Iterable[str]:
    """Return the modules of `known`, the model's, that one target of `lora.targets` selects. Raises InputError for
    none, or MLP modules of a model with experts. target: a group ("all-linear", for a model with experts without MLPs;
    attention; MLP) of those `without_overlap`, given what the framework `fuses`; a name of Megatron-Bridge (its first
    module that is there); or a module.
    """
    usual = without_overlap(known, fuses)
    groups = {
        ALL_LINEAR: usual if model.experts is None else [name for name in usual if name not in MLP_TARGETS],
        OF_ATTENTION: [name for name in usual if name in ATTENTION_TARGETS],
        OF_MLP: [name for name in usual if name in MLP_TARGETS],
    }
    meant = groups.get(target) or [name for name in peft_names(target) if name in known][:1]
    if model.experts is not None and set(meant) & MLP_TARGETS:
        what = (
            "adapters beside experts are not planned: Transformers keeps experts as one tensor, and Megatron-Bridge "
            "gives all experts of a rank one adapter"
        )
        raise InputError(what, field="lora.targets", got=target, hint=OF_ATTENTION)
    if meant:
        return meant
    able = dict.fromkeys((*(name for name in groups if groups[name]), *usual, *without_overlap(known)))
    what, hint = f"{model.name} has no such linear layers", nearest(target, (*TARGET_GROUPS, *known))
    raise InputError(what, field="lora.targets", got=target, need=f"some of {', '.join(able)}", hint=hint)


_TEXT_ALONE = "trained on text alone: its vision tower is not loaded (images.per_sequence, --images-per-sequence)"


def as_trained(model: ModelDescriptor, job: Job) -> tuple[ModelDescriptor, Job]:
    """Return the model with the job's images and adapter, and the job with the open fields of its adapter filled in."""
    model, job = adapted(imaged(model, job), job)
    return imaged(model, job), job


def imaged(model: ModelDescriptor, job: Job) -> ModelDescriptor:
    """Return the model with the job's number and size of images. Without images it loses its vision tower, which
    `notes` says; a model without a tower is returned as it is. Raises InputError for images without a tower, of a wrong
    size, or of more tokens than a sequence (the job's seq_length, else the usual length within the model's positions).
    """
    images = job.images or Images()
    if model.vision is None:
        if images.per_sequence:
            what, got = f"{model.name} has no vision tower", f"{images.per_sequence:g}"
            hint = "a multimodal config.json, or a descriptor with the section vision"
            raise InputError(what, field="images.per_sequence", got=got, need="0", hint=hint)
        return model
    if not images.per_sequence:
        return model.model_copy(update={"vision": None, "notes": (*model.notes, _TEXT_ALONE)})
    vision = _laid_over(model.vision, images, beside_adapters=model.adapter is not None)
    seq_length = job.seq_length or model.usual_length
    if (tokens := images.per_sequence * vision.tokens) > seq_length:
        what = f"{images.per_sequence:g} images of {vision.tokens} tokens are more than a sequence holds"
        need, hint = f"at most {seq_length}", "fewer or smaller images, or a larger seq_length"
        raise InputError(what, field="images.per_sequence", got=f"{tokens:g} tokens", need=need, hint=hint)
    return model.model_copy(update={"vision": vision})


def _laid_over(vision: Vision, images: Images, *, beside_adapters: bool) -> Vision:
    """Return the vision tower with the job's number and size of images and its frozen parts: with `beside_adapters`
    all, else by the job "none", "tower" or "all" (the projector, too), else as before. Raises InputError for another
    size than a fixed-size tower takes, or one that the tower refuses.
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
