"""The degree search: the whole lattice weighed in NumPy by the formula for the schedule, the best of it simulated."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from math import log2
from typing import Any

from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.job import Job
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.task import WITH_OR_WITHOUT
from symconfig.errors import InfeasibleError, Problem, Problems, SymconfigError
from symconfig.frameworks.constraint import NO_FLASH
from symconfig.frameworks.known import BACKENDS, facts_of
from symconfig.graph.model import sequence
from symconfig.install import VERSION
from symconfig.plans import TOP, pipeline_layout
from symconfig.plans.plan import Candidate, MeasuredRun, Opened, OtherPlans, Plan, Search, Standing
from symconfig.solve import candidate
from symconfig.solve.choice import Incumbents, complexity, ranked, unusual
from symconfig.solve.extras import allowing, check_pins, needed_options, unknown_options, used_experimental
from symconfig.solve.infeasible import infeasible
from symconfig.solve.interval import MEMORY_RISK, NO_LIMIT
from symconfig.solve.limits import Limits
from symconfig.solve.pins import parse
from symconfig.solve.prospect import Prospect, Setup
from symconfig.solve.run import Progress, fits, run, space, too_large, weigh_all, with_defaults
from symconfig.solve.space import divisors
from symconfig.solve.split import laid_out, most_chunks, plainest
from symconfig.solve.usual import UNPROVEN, Best, measured_runs, real_data_ratios


def search(
    model: ModelDescriptor,
    cluster: ClusterDescriptor,
    job: Job,
    *,
    top: int = TOP,
    progress: Progress | None = None,
    like: Setup | None = None,
) -> Plan:
    """Return the fastest plan that fits, with up to `top` - 1 alternatives from other families of degrees.

    Of plans within 2 % of the best score the plainest is first. If nothing fits, the job's limits are relaxed step by
    step (`relaxations`); the plan's job keeps the given ones. gpus "auto" gives the fewest GPUs on which something fits
    (like is ignored). like: a configuration whose options and framework are the plain ones; None: the framework's on
    this GPU. Raises InputError for a job that can never run, and InfeasibleError if nothing fits, which names the
    tightest constraint, or a candidate misses a pin.
    """
    start = time.perf_counter()
    job = resolved(model, cluster, job)
    if job.gpus == "auto":
        return _fewest(model, cluster, job, top, progress)

    weighed = None
    for relaxed in relaxations(model, cluster, job):
        weighed = None
        if too_large(model, cluster, relaxed, like):
            continue
        weighed = run(model, cluster, relaxed, top, progress, like)
        if weighed.families:
            return _plan(model, cluster, job, weighed, top, time.perf_counter() - start)
    weighed = weighed or weigh_all(model, cluster, relaxed, 1, progress, like=like)
    raise infeasible(model, cluster, relaxed, weighed)


def relaxations(model: ModelDescriptor, cluster: ClusterDescriptor, job: Job) -> Iterator[Job]:
    """Yield the job, then copies with its limits relaxed step by step.

    First without the memory risk limit (unless it has none), then the job with the experimental options that are
    needed, found by searches, then with both. If nothing fits with both, only that follows, with all options.
    """
    limits = job.limits.model_copy(update={MEMORY_RISK: NO_LIMIT})
    every = [job, *([] if job.limits.memory_risk >= NO_LIMIT else [job.model_copy(update={"limits": limits})])]
    yield from every
    fixed = facts_of(model, cluster, job)
    most = allowing(every[-1], *needed_options(job, fixed, lambda trial: False))
    if most == every[-1]:  # none is closed
        return
    if not fits(model, cluster, most):
        yield most
        return
    for one in every:
        yield allowing(one, *needed_options(one, fixed, lambda trial: fits(model, cluster, trial)))


def resolved(model: ModelDescriptor, cluster: ClusterDescriptor, job: Job) -> Job:
    """Return the job with task, precision, sequence length and training filled in (`with_defaults`).

    Raises InputError with every contradiction between job, cluster and model: number of GPUs, task and adapter,
    attention, experimental options, pinned stages and layout. Raises InfeasibleError, before these, if the backend does
    not support the model's adapter.
    """
    problems, each = Problems(), cluster.gpus_per_node
    if cluster.max_gpus is not None and job.gpus != "auto" and job.gpus > cluster.max_gpus:
        what, need = "is more than the cluster has", f"at most {cluster.max_gpus}"
        problems.add(Problem(what, field="gpus", got=str(job.gpus), need=need))
    if job.gpus != "auto" and job.gpus > each and job.gpus % each:
        what, need, lower = "does not fill whole nodes", f"a multiple of {each}", job.gpus // each * each
        fewer = max(size for size in divisors(job.gpus) if size < each)
        smaller = f", or --set gpus_per_node={fewer} if a node has {fewer}" if fewer > 1 else ""
        hint = f"{lower} or {lower + each}{smaller}"
        problems.add(Problem(what, field="gpus", got=str(job.gpus), need=need, hint=hint))
    task = job.task or ("lora" if model.adapter else "pretrain")
    if task not in WITH_OR_WITHOUT and (task == "lora") != (model.adapter is not None):
        hint = "--task lora, or the model without its adapter"
        hint = "a model with adapters, or the section lora" if task == "lora" else hint
        problems.add(Problem("does not go with this model", field="task", got=task, hint=hint))
    if job.attention == "flash" and cluster.gpu.architecture in NO_FLASH:
        what = "is not there for this GPU"
        problems.add(Problem(what, field="attention", got="flash", need="unfused, or none"))
    if reasons := BACKENDS[job.backend].refused_adapters(model, job.target):
        others = [f"--backend {name}" for name, other in BACKENDS.items() if other.adapters and name != job.backend]
        raise InfeasibleError(
            [Problem(reason, field="adapter", hint=" or ".join(others) or None) for reason in reasons]
        )
    problems.add(*unknown_options(job))
    problems.add(*_pinned(model, job, space(model, cluster, job)))
    problems.check()
    return with_defaults(model, cluster, job)


def _pinned(model: ModelDescriptor, job: Job, limits: Limits) -> Iterator[Problem]:
    """Yield the problems of a job's pinned stages, chunks and layout.

    Without pipelines in the target: a layout string, and pp or vpp that exclude 1. Else more stages than layers,
    several chunks with pp at most 1, or more chunks than `most_chunks` at the fewest stages; and of the layout string
    the first that fails of syntax and layers, number of chunks against pp, vpp and GPUs, what the target can express.
    """
    layers, any_number, pins = model.num_hidden_layers, (1, 2**31), parse(job.pins)
    layout = pins.layout
    if not limits.pipeline:
        pinned = ["layout"] * (layout is not None)
        pinned += [name for name in ("pp", "vpp") if name in job.pins and not pins.allows(name, 1)]
        what = "needs a pipeline, which this target has not"
        yield from (Problem(what, field=f"pins.{one}", got=job.backend, hint="--backend megatron") for one in pinned)
        return
    (pp, most_pp), (vpp, _) = pins.ranges.get("pp", any_number), pins.ranges.get("vpp", any_number)
    if pp > layers:
        yield Problem("is more stages than the model has layers", field="pins.pp", got=str(pp), need=f"up to {layers}")
    elif vpp > 1 and most_pp < 2:
        yield Problem("is several chunks of one stage", field="pins.vpp", got=str(vpp), need="1, or pp from 2 on")
    elif vpp > 1 and vpp > (most := most_chunks(layers, max(pp, 2), limits.layouts)):
        what, need = f"is more chunks of a stage than {layers} layers are for", f"up to {most} with pp {max(pp, 2)}"
        yield Problem(what, field="pins.vpp", got=str(vpp), need=need)
    if layout is None:
        return
    if faults := [*pipeline_layout.problems(layout, layers, model.num_nextn_predict_layers, "pins.layout")]:
        yield from faults
        return
    chunks = len(pipeline_layout.expanded(layout))
    degrees = [
        pp
        for pp in divisors(chunks)
        if pins.allows("pp", pp)
        and pins.allows("vpp", chunks // pp)
        and (pp > 1 or chunks == 1)
        and (job.gpus == "auto" or job.gpus % pp == 0)
    ]
    splits = [split for pp in degrees if (split := laid_out(sequence(model), pp, layout)) is not None]
    if not degrees:
        what, pinned = "has a number of chunks that no such stages have", [x for x in ("pp", "vpp") if x in job.pins]
        needs = ("pp x vpp of them", f"a pp that divides {job.gpus} GPUs", *(f"{x}={job.pins[x]}" for x in pinned))
        yield Problem(what, field="pins.layout", got=f"{chunks} chunks", need=" and ".join(needs))
    elif not any(plainest(split.pp, split.chunks, limits.layouts) for split in splits):
        need = (
            "equal stages, the embedding or loss in a layer's place, or other counts on the first and last stage only"
        )
        if limits.layouts.any_cut:
            where = "" if limits.layouts.mtp_with_head else " or in the last chunk of a later stage"
            need = f"multi-token prediction in the loss's chunk{where}"
        what = f"cannot be expressed in {job.backend} {job.megatron_version}"
        yield Problem(what, field="pins.layout", got=repr(layout), need=need)


def _plan(
    model: ModelDescriptor, cluster: ClusterDescriptor, job: Job, weighed: Incumbents, top: int, seconds: float
) -> Plan:
    """Return the plan of a search with at least one incumbent: the best and alternatives, `top` in all at most.

    job: as given, before its limits were relaxed; relaxed limits and experimental options are recorded in
    `search.opened`. beside: the fastest candidate if it is faster than all of these, and measured runs. Raises
    InfeasibleError if a candidate misses a pin.
    """
    picks = ranked(weighed.best, top)
    best = picks[0]

    def shown(prospect: Prospect) -> Candidate:
        """Return a candidate as the plan shows it, with its standing; the best also with `balanced_step_s`."""
        standing = Standing(
            score_s=candidate.tidy(prospect.score),
            unusual=unusual(prospect),
            complexity=complexity(prospect),
            fits=candidate.tidy(candidate.fit_probability(prospect, cluster)),
        )
        return replace(candidate.described(prospect, cluster, job, best=prospect is best), standing=standing)

    chosen = [shown(prospect) for prospect in picks]
    check_pins(job, chosen)
    limit, chance = job.limits.memory_risk, candidate.fit_probability(best, cluster)
    why = f"no plan has at most {100 * limit:g} %, and this one {100 * (1 - chance):.0f} %"
    at_risk = Opened(MEMORY_RISK, "a risk of running out of memory", "at risk", why)
    fastest = min(weighed.best, key=lambda each: (each.step_s, each.order))
    is_faster = all(fastest.step_s < each.step_s for each in picks)
    search = Search(
        candidates=weighed.candidates,
        feasible=weighed.feasible,
        seconds=seconds,
        simulated=weighed.simulated,
        opened=(
            *([at_risk] if best.request.job.limits.memory_risk > limit and chance < 1 - limit else []),
            *used_experimental(job, facts_of(model, cluster, job), chosen[0]),
        ),
        best_score_s=candidate.tidy(min(each.score for each in weighed.best)),
    )
    return Plan(
        model=model,
        cluster=cluster,
        job=job,
        best=chosen[0],
        alternatives=tuple(chosen[1:]),
        search=search,
        binding=candidate.binding(chosen[0], best, weighed),
        symconfig_version=VERSION,
        beside=OtherPlans(fastest=shown(fastest) if is_faster else None, **_measured(best, cluster, chosen[0], shown)),
    )


def _measured(
    prospect: Prospect, cluster: ClusterDescriptor, best: Candidate, shown: Callable[[Prospect], Candidate]
) -> dict[str, Any]:
    """Return fields of OtherPlans: `real_data` for sft and lora, `measured` and `published` if the model was measured.

    Runs are of this model and GPU, of half to twice the sequence length if there are such. If the plan is predicted
    faster than UNPROVEN times the fastest run, that one is taken and its layout searched for `published` (None if it
    has no plan); else the run most similar in GPUs, length and precision, and `published` is None.
    """
    model, job = prospect.request.model, prospect.request.job
    task = job.task_of(model)
    further = {"real_data": real_data_ratios()} if task in ("sft", "lora") else {}
    runs = measured_runs(model, cluster, task)
    as_long = [run for run in runs if 0.5 <= run.seq_length / best.configuration.seq_length <= 2.0]
    if not (runs := as_long or runs):
        return further
    fastest = max(runs, key=lambda run: run.tokens_per_s_per_gpu)
    unproven = best.predicted.benchmark_tokens_per_s_per_gpu > UNPROVEN * fastest.tokens_per_s_per_gpu

    def distance(run: Best) -> tuple[float, ...]:
        doubled = (
            abs(log2(run.gpus / best.configuration.world_size)),
            abs(log2(run.seq_length / best.configuration.seq_length)),
        )
        return sum(doubled) + 2 * (run.precision != best.configuration.precision), -run.tokens_per_s_per_gpu

    nearest = fastest if unproven else min(runs, key=distance)
    degrees = {name: getattr(nearest, name) for name in ("tp", "pp", "vpp", "cp", "ep")}
    words = " ".join(f"{name} {size}" for name, size in degrees.items() if size > 1) or "data parallel"
    measured = MeasuredRun(
        job=f"{nearest.model}, {nearest.gpus:,} GPUs, {nearest.seq_length:,} tokens, {nearest.precision}",
        layout=f"{words}, micro-batch {nearest.micro}",
        tokens_per_s_per_gpu=nearest.tokens_per_s_per_gpu,
        source=nearest.source,
        unproven=unproven,
    )
    pins = {**{name: str(size) for name, size in degrees.items()}, "mbs": str(nearest.micro), **job.pins}
    published = list[Prospect]()
    if unproven:
        with suppress(SymconfigError):  # the run's layout need not run here
            pinned = resolved(model, cluster, job.model_copy(update={"pins": pins}))
            published = ranked(run(model, cluster, pinned, 1).best, 1)
    return {**further, "measured": measured, "published": shown(published[0]) if published else None}


def _fewest(model: ModelDescriptor, cluster: ClusterDescriptor, job: Job, top: int, progress: Progress | None) -> Plan:
    """Return the plan of a search on the fewest GPUs on which something fits, with `search.fewest` set.

    Only the numbers of `_sizes` are tried, in rising order, with the job's limits as they are (no risk or experimental
    option more). Raises InfeasibleError if none works.
    """
    for gpus in _sizes(cluster):
        trial = job.model_copy(update={"gpus": gpus})
        if progress:
            progress(f"trying {gpus} GPUs", 0.0)
        if fits(model, cluster, trial):
            plan = search(model, cluster, trial, top=top, progress=progress)
            return replace(plan, search=replace(plan.search, fewest=True))
    raise InfeasibleError(
        f"no number of GPUs up to {_sizes(cluster)[-1]} fits this model with this batch",
        field="gpus",
        got="auto",
        hint="a larger batch, a shorter sequence, or another cluster",
    )


def _sizes(cluster: ClusterDescriptor) -> list[int]:
    """Return the numbers of GPUs to try: powers of two in a node, whole nodes up to 64, then coarser steps."""
    node, limit = cluster.gpus_per_node, cluster.max_gpus or 65536
    inside = [size for size in (1, 2, 4, 8, 16) if size < node]
    nodes = [*range(1, 65), *range(72, 129, 8), *range(144, 257, 16), *range(288, 513, 32), *range(576, 1025, 64)]
    return [size for size in (*inside, *(node * count for count in nodes)) if size <= limit]
