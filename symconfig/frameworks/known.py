"""Every framework by name, in one table: each fact about it that another room's answer depends on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from symconfig.cost.machine import LOW_PRECISION
from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.job import Backend as BackendName
from symconfig.descriptor.job import Job
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import FUSED_TARGETS
from symconfig.frameworks.backend import Backend, Kind, Medium, Releases
from symconfig.frameworks.constraint import Fixed, flash
from symconfig.frameworks.deepspeed import adapters as of_transformers
from symconfig.frameworks.deepspeed import behaviour as deepspeed
from symconfig.frameworks.deepspeed.behaviour import DEEPSPEED_RELEASE
from symconfig.frameworks.deepspeed.constraints import DEEPSPEED as DEEPSPEED_CONSTRAINTS
from symconfig.frameworks.deepspeed.constraints import OPTIONS as DEEPSPEED_OPTIONS
from symconfig.frameworks.fsdp import behaviour as fsdp
from symconfig.frameworks.fsdp.constraints import FSDP as FSDP_CONSTRAINTS
from symconfig.frameworks.megatron import adapters as of_bridge
from symconfig.frameworks.megatron import behaviour as megatron
from symconfig.frameworks.megatron import flags
from symconfig.frameworks.megatron.constraints import MEGATRON as MEGATRON_CONSTRAINTS
from symconfig.frameworks.megatron.maturity import OPTIONS as MEGATRON_OPTIONS
from symconfig.frameworks.megatron.releases import between, megatron_release
from symconfig.plans.configuration import ZeroStage
from symconfig.plans.plan import Plan

# Megatron-LM's distributed optimizer writes its own buffers from here on, unless --dist-ckpt-optim-fully-reshardable
# asks for whole tensors; before, pieces of tensors (training/checkpointing.py, _build_sharded_state_dict_metadata).
BUFFERS_SINCE = "core_v0.15.0"
FSDP_SINCE = "core_v0.14.0"
TORCH_RELEASE = "2.13.0"


def megatron_optimizer(zero: ZeroStage, release: str) -> str:
    """Return how Megatron-LM's `torch_dist` stores the optimizer by default at a ZeRO stage; `whole` for stage 0."""
    if zero == 0:
        return "whole"
    return "dp_reshardable" if between(release, BUFFERS_SINCE, None) else "fully_sharded_model_space"


def _megatron_writes(zero: ZeroStage, release: str) -> Kind:
    """Return the kind of checkpoint that a run of Megatron-LM with the rendered options writes at a ZeRO stage."""
    if zero >= 2 and between(release, FSDP_SINCE, None):
        return Kind("fsdp_dtensor")
    return Kind("torch_dist", megatron_optimizer(zero, release))


