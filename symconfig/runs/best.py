"""A job's best plan: solved for the target that the job names, or for its framework's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.job import Job
from symconfig.descriptor.model import ModelDescriptor
from symconfig.plans.plan import Plan
from symconfig.render import target_of
from symconfig.runs.adapted import adapted
from symconfig.runs.recipes.near import near_recipe
from symconfig.solve.answer import answer


def best_plan(
    model: ModelDescriptor,
    cluster: ClusterDescriptor,
    job: Job,
    *,
    top: int,
    progress: Callable[[str, float], None] | None = None,
) -> Plan:
    """Solve a job. Raises InputError for what can never run, InfeasibleError where nothing fits or can be told."""
    model, job = adapted(model, job)
    plan = answer(model, cluster, job, target_of(model, job), top=top, progress=progress)
    if plan.job.backend != "megatron":
        return plan
    return replace(plan, beside=replace(plan.beside, recipe=near_recipe(plan)))
