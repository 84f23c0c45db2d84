"""The comparison of a plan that takes a search of its own, made where somebody asks why it is the first."""

from __future__ import annotations

from dataclasses import replace

from symconfig.frameworks.tables import options
from symconfig.plans.plan import Plan
from symconfig.solve import candidate, experimental
from symconfig.solve.pins import parse
from symconfig.solve.run import facts_of, run

WORTH_SAYING = 0.005  # share of the score that a plan with other options must save to be shown


def with_every_option(plan: Plan) -> Plan:
    """Return the plan with the best candidate if all experimental options (but pipeline layouts) were allowed, in
    `beside.free`.

    Runs a search. Unchanged if that saves less than WORTH_SAYING, for objectives other than time, and for steps with
    phases.
    """
    if plan.steps or plan.job.objective != "time":
        return plan
    model, cluster = plan.model, plan.cluster
    update = {"gpus": plan.best.parallel.world_size, "pins": {**plan.job.pins, **plan.search.narrowed}}
    job = plan.job.model_copy(update=update)
    fixed, pins = facts_of(model, cluster, job), parse(job.pins)
    closed = {constraint.name for constraint in experimental.excluded(job, fixed, pins)} - set(job.without)
    if not closed:
        return plan
    # Other layouts of stages would take most of the time, and give what the gaps say at most.
    free = experimental.allowing(job, *(one.name for one in options(job.backend) if one.about != "pipeline_layout"))
    standings = [one.standing for one in (plan.best, *plan.alternatives)]
    scores = [one.score_s for one in standings if one is not None]
    below_s = (1 - WORTH_SAYING) * min(scores, default=plan.best.predicted.step_s)
    ranked = run(model, cluster, job=free, top=1, progress=None, start=0.0, below_s=below_s).weighed.ranked()
    if not ranked:
        return plan
    best = candidate.described(ranked[0], cluster, job)
    uses = tuple(one.name for one in experimental.used(job, fixed, pins, best))
    return replace(plan, beside=replace(plan.beside, free=best, free_uses=uses))
