"""A job's whole lattice, weighed for a person to look at."""

from __future__ import annotations

from dataclasses import dataclass

from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.job import Job
from symconfig.descriptor.model import ModelDescriptor
from symconfig.solve.run import weigh_all
from symconfig.solve.search import resolved
from symconfig.solve.tally import Refusal, Rows, Tally


@dataclass(frozen=True, slots=True)
class Weighing:
    """What was weighed of a job's lattice, and what was refused. budget_bytes: of a device, that a plan may use at the
    job's margin and risk.
    """

    rows: Rows
    refusals: tuple[Refusal, ...]
    budget_bytes: float


def weighing(model: ModelDescriptor, cluster: ClusterDescriptor, job: Job) -> Weighing:
    """Weigh the whole lattice of a job, without the bounds that let a search leave most of it out.

    Raises InputError for what can never run.
    """
    tally = Tally()
    weigh_all(model, cluster, resolved(model, cluster, job), 1, exhaustive=True, tally=tally)
    return Weighing(tally.rows(), tally.refusals(), tally.budget_bytes)
