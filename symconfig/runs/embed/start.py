"""The start of a script that trains a plan: it is read, and held against what the process runs on."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, get_args

from symconfig.descriptor.load import load_cluster, zoo_clusters
from symconfig.errors import InputError, Problem
from symconfig.frameworks.backend import NEWEST, Backend, numbers
from symconfig.frameworks.deepspeed.releases import REQUIREMENTS
from symconfig.frameworks.entries import ENTRIES, Entry, Name
from symconfig.plans.file import HasPlan, loaded
from symconfig.plans.plan import Plan
from symconfig.render.summary import nodes
from symconfig.runs.embed.surroundings import Gpu, Surroundings, look, rank
from symconfig.units import GIB

OnMismatch = Literal["fail", "warn", "ignore"]
_log = logging.getLogger("symconfig")

# A GPU whose total torch rounds otherwise, or that keeps a little for itself, is still the same one.
MEMORY_SHARE = 0.98


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
    Raises InputError for an unreadable plan, and MismatchError.
    """
    if on_mismatch not in get_args(OnMismatch):
        raise InputError(
            "wrong value", field="on_mismatch", got=repr(on_mismatch), need=" or ".join(get_args(OnMismatch))
        )
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
    """Return the differences between a process and its plan: ranks, GPU, releases; [] if none.

    Unknown facts are no difference, except for an unknown world size with a plan of several ranks.
    """
    return [*_ranks(plan, surroundings), *_gpu(plan, surroundings.gpu), *_versions(plan, surroundings, entry)]


def _ranks(plan: Plan, surroundings: Surroundings) -> Iterator[Problem]:
    """Yield the mismatch of the world size, or else of the ranks per node."""
    need = plan.best.parallel.world_size
    if surroundings.world_size is None:
        if need > 1:
            yield Problem(
                f"no launcher says how many ranks there are, and the plan is for {need}",
                field="WORLD_SIZE",
                hint='torchrun, or on_mismatch="ignore" to look at the values only',
            )
        return
    if surroundings.world_size != need:
        yield Problem(
            "the plan is for another number of ranks",
            field=surroundings.said_by,
            got=str(surroundings.world_size),
            need=str(need),
            hint=f"symconfig replan PLAN.json --gpus {surroundings.world_size}",
        )
    elif surroundings.local_world_size is not None and surroundings.local_world_size != nodes(plan).gpus:
        yield Problem(
            "the plan is for another number of ranks on a node",
            field="LOCAL_WORLD_SIZE",
            got=str(surroundings.local_world_size),
            need=str(nodes(plan).gpus),
            hint="a cluster descriptor with as many GPUs per node",
        )


def _gpu(plan: Plan, here: Gpu | None) -> Iterator[Problem]:
    """Yield the mismatch of the GPU; nothing if it is unknown or the same product.

    A product that the zoo does not know is accepted if its memory is within 2 % and its compute units are equal.
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
    """Yield the mismatches of the framework's minor release and of the libraries' ranges; not installed ones are
    skipped.
    """
    backend = entry.backend
    yield from _release(plan, backend, surroundings.versions.get(backend.name))
    for name in entry.libraries:
        version, need = surroundings.versions.get(name), REQUIREMENTS[name].removeprefix(name)
        least, below = (numbers(text.lstrip("<>=")) for text in need.split(","))
        if version is not None and not least <= numbers(version) < below:
            yield Problem("the plan's files are for other releases", field=name, got=version, need=need)


def _release(plan: Plan, backend: Backend, installed: str | None) -> Iterator[Problem]:
    """Yield the mismatch of the framework's minor release; nothing if not installed, or if the plan is for another
    framework without selectable releases.
    """
    target, releases = plan.best.target, backend.releases
    curable = releases.asked_by is not None
    if installed is None or (target.backend != backend.name and not curable):
        return
    need = releases.resolve(target.version if target.backend == backend.name else releases.of(plan.job))
    if releases.minor(need) in (numbers(installed)[:2], NEWEST):
        return
    yield Problem(
        "the plan is for another release",
        field=backend.distribution,
        got=f"{releases.prefix}{installed}",
        need=need,
        hint=f"symconfig replan PLAN.json --{str(releases.asked_by).replace('_', '-')} {releases.installed(installed)}"
        if curable
        else None,
    )
