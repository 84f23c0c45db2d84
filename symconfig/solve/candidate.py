"""A found point of the lattice as a candidate of the plan: options in the target's terms, prediction by part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from symconfig.cost.framework import device_bytes, reserved_bytes
from symconfig.cost.lattice import LOAD, OF_LAYER, OF_STAGE, OF_STEP, Array, Lattice
from symconfig.cost.step import host_bytes, total
from symconfig.cost.work import flops_per_token
from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.job import Job, Limits
from symconfig.format import gib
from symconfig.graph.model import sequence
from symconfig.plans.plan import Candidate, Predicted, Stage, Target
from symconfig.solve.choice import Incumbents
from symconfig.solve.costed import Costed, costed, detailed, refined_time, sizes, table_of
from symconfig.solve.interval import EVERY, NINE_IN_TEN, Interval, fixed, interval, spread_over, uneven, waited
from symconfig.solve.prospect import Prospect
from symconfig.solve.space import constants, device_budget, fitting
from symconfig.solve.stages import ROUNDING
from symconfig.units import significant

FULL = 0.85  # share of the budget above which a plan counts as limited by memory


def described(prospect: Prospect, cluster: ClusterDescriptor, job: Job, best: bool = False) -> Candidate:
    """Return the plan's candidate for a search's candidate, priced under even expert loads (`prospect.even`).

    Its intervals include uneven expert loads (`_with_uneven_loads`). best: also set `balanced_step_s`, the step in
    seconds with all experts equally loaded (None without experts or at ep 1); else it is None.
    """
    prospect = prospect.even
    parts, balanced_s = costed(prospect), None
    if best and prospect.request.model.experts is not None and prospect.configuration.ep > 1:
        request = prospect.request
        limits = request.job.limits.model_copy(update={"expert_imbalance": 1.0})
        balanced = replace(prospect, request=replace(request, job=request.job.model_copy(update={"limits": limits})))
        balanced_s = tidy(sum(refined_time(balanced, costed(balanced)).values()))
    what = replace(predicted(prospect, parts, cluster), balanced_step_s=balanced_s)
    return plan_candidate(prospect, job, parts.peaks, _with_uneven_loads(prospect, parts, what, cluster))


def under_loads(prospect: Prospect) -> tuple[Array, Array] | None:
    """Return (peak bytes of the fullest stage, step in seconds), [runs] each, under expert loads of the runs in EVERY.

    EVERY: equally probable quantiles of training runs, by how unevenly their routers load the ranks. None if ep is 1,
    the job states its expert imbalance, or the model has no layers with experts.
    """
    even = prospect.even
    request, ep = even.request, even.configuration.ep
    if ep == 1 or request.job.limits.expert_imbalance is not None:
        return None
    ranks, task = np.full(EVERY.size, float(ep)), request.job.task_of(request.model)
    if not (loads := uneven(request.model, ranks, task, EVERY) | waited(request.model, ranks, EVERY)):
        return None
    c = even.configuration
    numbers = fixed({LOAD: request.job.limits.load, **loads}, c.expert_capacity, c.paged_stash)
    plain = sizes(even, EVERY.size)
    cost = detailed(even, table_of(even, Lattice({**plain.numbers, **numbers}, plain.points))).cost
    needed, steps = total(cost.memory).max(axis=0)[0, 0], cost.step_s[0, 0]
    return np.broadcast_to(needed, EVERY.size), np.broadcast_to(steps, EVERY.size)


def fit_probability(prospect: Prospect, cluster: ClusterDescriptor) -> float:
    """Return the probability that a candidate does not run out of GPU memory, given the errors of predictions.

    It is that of `fitting`, the mean over the peaks of `under_loads`; if that is None, of the peak with even expert
    loads.
    """
    drawn = under_loads(prospect)
    peaks = [max(costed(prospect.even).peaks)] if drawn is None else drawn[0].tolist()
    return fitting(prospect.request, prospect.machine, peaks, cluster)


def _with_uneven_loads(prospect: Prospect, parts: Costed, what: Predicted, cluster: ClusterDescriptor) -> Predicted:
    """Return the prediction with intervals that include uneven expert loads, and with their effect in `untrained`.

    interval: step_s, peak_bytes and device_bytes are replaced. untrained: (5 %, 95 %) quantiles over runs of the loads
    over their mean (`load` of the fullest rank in its stage, `layer_load` of a layer, `waited_load` that each layer
    waits for), and of device_bytes and step_s. `what` itself is returned if `under_loads` is None.
    """
    request, p, of_runs = prospect.request, prospect.configuration, np.array(NINE_IN_TEN)
    if (drawn := under_loads(prospect)) is None:
        return what
    worst, (needed, steps) = int(np.argmax(parts.peaks)), drawn
    slower = steps / parts.cost.step_s[0, 0, 0]
    of_memory = spread_over(needed / parts.peaks[worst], "memory", cluster, request.model)
    of_time = spread_over(slower, "time", cluster, request.model)

    def pair(values: Array) -> tuple[float, float]:
        return tidy(float(values[0])), tidy(float(values[1]))

    task, ranks = request.job.task_of(request.model), np.full(2, float(p.ep))
    of = uneven(request.model, ranks, task, of_runs) | waited(request.model, ranks, of_runs)
    ends = np.quantile(needed, of_runs).tolist()
    device = np.array([device_bytes(each, prospect.machine, request.framework) for each in ends])
    return replace(
        what,
        interval=_intervals(prospect, what.step_s, of_time, parts.peaks[worst], of_memory),
        untrained={
            "load": pair(1 + np.sqrt(p.pp) * of[OF_STAGE]),
            "layer_load": pair(of[OF_LAYER]),
            "device_bytes": pair(device),
            "waited_load": pair(of[OF_STEP]),
            "step_s": pair(what.step_s * np.quantile(slower, of_runs)),
        },
    )


def _intervals(
    prospect: Prospect, step_s: float, of_time: Interval, peak: float, of_memory: Interval
) -> dict[str, tuple[float, float]]:
    """Return the 90 % intervals (low, high) of step_s, peak_bytes and device_bytes, from those of measured values."""
    steps, peaks = ([value * of.low, value * of.high] for value, of in ((step_s, of_time), (peak, of_memory)))
    devices = [device_bytes(each, prospect.machine, prospect.request.framework) for each in peaks]
    every = {"step_s": steps, "peak_bytes": peaks, "device_bytes": devices}
    return {name: (tidy(low), tidy(high)) for name, (low, high) in every.items()}


def plan_candidate(prospect: Prospect, job: Job, allocated: Sequence[float], what: Predicted) -> Candidate:
    """Return the plan's candidate for a search's candidate: configuration, stages, and the prediction `what`.

    Each stage has its kinds of layers by chunk, recompute in words, and peak. allocated: peak bytes by stage. The
    backend is the job's; all else comes from `prospect`.
    """
    split, c = prospect.split, prospect.configuration
    recompute: str = c.recompute
    if recompute == "selective":
        recompute += ": " + ", ".join(c.recompute_modules)
    elif recompute == "full" and c.recompute_method != "uniform":
        recompute += f", first {c.recompute_layers} layers of each virtual stage"
    return Candidate(
        Target(job.backend, prospect.request.version),
        prospect.configuration,
        tuple(Stage(split.stage(i), recompute, tidy(peak)) for i, peak in enumerate(allocated)),
        what,
    )


def predicted(
    prospect: Prospect,
    parts: Costed,
    cluster: ClusterDescriptor,
    time: Mapping[str, float] | None = None,
    worst: int | None = None,
) -> Predicted:
    """Return the prediction of one step: times, throughput, memory of the fullest stage, and 90 % intervals.

    time: seconds by part; None: `refined_time`. worst: index of the fullest stage; None: the one with the largest peak.
    Memory by part also has the allocator's overhead and the context. Model FLOPs count only experts that a token is
    routed to; MFU is against the GPU's peak in the candidate's precision. Intervals are of step_s, peak_bytes and
    device_bytes. Numbers are rounded by `tidy`.
    """
    request = prospect.request
    worst = int(np.argmax(parts.peaks)) if worst is None else worst
    time = refined_time(prospect, parts) if time is None else time
    memory = {name: float(part[worst, 0, 0, 0]) for name, part in parts.cost.memory.items()}
    step = sum(time.values())
    peak = parts.peaks[worst]
    taken = reserved_bytes(peak, request.framework)
    memory |= {"allocator": taken - peak, "context and libraries": prospect.machine.context_bytes}
    tokens = request.global_batch * request.seq_length / (step * request.gpus)
    blocks = {block.derived.name: block.derived for block in parts.table.blocks}
    experts = request.model.experts
    # FLOPs of an expert on tokens not routed to it do not count as model FLOPs.
    numbers = constants(request) | ({} if experts is None else {"run_expert_copies": experts.computing_per_tok})
    flops = flops_per_token(blocks, sequence(request.model), numbers)
    time_range, memory_range = (interval(quantity, cluster, request.model) for quantity in ("time", "memory"))
    host = float(np.ravel(host_bytes(parts.sums, parts.points, parts.setting))[0])
    return Predicted(
        step_s=tidy(step),
        tokens_per_s_per_gpu=tidy(tokens),
        model_tflops_per_gpu=tidy(tokens * flops / 1e12),
        mfu=tidy(tokens * flops / getattr(cluster.gpu.peak_flops, request.precision).value),
        peak_bytes=tidy(peak),
        reserved_bytes=tidy(taken),
        device_bytes=tidy(device_bytes(peak, prospect.machine, request.framework)),
        host_bytes=tidy(host),
        memory={name: tidy(value) for name, value in memory.items()},
        time={name: tidy(value) for name, value in time.items()},
        interval=_intervals(prospect, step, time_range, peak, memory_range),
        interval_from={"time": time_range.basis, "memory": memory_range.basis},
    )


def tidy(value: float) -> float:
    """Return a number rounded to twelve significant digits, so that plans do not depend on the order of summation."""
    return significant(value, 12)


def fullness(used_bytes: float, budget_bytes: float, limits: Limits, memory_bytes: float) -> str:
    """Return a phrase that says whether memory or time limits a plan, with used and available GiB.

    Memory does if used_bytes is above FULL of budget_bytes, the largest prediction allowed. Available is the budget,
    stated with the memory risk if that makes it less than the usable part of memory_bytes; else the usable part.
    """
    what = "memory," if used_bytes > FULL * budget_bytes else "time, not memory;"
    if budget_bytes < limits.usable_bytes(memory_bytes) * (1 - ROUNDING):
        risk = f"{100 * limits.memory_risk:g} % risk of running out"
        return f"{what} {gib(used_bytes)} of a budget of {gib(budget_bytes)} GiB ({risk})"
    return f"{what} {gib(used_bytes)} of {gib(budget_bytes)} GiB usable"


def degrees(candidate: Candidate) -> str:
    """Return the degrees above one and the micro-batch as text: "tp 4, pp 2, dp 8, micro-batch 1"."""
    c = candidate.configuration
    return ", ".join([*c.degrees, f"micro-batch {c.micro}"])


def binding(best: Candidate, prospect: Prospect, weighed: Incumbents) -> str:
    """Return a sentence on the bottleneck: memory or time, how many candidates do not fit, the costliest part.

    Computation does not count as a part. prospect: the candidate that `best` describes. The memory budget is reduced by
    what its uneven expert loads take.
    """
    limit, used = device_budget(prospect.request, prospect.machine), best.predicted.device_bytes
    uneven_bytes = max(costed(prospect).peaks) - max(costed(prospect.even).peaks)
    limit -= reserved_bytes(uneven_bytes, prospect.request.framework)
    left = weighed.candidates - weighed.feasible
    refused = f"{left:,} of {weighed.candidates:,} candidates do not fit" if left else "every candidate fits"
    parts = {name: value for name, value in best.predicted.time.items() if name != "compute"}
    name = max(parts, key=lambda part: parts[part])
    memory = fullness(used, limit, prospect.request.job.limits, prospect.machine.memory_bytes)
    return (
        f"{memory}; {refused}. After computation, {name.replace('_', ' ')} costs most "
        f"({100 * parts[name] / best.predicted.step_s:.1f} % of the step)"
    )
