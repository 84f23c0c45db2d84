"""A job solved to an answer: the best plan, and it is one that its own framework can be told."""

from __future__ import annotations

from collections.abc import Callable

from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.job import Job
from symconfig.descriptor.model import ModelDescriptor
from symconfig.plan import Plan
from symconfig.targets import BRIDGE_MEGATRON

TOP = 5  # candidates that are ranked where nobody says how many

def answer(
    model: ModelDescriptor,
    cluster: ClusterDescriptor,
    job: Job,
    *,
    top: int,
    progress: Callable[[str, float], None] | None = None,
) -> Plan:
    """The plan for this job. An adapter whose job names no framework runs with DeepSpeed; with Megatron, on the release
    that Megatron-Bridge goes with, unless the job names one.

    Raises InputError for what can never run, InfeasibleError when nothing fits or the framework cannot express it.
    """
    from symconfig.render import own_target
    from symconfig.solve.search import search

    plan = search(model, cluster, job.model_copy(update=_assumed(model, job)), top=top, progress=progress)
    _TOLD[own_target(plan)](plan)
    return plan


def _assumed(model: ModelDescriptor, job: Job) -> dict[str, str]:
    """What a job with an adapter leaves unsaid."""
    if model.adapter is None:
        return {}
    if "backend" not in job.model_fields_set:
        return {"backend": "deepspeed"}
    if job.backend == "megatron" and "megatron_version" not in job.model_fields_set:
        return {"megatron_version": BRIDGE_MEGATRON[-1]}
    return {}


def _bridge(plan: Plan) -> object:
    from symconfig.render.bridge_config import sections

    return sections(plan)


# What each framework of a plan is told; raises InfeasibleError with all that it cannot be.
_TOLD: dict[str, Callable[[Plan], object]] = {
    "megatron": Plan.megatron_args, "deepspeed": Plan.deepspeed_config, "bridge": _bridge,
}  # fmt: skip
