"""What this process was started on: how many ranks, how many of them on its node, which GPU, which frameworks.

Nothing is imported for it. torch is asked only where the script has imported it already: importing it takes seconds,
and whoever trains has done so. Frameworks tell their versions by what is installed, without being imported.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

from symconfig.errors import InputError
from symconfig.frameworks.entries import ENTRIES
from symconfig.frameworks.known import BACKENDS

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
    """Return the ranks, GPU and releases of this process.

    world_size: overrides the launcher's. cuda: whether to query the GPU, which initialises CUDA. Raises InputError if a
    count is no number.
    """
    size, said_by = _world_size(world_size)
    local = _whole(LOCAL_WORLD_SIZE)
    return Surroundings(size, said_by, local[0] if local else None, _gpu() if cuda else None, _versions())


def rank() -> int:
    """Return the global rank of this process; 0 if no launcher sets it."""
    return (_whole(RANK, least=0) or (0, ""))[0]


def _world_size(given: int | None) -> tuple[int | None, str]:
    """Return (world size, its source): the argument, torch.distributed, a launcher's variable, or (None, "")."""
    if given is not None:
        if isinstance(given, bool) or not isinstance(given, int) or given < 1:
            raise InputError("is no number of ranks", field="world_size", got=repr(given), need="1 or more")
        return given, "world_size"
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_world_size()), "torch.distributed"
    return _whole(WORLD_SIZE) or (None, "")


def _whole(names: tuple[str, ...], least: int = 1) -> tuple[int, str] | None:
    """Return (value, name) of the first environment variable that is set; None if none is. Raises InputError if it
    is no number >= `least`.
    """
    for name in names:
        text = os.environ.get(name, "").strip()
        if text:
            if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) >= least):
                raise InputError("is no whole number", field=name, got=text, need=f"{least} or more")
            return int(text), name
    return None


def _gpu() -> Gpu | None:
    """Return this rank's GPU; None if torch is not imported or has none. Initialises CUDA."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "cuda") or not torch.cuda.is_available():
        return None
    local = (_whole(LOCAL_RANK, least=0) or (0, ""))[0]
    properties = torch.cuda.get_device_properties(local if local < torch.cuda.device_count() else 0)
    return Gpu(str(properties.name), int(properties.total_memory), int(properties.multi_processor_count))


def _versions() -> dict[str, str]:
    """Return the installed release of each framework and library; those not installed are left out."""
    versions = {}
    for name, distribution in DISTRIBUTIONS.items():
        try:
            versions[name] = metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    from symconfig.verify.megatron_source import installed_core

    core = installed_core()  # also of a checkout on the path, which has no metadata and comes first
    return {**versions, "megatron": core.version} if core is not None else versions
