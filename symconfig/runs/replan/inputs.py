"""The job of a plan with what is asked for anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.job import Job
from symconfig.frameworks.known import BACKENDS, usual_backend
from symconfig.plans.plan import Plan

_SECTIONS = ("pins", "limits", "training", "lora", "images")  # of which single names are asked for anew


def revised(old: Plan, wishes: Mapping[str, Any], released: Sequence[str] = ()) -> dict[str, Any]:
    """Return the fields of the new job as plain data: those of `wishes`, the others as in the old job.

    Mappings of pins, limits, training, lora and images are merged. released: old pins that are dropped unless wished
    for. Defaults that followed from a replaced model, target or cluster are dropped, so that they are resolved again;
    `gpus` becomes "auto" if the old job searched for the fewest.
    """
    fields = old.job.model_dump(mode="json", by_alias=True, exclude_none=True)
    for name in _resolved(old, wishes):
        fields.pop(name, None)
    fields["training"] = _training(old, wishes)
    merged = {
        name: {**fields.get(name, {}), **wishes[name]} for name in _SECTIONS if isinstance(wishes.get(name), Mapping)
    }
    if old.search.fewest:
        fields["gpus"] = "auto"
    fields |= {**wishes, **merged}
    given = wishes.get("pins") or {}
    if isinstance(fields["pins"], dict):
        fields["pins"] = {
            name: value for name, value in fields["pins"].items() if name in given or name not in released
        }
    return fields


def _training(old: Plan, wishes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the old training as plain data without derived values that must be derived again.

    With another model or task, all derived values are dropped; else those wished for are no longer marked as derived.
    """
    data = old.job.training.model_dump(mode="json", exclude_none=True)
    derived, given = data.pop("derived"), wishes.get("training")
    if wishes.keys() & {"model", "task"}:
        return {name: value for name, value in data.items() if name not in derived}
    left = [name for name in derived if not isinstance(given, Mapping) or name not in given]
    return {**data, **({"derived": left} if left else {})}


def _resolved(old: Plan, wishes: Mapping[str, Any]) -> list[str]:
    """Return the fields of the old job that hold the defaults of a model, target or cluster that is replaced. These are
    backend and task (without `lora`) for a model, backend for a target, precision for a cluster.
    """
    adapter = old.model.adapter is not None
    usual: dict[str, Any] = {}
    if "model" in wishes:
        usual["backend"] = usual_backend(adapter).name
        if old.job.lora is None:  # else the adapters were the job's, and lie over the other model, too
            usual["task"] = "lora" if adapter else "pretrain"
    if "target" in wishes:
        usual["backend"] = old.job.backend  # the target's own
    if "cluster" in wishes:
        usual["precision"] = "bf16" if old.cluster.gpu.peak_flops.bf16 is not None else "fp16"
    return [name for name, value in usual.items() if getattr(old.job, name) == value]


def inputs(plan: Plan) -> dict[str, Any]:
    """Return the job of a plan with model, cluster and symconfig's version as plain data, without the training
    schedule. GPUs, batch, sequence length and backend are the best candidate's, because an edited plan's job may
    differ; release fields of other backends are left out.
    """
    best = plan.best
    job: dict[str, Any] = plan.job.model_dump(mode="json", by_alias=True, exclude={"training", "schema_"})
    job |= {
        "gpus": best.configuration.world_size,
        "global_batch_size": best.configuration.global_batch,
        "seq_length": best.configuration.seq_length,
        "backend": best.target.backend,
    }
    for backend in BACKENDS.values():
        if backend.name != best.target.backend and backend.releases.asked_by is not None:
            job.pop(backend.releases.asked_by)
    return {**job, "symconfig": plan.symconfig_version, "model": _named(plan.model), "cluster": _named(plan.cluster)}


def _named(descriptor: Any) -> dict[str, Any]:
    """Return a descriptor as plain data without schema, aliases and sources; a cluster's levels as {name: level}."""
    data: dict[str, Any] = descriptor.model_dump(mode="json", by_alias=True, exclude_none=True)
    if isinstance(descriptor, ClusterDescriptor):
        data["levels"] = {level["name"]: level for level in data["levels"]}
    return {name: _stated(value) for name, value in data.items() if name not in ("schema", "aliases", "source")}


def _stated(value: Any) -> Any:
    """Return a value without the `source` beside each `value`, recursively."""
    if not isinstance(value, dict):
        return value
    return {name: _stated(item) for name, item in value.items() if not (name == "source" and "value" in value)}


def training(job: Job) -> dict[str, Any]:
    """Return the training schedule as plain data, without the list of derived fields."""
    data: dict[str, Any] = job.training.model_dump(mode="json", by_alias=True, exclude={"derived"})
    return data
