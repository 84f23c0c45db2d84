"""What a plan would be if every option of its framework were allowed, but for other layouts of its stages."""

from __future__ import annotations

import time
from dataclasses import replace

from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.job import Job
from symconfig.descriptor.model import ModelDescriptor
from symconfig.frameworks.tables import options
from symconfig.plans.plan import OtherPlans, Plan
from symconfig.solve import candidate, opened
from symconfig.solve.pins import parse
from symconfig.solve.refine import QUICK
from symconfig.solve.run import Progress, facts_of, run

WORTH_SAYING = 0.005  # share of the step that a plan with other options must save to be shown


def faster(
    model: ModelDescriptor, cluster: ClusterDescriptor, job: Job, than: Plan, progress: Progress | None = None
) -> OtherPlans:
    """Return what would be faster than a plan of this job if these options were allowed; nothing where nothing is, or
    where the job's objective is not time.
    """
    fixed, pins = facts_of(model, cluster, job), parse(job.pins)
    closed = {constraint.name for constraint in opened.shut(job, fixed, pins)} - set(job.without)
    if not closed or job.objective != "time":
        return than.beside
    # Other layouts of stages would take most of the time, and give what the gaps say at most.
    free = opened.allowing(job, *(one.name for one in options(job.backend) if one.about != "pipeline_layout"))
    below_s = (1 - WORTH_SAYING) * than.fastest.predicted.step_s
    start = time.perf_counter()
    outcome = run(model, cluster, job=free, top=1, progress=progress, start=start, below_s=below_s, effort=QUICK)
    ranked = outcome.weighed.ranked()
    if not ranked or ranked[0].step_s > below_s:
        return than.beside
    prospect = candidate.described(ranked[0], cluster, job)
    uses = tuple(one.name for one in opened.used(job, fixed, pins, prospect))
    return replace(than.beside, free=prospect, free_uses=uses)
