"""A job's whole lattice, weighed for a person to look at, and what removed the rest of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.job import Job
from symconfig.descriptor.model import ModelDescriptor
from symconfig.solve.run import weigh_all
from symconfig.solve.search import resolved
from symconfig.solve.tally import Rows, Tally


@dataclass(frozen=True, slots=True)
class Refusal:
    """A constraint and the degrees of the points that it refused, [n, 5], columns REFUSED_BY."""

    name: str
    rule: str
    degrees: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Weighing:
    """All evaluated points of a job's lattice, and the constraints with what they refused, the most first.

    budget_bytes: of a device that a plan may use within the job's margin and risk.
    """

    rows: Rows
    refusals: tuple[Refusal, ...]
    budget_bytes: float


def weighing(model: ModelDescriptor, cluster: ClusterDescriptor, job: Job) -> Weighing:
    """Return all points of a job's lattice with their costs, and what constraints refused. Nothing is pruned by bounds.

    Raises InputError for a job that can never run.
    """
    tally = Tally()
    refused = weigh_all(model, cluster, resolved(model, cluster, job), 1, exhaustive=True, tally=tally).refused
    refusals = [
        Refusal(name, refused.reasons[name], np.unique(np.concatenate(each), axis=0))
        for name, each in (refused.degrees or {}).items()
    ]
    refusals.sort(key=lambda one: (-len(one.degrees), one.name))
    return Weighing(tally.rows(), tuple(refusals), tally.budget_bytes)
