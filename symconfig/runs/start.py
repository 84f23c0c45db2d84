"""The start of a script that trains a plan: the plan is read, and compared with the process's ranks, GPU and releases.

No framework is imported. torch is asked only where the script has imported it already: importing it takes seconds.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, get_args

from symconfig.descriptor.load import load_cluster, zoo_clusters
from symconfig.errors import InputError, Problem
from symconfig.frameworks.backend import Backend, numbers
from symconfig.frameworks.deepspeed.behaviour import REQUIREMENTS
from symconfig.frameworks.known import BACKENDS, ENTRIES, Entry, Name
from symconfig.frameworks.megatron.releases import NEWEST
from symconfig.plans.file import HasPlan, loaded
from symconfig.plans.plan import Plan
from symconfig.render.shared import nodes
from symconfig.units import GIB

OnMismatch = Literal["fail", "warn", "ignore"]
_log = logging.getLogger("symconfig")

# A GPU whose total torch rounds otherwise, or that keeps a little for itself, is still the same one.
MEMORY_SHARE = 0.98


# As launchers say them: torchrun, accelerate and the DeepSpeed launcher; Open MPI; MPICH and Intel MPI.
WORLD_SIZE = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
LOCAL_WORLD_SIZE = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
RANK = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
LOCAL_RANK = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
DISTRIBUTIONS = {each.name: each.distribution for each in BACKENDS.values()} | {
    name: name for entry in ENTRIES.values() for name in entry.libraries
}


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as torch describes it. compute_units: streaming multiprocessors, or AMD's compute units."""

    product: str
    memory_bytes: int
    compute_units: int


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a process runs on. world_size, local_world_size: None if no launcher sets it. said_by: source of the
    world size. gpu: None if unknown. versions: installed releases by framework or library.
    """

    world_size: int | None = None
    said_by: str = ""
    local_world_size: int | None = None
    gpu: Gpu | None = None
    versions: Mapping[str, str] = field(default_factory=dict)


def look(world_size: int | None = None, cuda: bool = True) -> Surroundings:
    """Return the ranks, GPU and releases of this process. world_size: overrides the launcher's. cuda: whether to query
    the GPU, which initialises CUDA; else it is None. Raises InputError if a stated number of ranks is none.
    """
    size, said_by = _world_size(world_size)
    local = _whole(LOCAL_WORLD_SIZE)
    return Surroundings(size, said_by, local[0] if local else None, this_gpu() if cuda else None, installed_versions())


def rank() -> int:
    """Return the global rank of this process; 0 if no launcher sets it."""
    return (_whole(RANK, least=0) or (0, ""))[0]


def _world_size(given: int | None) -> tuple[int | None, str]:
    """Return (world size, its source): the argument, else torch.distributed's if initialised, else a launcher's
    variable, else (None, ""). Raises InputError if the argument or variable is no integer from 1 on.
    """
    if given is not None:
        if isinstance(given, bool) or not isinstance(given, int) or given < 1:
            raise InputError("is no number of ranks", field="world_size", got=repr(given), need="1 or more")
        return given, "world_size"
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_world_size()), "torch.distributed"
    return _whole(WORLD_SIZE) or (None, "")


def _whole(names: tuple[str, ...], least: int = 1) -> tuple[int, str] | None:
    """Return (value, name) of the first environment variable that is not blank; None if there is none. Raises
    InputError if it is no whole number from `least` to nine digits.
    """
    for name in names:
        text = os.environ.get(name, "").strip()
        if text:
            if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) >= least):
                raise InputError("is no whole number", field=name, got=text, need=f"{least} or more")
            return int(text), name
    return None


def this_gpu() -> Gpu | None:
    """Return this rank's GPU, by the local rank (GPU 0 if that is unset or too high); initialises CUDA. None if torch
    is not imported or sees no GPU. Raises InputError if the local rank is no number.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "cuda") or not torch.cuda.is_available():
        return None
    local = (_whole(LOCAL_RANK, least=0) or (0, ""))[0]
    properties = torch.cuda.get_device_properties(local if local < torch.cuda.device_count() else 0)
    return Gpu(str(properties.name), int(properties.total_memory), int(properties.multi_processor_count))


def installed_versions() -> dict[str, str]:
    """Return {framework or library: installed release}; those not installed are left out. Megatron-LM's is that of the
    importable checkout or package.
    """
    versions = {}
    for name, distribution in DISTRIBUTIONS.items():
        try:
            versions[name] = metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    from symconfig.verify.megatron_source import installed_core

    core = installed_core()  # also of a checkout on the path, which has no metadata and comes first
    return {**versions, "megatron": core.version} if core is not None else versions


class MismatchError(InputError):
    """The process does not run on what the plan was made for. A check failed: exit code 1."""

    exit_code = 1


