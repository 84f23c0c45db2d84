"""When nothing fits: the constraint that binds, and the nearest change that would fit."""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from itertools import product

from symconfig.cost.step import HOST_SHARE
from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.job import Job
from symconfig.descriptor.model import ModelDescriptor
from symconfig.errors import InfeasibleError, Problem, SymconfigError
from symconfig.frameworks.programs import of_program
from symconfig.solve import candidate
from symconfig.solve.choice import Incumbents
from symconfig.solve.pieces import recompute_choices
from symconfig.solve.run import fits, precisions, requests
from symconfig.solve.space import Request, blockers, divisors
from symconfig.units import GIB

TRIED = 8  # most values of a degree that are tried for a hint
_MESH = ("tp", "cp", "pp", "dp")  # degrees whose product is the number of GPUs


def infeasible(model: ModelDescriptor, cluster: ClusterDescriptor, job: Job, weighed: Incumbents) -> InfeasibleError:
    """Return, not raise, an error on why nothing fits, with the nearest change that fits as its hint.

    It describes `weighed.leanest`: GPU bytes needed and usable and the largest part; if these fit, the host memory that
    it pins. Without a leanest candidate it is the problem of `_no_division`. The hint is another target if the job fits
    without its own; else what `_nearest` finds by further searches, or general advice.
    """
    if weighed.leanest is None:
        return InfeasibleError(_no_division(model, cluster, job, weighed))
    lean = candidate.described(weighed.leanest, cluster, job)
    limit, need = job.limits.usable_bytes(cluster.gpu.memory_bytes.value), lean.predicted.device_bytes
    lead = f"nothing fits in memory{with_pins(job)}: the leanest of {weighed.candidates} candidates"
    lead, digits = f"{lead} ({candidate.degrees(lean)})", 1 if need - limit > 0.1 * GIB else 4
    largest = max(lean.predicted.memory, key=lambda name: lean.predicted.memory[name])
    what = (
        f"{lead} needs {need / GIB:.{digits}f} GiB on a GPU with {limit / GIB:.{digits}f} GiB usable, most of it "
        f"{largest} ({lean.predicted.memory[largest] / GIB:.1f} GiB)"
    )
    if need <= limit:  # what it moves off the GPU is too much for the host
        room = HOST_SHARE * weighed.leanest.machine.host_memory_bytes_per_gpu
        what = (
            f"{lead} fits on a GPU, but pins {lean.predicted.host_bytes / GIB:.1f} GiB of the host for each, of "
            f"{room / GIB:.1f} GiB that may be pinned; those that pin less do not fit on a GPU"
        )
    if job.target is not None and fits(model, cluster, job.model_copy(update={"target": None})):
        rules = [one.rule for one in of_program(job.target) if weighed.refused.counts[one.name]]
        what += f"; what fits cannot be written for {job.target}" + (f": {'; '.join(rules)}" if rules else "")
        return InfeasibleError(what, hint="another target")
    return InfeasibleError(what, hint=_nearest(model, cluster, job) or "a smaller sequence or fewer pins")


def _no_division(model: ModelDescriptor, cluster: ClusterDescriptor, job: Job, weighed: Incumbents) -> Problem:
    """Return the problem if no candidate was evaluated: pins that cannot be met, else rules that refuse all points.

    Checked in order: recompute that leaves no policy, pins of degrees (`_unreachable`); then "no division of … GPUs",
    with `blockers`, or the rules that refuse all ZeRO stages, or the four most frequent refusals and their counts. Its
    hint has batches that are the nearest multiples of the GPUs, or values of a pin, with which a search finds a plan,
    else advice.
    """
    wanted = requests(model, cluster, job, precisions(cluster, job)[0])[0]
    if not recompute_choices(wanted):
        return Problem(
            "leaves nothing to recompute that this model has on this target",
            field="pins.recompute",
            got=job.pins.get("recompute"),
            need="none, full, or selective of " + ", ".join(wanted.limits.modules),
        )
    if (unreachable := _unreachable(wanted)) is not None:
        name = (unreachable.field or "").removeprefix("pins.")
        return replace(unreachable, hint=unreachable.hint or _nearest_pins(model, cluster, job, wanted, [name]))
    reasons = blockers(wanted) or _stages_refused(wanted)
    if not reasons:
        refused = weighed.refused
        reasons = [f"{refused.reasons[name]} ({count} points)" for name, count in refused.counts.most_common(4)]
    gpus, batch = int(job.gpus), job.global_batch_size
    lower = batch // gpus * gpus
    tried = [size for size in (lower, lower + gpus) if size not in (0, batch) and size <= 2 * batch]
    able = [size for size in tried if fits(model, cluster, job.model_copy(update={"global_batch_size": size}))]
    return Problem(
        f"no division of {job.gpus} GPUs and a batch of {job.global_batch_size} can run{with_pins(job)}: "
        + ("; ".join(reasons) or "no choice of degrees has that product"),
        hint=" or ".join(f"--global-batch-size {size}" for size in able)
        or _nearest_pins(model, cluster, job, wanted, job.pins)
        or ("fewer pins, " if job.pins else "")
        + "another number of GPUs, a batch that divides by more, or the other backend",
    )


