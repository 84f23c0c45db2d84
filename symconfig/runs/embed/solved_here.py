"""A plan solved again for the ranks and the release that a process found: the same on every rank, solved once a node.

The search is deterministic, so ranks that do not share a file system still get the same plan. On one node, the first
rank that holds the lock solves and keeps the answer in the user's cache; the others read it.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from pydantic import BaseModel

from symconfig import resources
from symconfig.errors import InputError
from symconfig.frameworks.known import BACKENDS
from symconfig.plans.digests import digest
from symconfig.plans.file import load_plan
from symconfig.plans.plan import Plan
from symconfig.runs.best import best_plan
from symconfig.runs.embed.surroundings import Surroundings
from symconfig.runs.sweep.planner import planner


def solved_here(plan: Plan, surroundings: Surroundings) -> Plan:
    """Solve again for the ranks and the installed Megatron-LM; all else as the plan's job has it.

    Raises InputError, and InfeasibleError when nothing fits.
    """
    job = plan.job.model_copy(update=_changes(plan, surroundings))
    folder = cache_dir()
    if folder is None:
        return replace(best_plan(plan.model, plan.cluster, job, top=1), history=plan.history)
    # by the planner's own code, too: of another one, the nodes that kept nothing would have another plan
    place = folder / f"{digest([planner(), *map(_plain, (plan.model, plan.cluster, job))])}.json"
    with _locked(place):
        fresh = _kept(place)
        if fresh is None:
            fresh = best_plan(plan.model, plan.cluster, job, top=1)
            # Keep the plan for the node's other ranks; where it cannot be kept, each solves for itself.
            with suppress(InputError):
                resources.write_file(place, fresh.to_json().encode())
    return replace(fresh, history=plan.history)


def cache_dir() -> Path | None:
    """Return the folder of plans that were solved again; None for a user without a home."""
    root = resources.cache_dir()
    return root and root / "solved-again"


def _changes(plan: Plan, surroundings: Surroundings) -> dict[str, object]:
    """Return the fields of the job that change."""
    changes: dict[str, object] = {}
    if surroundings.world_size is not None:
        changes["gpus"] = surroundings.world_size
    backend = BACKENDS[plan.best.target.backend]
    installed, releases = surroundings.versions.get(backend.name), backend.releases
    if installed is not None and releases.minor(plan.best.target.version) != releases.minor(
        here := releases.installed(installed)
    ):
        changes |= releases.fields(here)
    return changes


def _plain(part: BaseModel) -> dict[str, object]:
    return part.model_dump(mode="json", by_alias=True)


def _kept(place: Path) -> Plan | None:
    """Read a kept plan; one that cannot be read, or that somebody changed, is solved again."""
    try:
        return load_plan(place)
    except InputError:
        return None


@contextmanager
def _locked(place: Path) -> Iterator[None]:
    """Lock a place: one process of the node at a time, where the file system has locks."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        lock = resources.appending(place.with_suffix(".lock"))
    except (OSError, InputError):  # a home that cannot be written to: each solves for itself
        yield
        return
    with lock:
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
