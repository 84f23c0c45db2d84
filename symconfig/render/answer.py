"""A job solved to an answer: the best plan, and it is one that its own framework can be told."""

from __future__ import annotations

from collections.abc import Callable

from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.job import Job
from symconfig.descriptor.model import ModelDescriptor
from symconfig.plan import Plan

TOP = 5  # candidates that are ranked where nobody says how many

def answer(
    model: ModelDescriptor,
    cluster: ClusterDescriptor,
    job: Job,
    *,
    top: int,
    progress: Callable[[str, float], None] | None = None,
) -> Plan:
    """The plan for this job. An adapter whose job names no framework runs with DeepSpeed.

    Raises InputError for what can never run, InfeasibleError when nothing fits or the framework cannot express it.
    """
    from symconfig.solve.search import search

    assumed = {"backend": "deepspeed"} if model.adapter is not None and "backend" not in job.model_fields_set else {}
    plan = search(model, cluster, job.model_copy(update=assumed), top=top, progress=progress)
    if plan.best.target.backend == "megatron":
        plan.megatron_args()
    else:
        plan.deepspeed_config()
    return plan
