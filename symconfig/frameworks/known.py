"""Every framework by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from symconfig.cost.framework import Framework
from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.job import Job
from symconfig.descriptor.model import ModelDescriptor
from symconfig.frameworks.backend import Backend, Medium
from symconfig.frameworks.deepspeed.backend import DEEPSPEED
from symconfig.frameworks.facts import Fixed, flash
from symconfig.frameworks.fsdp.backend import FSDP
from symconfig.frameworks.megatron.backend import MEGATRON
from symconfig.frameworks.megatron.behaviour import MEGATRON_LOCAL

# What plans are made for, the usual one first.
BACKENDS: Mapping[str, Backend] = {backend.name: backend for backend in (MEGATRON, DEEPSPEED, FSDP)}
# What runs are measured with, in the cost model's terms.
FRAMEWORKS = {backend.usual.name: backend.usual for backend in BACKENDS.values()}

# With layers of their own, where they usually run another library's (`Framework.engine`).
OWN_LAYERS = {MEGATRON_LOCAL.name: MEGATRON_LOCAL}


_WITHOUT_PREDICTION = "trained without its layers of multi-token prediction, which Transformers does not build"


def built(model: ModelDescriptor, backend: str) -> ModelDescriptor:
    """Return the model as a framework builds it; the model itself for Megatron-LM.

    For others, if it has multi-token prediction, a copy without, and with a note: Transformers' classes leave it out.
    """
    if not model.num_nextn_predict_layers or BACKENDS[backend].told_by is Medium.OPTIONS:
        return model
    return model.model_copy(update={"num_nextn_predict_layers": 0, "notes": (*model.notes, _WITHOUT_PREDICTION)})


def facts(backend: str, model: ModelDescriptor, architecture: str, attention: str | None = None, **more: Any) -> Fixed:
    """Return the facts that constraints read, of a model on a GPU architecture; what is not given stays UNKNOWN.

    attention: the kernel that the job asks for. more: as in `Fixed.of`. KeyError: unknown backend.
    """
    runs_flash = flash(architecture, attention, FRAMEWORKS[backend].engine)
    return Fixed.of(model, runs_flash, architecture=architecture, backend=backend, **more)


def facts_of(model: ModelDescriptor, cluster: ClusterDescriptor, job: Job, backend: str | None = None) -> Fixed:
    """Return the facts of a job's model and cluster that constraints read. backend: instead of the job's."""
    loss = None if job.preference is None else job.preference.means
    return facts(
        backend or job.backend,
        model,
        cluster.gpu.architecture,
        job.attention,
        joined=cluster.joined_gpus,
        optimizer=job.optimizer,
        pretrained=job.task_of(model) != "pretrain",
        samples=0 if job.rl is None else job.rl.batch,
        per_example=1 if loss is None else loss.sequences,
        reads_others=loss is not None and bool(loss.read),
        packed=job.sequences is not None and job.sequences.batching == "packed",
    )


def usual_backend(adapted: bool) -> Backend:
    """Return the framework of a job that names none: the first one, with adapters the first that trains them itself."""
    return next(each for each in BACKENDS.values() if each.adapters or not adapted)


def alone(framework: Framework) -> Framework:
    """Return the framework with its usual overlaps, so without that of `beside_another`."""
    return replace(framework, hide=FRAMEWORKS[framework.name].hide)
