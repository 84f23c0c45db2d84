"""A person's files with the values of a plan in them, with all that a person should know before they start the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from symconfig.errors import InputError
from symconfig.existing.adapt.files import adapted, opened, was
from symconfig.existing.adapt.outcome import Adapted
from symconfig.existing.audit.judge import judge
from symconfig.existing.launch.reading import Reading
from symconfig.plans.plan import Plan
from symconfig.runs.adapting.fate import Fate, fates


@dataclass(frozen=True, slots=True, kw_only=True)
class Adaptation(Adapted):
    """plan: whose values are in the files. fates: what becomes of each checkpoint that the files name."""

    plan: Plan
    fates: tuple[Fate, ...]

    def to_dict(self, written: bool) -> dict[str, Any]:
        """Return the contract of --json."""
        return {
            **Adapted.to_dict(self, written),
            "plan": {"best": self.plan.best.to_dict()},
            "checkpoints": [fate.to_dict() for fate in self.fates],
        }


def adaptation(source: str, plan: Plan, variables: Mapping[str, str], extra: Sequence[str] = ()) -> Adaptation:
    """Adapt files to the plan.

    Raises InputError where the files cannot be read, or are of another model or framework than the plan.
    """
    old = ran(opened(source, variables, extra).reading, plan)
    outcome = adapted(source, plan, variables, extra)
    values = {field.name: getattr(outcome, field.name) for field in fields(Adapted)}
    return Adaptation(**values, plan=plan, fates=fates(outcome, plan, old))


def ran(reading: Reading, plan: Plan) -> Plan | None:
    """Return the plan of the run as the files say it, of the same model and schedule.

    None where they say none that could be.
    """
    try:
        old = judge(was(reading, plan), plan.cluster, plan.job.limits).plan
    except InputError:
        return None
    return replace(old, model=plan.model, job=old.job.model_copy(update={"training": plan.job.training}))