def with_pins(job: Job) -> str:
    """Return " with the pins a=1, b=2"; empty without pins."""
    return f" with the pins {', '.join(f'{name}={value}' for name, value in job.pins.items())}" if job.pins else ""


def _divided(request: Request) -> dict[str, tuple[int, str]]:
    """Return by name of a degree (number that it must divide, that number in words).

    tp, cp, pp, dp: the GPUs; mbs: the global batch; ep, only with experts: the gcd of experts and GPUs.
    """
    gpus, experts = request.gpus, request.model.experts
    wholes = dict.fromkeys(_MESH, (gpus, f"{gpus} GPUs"))
    wholes["mbs"] = (request.global_batch, f"a batch of {request.global_batch}")
    if experts is not None:
        wholes["ep"] = (math.gcd(experts.num_experts, gpus), f"{experts.num_experts} experts and {gpus} GPUs")
    return wholes


def _nearest_pins(
    model: ModelDescriptor, cluster: ClusterDescriptor, job: Job, request: Request, names: Iterable[str]
) -> str | None:
    """Return up to two values of a pinned degree with which there is a plan, as "--pin tp=4 or …"; None if none works.

    names: degrees to try, in the order of `_divided`; the first with such a value wins. Values are divisors outside the
    pinned range, nearest first, at most TRIED of each degree, each tried by a search; errors of a search count as no
    plan.
    """
    for name, (whole, _) in _divided(request).items():
        bounds = request.pins.ranges.get(name, ()) if name in names else ()
        close = sorted(divisors(whole), key=lambda value: min((abs(value - one) for one in bounds), default=0))
        working = list[int]()
        for value in [value for value in close if bounds and not request.pins.allows(name, value)][:TRIED]:
            with suppress(SymconfigError):
                if fits(model, cluster, job.model_copy(update={"pins": {**job.pins, name: str(value)}})):
                    working.append(value)
            if len(working) == 2:
                break
        if working:
            return " or ".join(f"--pin {name}={value}" for value in sorted(working))
    return None


def _unreachable(request: Request) -> Problem | None:
    """Return the first problem of the pinned degrees by division; None if they can all be met.

    In order: a pin of ep or etp that excludes 1, without experts; a pin none of whose values divides its number in
    `_divided`; pins of tp, cp, pp, dp of which no product divides the GPUs.
    """
    gpus, experts, written = request.gpus, request.model.experts, request.job.pins
    for name in (name for name in written if name in ("ep", "etp") and experts is None):
        if not request.pins.allows(name, 1):
            return Problem("splits experts, and this model has none", field=f"pins.{name}", got=written[name], need="1")
    for name, (whole, shown) in _divided(request).items():
        if name in written and not any(request.pins.allows(name, value) for value in divisors(whole)):
            return Problem(f"does not divide {shown}", field=f"pins.{name}", got=written[name])
    pinned = [name for name in _MESH if name in written]
    left = [[value for value in divisors(gpus) if request.pins.allows(name, value)] for name in pinned]
    products = set(map(math.prod, product(*left)))
    if any(gpus % one == 0 for one in products):
        return None
    return Problem(
        f"{' x '.join(pinned)} must divide the number of GPUs,{with_pins(request.job)} it cannot",
        got=f"{min(products)}{' or more' * (len(products) > 1)}",
        need=f"a divisor of {gpus}",
        hint="fewer pins",
    )


def _stages_refused(request: Request) -> list[str]:
    """Return the rules that refuse every allowed ZeRO stage at the pinned degrees; empty if some stage can run.

    Degrees pinned to a range are left open. Without tensor and pipeline parallelism in the target, cp is 1 and dp all
    GPUs unless pinned.
    """
    limits, ranges = request.limits, request.pins.ranges
    fixed = {name: ranges[name][0] for name in _MESH if name in ranges and len(set(ranges[name])) == 1}
    if not limits.pipeline and not limits.runs(tp=2):  # all GPUs are replicas
        fixed = {"cp": 1, "dp": request.gpus} | fixed
    refused = [limits.lacking(zero_stage=stage, **fixed) for stage in limits.zero if request.pins.allows("zero", stage)]
    return list(dict.fromkeys(one.rule for each in refused for one in each)) if all(refused) else []


def _nearest(model: ModelDescriptor, cluster: ClusterDescriptor, job: Job) -> str | None:
    """Return the first change that makes the job fit, as text ("16 GPUs", "--seq-length 4096"); None if none does.

    Tried, each by a search: 2 to 64 times the GPUs, up to the cluster's most, inside a node or filling nodes; then 1/2,
    1/4 and 1/8 of the sequence length, from 128 tokens. job: with a number of GPUs.
    """
    gpus = int(job.gpus)
    for more in (2, 4, 8, 16, 32, 64):
        if gpus * more > (cluster.max_gpus or 10**9):
            break
        trial = job.model_copy(update={"gpus": gpus * more})
        if (gpus * more <= cluster.gpus_per_node or gpus * more % cluster.gpus_per_node == 0) and fits(
            model, cluster, trial
        ):
            return f"{gpus * more} GPUs"
    for less in (2, 4, 8):
        seq_length = int(job.seq_length or 0) // less
        if seq_length >= 128 and fits(model, cluster, job.model_copy(update={"seq_length": seq_length})):
            return f"--seq-length {seq_length}"
    return None