def started(
    plan: Plan | HasPlan | str | Path,
    entry: Name,
    world_size: int | None = None,
    on_mismatch: OnMismatch = "fail",
    cuda: bool = True,
) -> Plan:
    """Return the plan that this process trains, after checking it against the process.

    plan: a plan, an object with one, its file or its folder. entry: the module that the script imports. on_mismatch:
    "fail" raises MismatchError with all differences in ranks, GPU and releases, "warn" logs them on rank 0, "ignore"
    checks nothing. world_size: overrides the launcher's. cuda: whether to look at the GPU, which initialises CUDA.
    Raises InputError for an unreadable plan, another on_mismatch, or a wrong number in a launcher's variable.
    """
    if on_mismatch not in get_args(OnMismatch):
        need = " or ".join(get_args(OnMismatch))
        raise InputError("wrong value", field="on_mismatch", got=repr(on_mismatch), need=need)
    ready = loaded(plan)
    if on_mismatch == "ignore":
        return ready
    wrong = mismatches(ready, look(world_size, cuda), ENTRIES[entry])
    if wrong and on_mismatch == "warn":
        for problem in wrong if rank() == 0 else ():
            _log.warning("%s", problem)
    elif wrong:
        raise MismatchError(wrong)
    return ready


def mismatches(plan: Plan, surroundings: Surroundings, entry: Entry) -> list[Problem]:
    """Return the differences between a process and its plan: ranks, GPU, releases; [] if none. Unknown facts are no
    difference, but an unknown world size with several ranks is."""
    return [*_ranks(plan, surroundings), *_gpu(plan, surroundings.gpu), *_versions(plan, surroundings, entry)]


def _ranks(plan: Plan, surroundings: Surroundings) -> Iterator[Problem]:
    """Yield the mismatch of the world size, or else of the ranks per node if that is known. An unknown world size is a
    mismatch if the plan has several ranks.
    """
    need, on_node = plan.best.configuration.world_size, nodes(plan).gpus
    if surroundings.world_size is None:
        if need > 1:
            what = f"no launcher states the number of ranks, and the plan is for {need}"
            hint = 'torchrun, or on_mismatch="ignore" to look at the values only'
            yield Problem(what, field="WORLD_SIZE", hint=hint)
        return
    if surroundings.world_size != need:
        got, hint = str(surroundings.world_size), f"symconfig replan PLAN.json --gpus {surroundings.world_size}"
        what = "the plan is for another number of ranks"
        yield Problem(what, field=surroundings.said_by, got=got, need=str(need), hint=hint)
    elif surroundings.local_world_size not in (None, on_node):
        what, got = "the plan is for another number of ranks on a node", str(surroundings.local_world_size)
        hint = "a cluster descriptor with as many GPUs per node"
        yield Problem(what, field="LOCAL_WORLD_SIZE", got=got, need=str(on_node), hint=hint)


def _gpu(plan: Plan, here: Gpu | None) -> Iterator[Problem]:
    """Yield one problem if the process's GPU is not the plan's product; nothing if it is unknown. A product that no
    cluster of the zoo has is accepted if it has at least 98 % of the plan's GPU memory and as many compute units.
    """
    if here is None or here.product == plan.cluster.gpu.product:
        return
    gpu = plan.cluster.gpu
    known = next((name for name in zoo_clusters() if load_cluster(name).gpu.product == here.product), None)
    less = here.memory_bytes < MEMORY_SHARE * gpu.memory_bytes.value
    if known is None and not less and here.compute_units == gpu.compute_units:
        return
    yield Problem(
        "the plan is for another GPU",
        field="GPU",
        got=f"{here.product} with {here.memory_bytes / GIB:.1f} GiB",
        need=f"{gpu.product} with {gpu.memory_bytes.value / GIB:.1f} GiB",
        hint=f"symconfig plan --cluster {known or 'FILE.yaml'}",
    )


def _versions(plan: Plan, surroundings: Surroundings, entry: Entry) -> Iterator[Problem]:
    """Yield the mismatches of the framework's minor release (with the exceptions of `_release`) and of the libraries
    that `entry` needs, against their required ranges; not installed ones are skipped.
    """
    backend = entry.backend
    yield from _release(plan, backend, surroundings.versions.get(backend.name))
    for name in entry.libraries:
        version, need = surroundings.versions.get(name), REQUIREMENTS[name].removeprefix(name)
        least, below = (numbers(text.lstrip("<>=")) for text in need.split(","))
        if version is not None and not least <= numbers(version) < below:
            yield Problem("the plan's files are for other releases", field=name, got=version, need=need)


def _release(plan: Plan, backend: Backend, installed: str | None) -> Iterator[Problem]:
    """Yield the mismatch of the framework's minor release; a plan for the development branch (NEWEST) matches any.
    Nothing if the framework is not installed, or if the plan is for another framework and no job field selects this
    one's release (else the release that the job selects is compared).
    """
    target, releases = plan.best.target, backend.releases
    curable = releases.asked_by is not None
    if installed is None or (target.backend != backend.name and not curable):
        return
    need = releases.resolve(target.version if target.backend == backend.name else releases.of(plan.job))
    if releases.minor(need) in (numbers(installed)[:2], NEWEST):
        return
    option = f"--{str(releases.asked_by).replace('_', '-')} {releases.installed(installed)}"
    hint, got = f"symconfig replan PLAN.json {option}" if curable else None, f"{releases.prefix}{installed}"
    yield Problem("the plan is for another release", field=backend.distribution, got=got, need=need, hint=hint)