_MEGATRON = Backend(
    name="megatron",
    label="Megatron-LM",
    program="Megatron-LM's pretrain_gpt.py",
    distribution="megatron-core",
    releases=Releases(
        pinned="core_v0.19.0",
        asked_by="megatron_version",
        prefix="core_v",
        order=lambda release: (flags.versions().index(flags.resolve(release)),),
        minor=megatron_release,
        resolve=flags.resolve,
    ),
    told_by=Medium.OPTIONS,
    usual=megatron.MEGATRON,
    constraints=MEGATRON_CONSTRAINTS,
    options=MEGATRON_OPTIONS,
    low_precisions=LOW_PRECISION,
    adapters=False,
    refused_adapters=lambda model, target=None: tuple(of_bridge.refusals(model, target)),
    fuses=lambda model: frozenset(FUSED_TARGETS),  # transformer/attention.py and mlp.py: linear_qkv, linear_fc1
    gradient_buckets=True,
    pads_vocabulary=True,
    # training/checkpointing.py, get_rng_state
    generators_by_replica=lambda release: flags.resolve(release).startswith("core_v0.16"),
    writes=_megatron_writes,
    names_release=False,
)
_DEEPSPEED = Backend(
    name="deepspeed",
    label="DeepSpeed",
    program="DeepSpeed's train.py",
    distribution="deepspeed",
    releases=Releases(pinned=DEEPSPEED_RELEASE),
    told_by=Medium.JSON,
    usual=deepspeed.DEEPSPEED,
    constraints=DEEPSPEED_CONSTRAINTS,
    options=DEEPSPEED_OPTIONS,
    low_precisions=(),
    adapters=True,
    refused_adapters=lambda model, target=None: tuple(of_transformers.refusals(model)),
    fuses=of_transformers.fuses,
    gradient_buckets=False,
    pads_vocabulary=False,
    generators_by_replica=lambda release: False,
    writes=lambda zero, release: Kind("deepspeed"),
    names_release=True,  # ds_version in every file of states (runtime/engine.py, _save_checkpoint)
)
_FSDP = replace(
    _DEEPSPEED,
    name="fsdp",
    label="PyTorch FSDP",
    program="a script with PyTorch's FSDP",
    distribution="torch",
    releases=Releases(pinned=TORCH_RELEASE),
    told_by=Medium.CODE,
    usual=fsdp.FSDP,
    constraints=FSDP_CONSTRAINTS,
    adapters=False,
    writes=lambda zero, release: Kind("fsdp"),
    names_release=False,
)
# What plans are made for, the usual one first.
BACKENDS: Mapping[str, Backend] = {backend.name: backend for backend in (_MEGATRON, _DEEPSPEED, _FSDP)}
# What runs are measured with, in the cost model's terms.
FRAMEWORKS = {backend.usual.name: backend.usual for backend in BACKENDS.values()}
# With layers of their own, where they usually run another library's (`Framework.engine`).
OWN_LAYERS = {megatron.MEGATRON_LOCAL.name: megatron.MEGATRON_LOCAL}

Name = BackendName | Literal["transformers"]


@dataclass(frozen=True, slots=True)
class Entry:
    """A module that a training script imports, such as `symconfig.transformers`.

    backend: the framework that its values are for. libraries: those through which the script runs it, whose releases
    the written files bound.
    """

    backend: Backend
    libraries: tuple[str, ...] = ()


ENTRIES: Mapping[Name, Entry] = {
    **{backend.name: Entry(backend) for backend in BACKENDS.values()},
    "transformers": Entry(BACKENDS["deepspeed"], ("transformers",)),
}


def entry_of(target: str, plan: Plan) -> Name:
    """Return the name of the entry whose installed release is checked.

    It is the target itself if it is an entry, else the framework that the plan is for.
    """
    return next((name for name in ENTRIES if name == target), plan.best.target.backend)


_WITHOUT_PREDICTION = "trained without its layers of multi-token prediction, which Transformers does not build"


def built(model: ModelDescriptor, backend: str) -> ModelDescriptor:
    """Return the model as a framework builds it; the model itself for Megatron-LM, or without multi-token prediction.

    Transformers' classes leave multi-token prediction out: for other frameworks a copy without it, and with a note.
    """
    if not model.num_nextn_predict_layers or BACKENDS[backend].told_by is Medium.OPTIONS:
        return model
    return model.model_copy(update={"num_nextn_predict_layers": 0, "notes": (*model.notes, _WITHOUT_PREDICTION)})


def facts(backend: str, model: ModelDescriptor, architecture: str, attention: str | None = None, **more: Any) -> Fixed:
    """Return the facts that constraints read, of a model on a GPU architecture; what is not given stays UNKNOWN.

    attention: the kernel that the job asks for. more: other facts by name; of an Optimizer the name and whether it is
    narrow. Raises KeyError for an unknown backend.
    """
    runs_flash = flash(architecture, attention, FRAMEWORKS[backend].engine)
    return Fixed.of(model, runs_flash, architecture=architecture, backend=backend, **more)


def facts_of(model: ModelDescriptor, cluster: ClusterDescriptor, job: Job, backend: str | None = None) -> Fixed:
    """Return the facts of a job's model and cluster that constraints read. backend: instead of the job's.

    Of a job without reinforcement learning `samples` is 0, and without preferences `per_example` is 1.
    """
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
