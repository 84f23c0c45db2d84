"""A job on a cluster of two kinds of GPUs: the plan over both, and what either kind would do by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from symconfig.descriptor.cluster import MixedCluster, Share
from symconfig.descriptor.job import Job
from symconfig.descriptor.model import ModelDescriptor
from symconfig.errors import InfeasibleError, Problem, Problems, SymconfigError
from symconfig.plans.mixed import Alone, MixedCandidate, MixedPlan, hosted
from symconfig.render import megatron, target_of
from symconfig.runs.best import prepared, solved, supported
from symconfig.solve.extras import check_pins
from symconfig.solve.mixed.across import described
from symconfig.solve.mixed.search import search
from symconfig.solve.pins import DEGREES

_OF_BOTH = (*DEGREES, "layout")  # pins
Progress = Callable[[str, float], None]


def mixed_plan(
    model: ModelDescriptor,
    cluster: MixedCluster,
    job: Job,
    *,
    top: int,
    writes: bool = False,
    progress: Progress | None = None,
) -> MixedPlan:
    """Return the plan of a job over both kinds of GPUs, and the best of each kind by itself, without the job's pins of
    degrees and layout (`why` if it has none). Of the `top` fastest candidates those that Megatron-LM cannot express are
    dropped. writes: files are wanted, see `best.best_plan`. Raises InputError for jobs that cannot run over two kinds,
    UnsupportedError for models that the target lacks, InfeasibleError if nothing fits or no candidate can be expressed.
    """
    Problems(_refused(model, cluster, job)).check()
    job = job.model_copy(update={"gpus": cluster.gpus})
    first = cluster.shares[0].cluster
    model, job = prepared(model, first, job)
    Problems(_refused(model, cluster, job)).check()  # the next target that can be told the model is another one
    job = supported(model, first, job, writes=writes)
    mix = search(model, cluster, job, progress)
    job = mix.jobs[0].model_copy(update={"cluster": cluster.name})
    every = [described(placed, cluster, mix.jobs) for placed in mix.ranked[:top]]
    check_pins(job, (each.candidate for each in every))
    able, reasons = [], list[Problem]()
    for each in every:
        wrong = _refusals(model, job, each)
        reasons += wrong
        able += [] if wrong else [each]
    if not able:
        raise InfeasibleError(list(dict.fromkeys(reasons)))
    one, other = (_alone(model, share, job, progress) for share in cluster.shares)
    return MixedPlan(
        model=model,
        cluster=cluster,
        job=job,
        best=able[0],
        alternatives=tuple(able[1:]),
        alone=(one, other),
        candidates=mix.candidates,
        feasible=mix.feasible,
        laid=mix.laid,
    )


def _refusals(model: ModelDescriptor, job: Job, each: MixedCandidate) -> list[Problem]:
    """Return why Megatron-LM cannot run a candidate: what the target refuses of either kind's plan, else one problem
    with the options in which the kinds' commands differ; [] if it can.
    """
    plans, target = [hosted(model, job, each, host) for host in each.hosts], target_of(model, job)
    if wrong := [problem for plan in plans for problem in target.refusals(plan)]:
        return wrong
    one, other = map(megatron.arguments, plans)
    differ = sorted(set(one) ^ set(other))
    what = "the kinds would be started with different options, and all ranks need the same"
    return [Problem(what, field="cluster", got=" ".join(differ))] if one != other else []


def _alone(model: ModelDescriptor, share: Share, job: Job, progress: Progress | None) -> Alone:
    """Return the best plan for one kind's GPUs, without the job's pins of degrees and layout; with `why` instead if the
    search fails.
    """
    pins = {name: value for name, value in job.pins.items() if name not in _OF_BOTH}
    own = job.model_copy(update={"gpus": share.gpus, "cluster": share.cluster.name, "pins": pins})
    try:
        plan = solved(model, share.cluster, own, top=1, progress=progress)
    except SymconfigError as error:
        return Alone(share, why=error.problems[0].what)
    return Alone(share, plan.fastest)


def _refused(model: ModelDescriptor, cluster: MixedCluster, job: Job) -> Iterator[Problem]:
    """Yield a problem for each of: `gpus` that are neither "auto" nor those of both kinds together, another backend
    (else another target) than Megatron-LM, and RL or adapters.
    """
    if job.gpus not in ("auto", cluster.gpus):
        what = "must be the GPUs of both kinds together"
        yield Problem(what, field="gpus", got=str(job.gpus), need=str(cluster.gpus))
    only = "only Megatron-LM's pipelines go over two kinds of GPUs"
    if job.backend != megatron.NAME:
        yield Problem(only, field="backend", got=job.backend, need=megatron.NAME)
    elif (target := target_of(model, job).name) != megatron.NAME:
        yield Problem(only, field="target", got=target, need=megatron.NAME)
    if job.rl is not None or job.wants_adapters:
        yield Problem("goes over one kind of GPUs only", field="task", got=str(job.task), need="pretrain or sft")
