"""The run of a person's files before they change, as a plan."""

from __future__ import annotations

from dataclasses import replace

from symconfig.errors import InputError
from symconfig.existing.adapt.files import was
from symconfig.existing.audit.judge import judge
from symconfig.existing.launch.reading import Reading
from symconfig.plans.plan import Plan


def ran(reading: Reading, plan: Plan) -> Plan | None:
    """Return the plan of the run as the files say it, of the same model and schedule.

    None where they say none that could be.
    """
    try:
        old = judge(was(reading, plan), plan.cluster, plan.job.limits).plan
    except InputError:
        return None
    return replace(old, model=plan.model, job=old.job.model_copy(update={"training": plan.job.training}))
