"""What a plan would be if every option of its framework were allowed, but for other layouts of its stages."""

from __future__ import annotations

from dataclasses import replace

from symconfig.frameworks.tables import options
from symconfig.plans.plan import OtherPlans, Plan
from symconfig.solve import candidate, opened
from symconfig.solve.pins import parse
from symconfig.solve.run import facts_of, run

WORTH_SAYING = 0.005  # share of the score that a plan with other options must save to be shown


def faster(than: Plan) -> OtherPlans:
    """Return what is beside a plan, with what would be better if every option of its framework were allowed; as it is
    where nothing is, or where the job's objective is not time.
    """
    model, cluster = than.model, than.cluster
    narrowed = {"gpus": than.best.parallel.world_size, "pins": {**than.job.pins, **than.search.narrowed}}
    job = than.job.model_copy(update=narrowed)
    fixed, pins = facts_of(model, cluster, job), parse(job.pins)
    closed = {constraint.name for constraint in opened.shut(job, fixed, pins)} - set(job.without)
    if not closed or job.objective != "time":
        return than.beside
    # Other layouts of stages would take most of the time, and give what the gaps say at most.
    free = opened.allowing(job, *(one.name for one in options(job.backend) if one.about != "pipeline_layout"))
    standings = [one.standing for one in (than.best, *than.alternatives)]
    below_s = (1 - WORTH_SAYING) * min(
        (one.score_s for one in standings if one is not None), default=than.best.predicted.step_s
    )
    outcome = run(model, cluster, job=free, top=1, progress=None, start=0.0, below_s=below_s)
    ranked = outcome.weighed.ranked()
    if not ranked:
        return than.beside
    prospect = candidate.described(ranked[0], cluster, job)
    uses = tuple(one.name for one in opened.used(job, fixed, pins, prospect))
    return replace(than.beside, free=prospect, free_uses=uses)
