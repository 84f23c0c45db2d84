"""What a framework's table of constraints refuses in a plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from symconfig.errors import Problem
from symconfig.frameworks.backend import Medium
from symconfig.frameworks.constraint import Constraint, failing
from symconfig.frameworks.known import BACKENDS, facts
from symconfig.frameworks.tables import constraints
from symconfig.plans.columns import Columns
from symconfig.plans.plan import Plan


@dataclass(frozen=True, slots=True)
class Refused:
    """A constraint that a plan fails, in the words of one plan."""

    constraint: Constraint
    sentence: str
    got: str | None
    pins: tuple[str, ...]

    def problem(self) -> Problem:
        """Return the sentence with the pins that avoid it."""
        one = self.constraint
        return Problem(self.sentence, field=one.about, got=self.got, hint=one.hint, pins=self.pins)


def of_fsdp(plan: Plan) -> bool:
    """Tell whether a plan was made for programs around PyTorch's FSDP."""
    return BACKENDS[plan.best.target.backend].told_by is Medium.CODE


def refused(plan: Plan, backend: str, release: str) -> Iterator[Refused]:
    """Yield what a release of a framework refuses in a plan, in the table's order."""
    cluster = plan.cluster
    job = plan.job
    fixed = facts(backend, plan.model, cluster.gpu.architecture, job.attention, cluster.joined_gpus, job.optimizer)
    point = Columns.of(plan.best)
    for one in failing(constraints(backend, release), fixed, point):
        got = None if one.got is None else one.got.format(f=fixed, p=point)
        yield Refused(one, one.sentence_at(fixed, point), got, one.avoiding(point))
