"""What a new plan does otherwise than the old one, and what each change would cost if it stayed: the old choices under
the inputs of the new plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from symconfig.cost.framework import device_bytes
from symconfig.cost.step import HOST_SHARE, host_bytes
from symconfig.errors import InputError
from symconfig.existing.audit.steps import DECISIONS, changes, differs, moved
from symconfig.frameworks.constraint import failing
from symconfig.frameworks.extras import in_effect
from symconfig.frameworks.megatron.option_constraints import GATHERED_FORMATS
from symconfig.frameworks.tables import options
from symconfig.plans.configuration import Configuration, Precision
from symconfig.plans.plan import Candidate, Plan
from symconfig.solve.costed import costed, refined_s
from symconfig.solve.extras import switched_on
from symconfig.solve.pins import parse
from symconfig.solve.predict import as_found
from symconfig.solve.prospect import Prospect, Setup, effective
from symconfig.solve.run import request
from symconfig.solve.space import Request
from symconfig.units import GIB

SEQUENCE = "sequence parallel"  # of the decisions


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on a configuration under a plan's inputs.

    refused: why it cannot run, a sentence without its period, else ""; then all numbers are 0. over_bytes: bytes beyond
    the usable GPU memory, negative if it fits; host_over_bytes: the same of pinned host memory per GPU. slower: its
    step over the plan's, less 1.
    """

    refused: str = ""
    step_s: float = 0.0
    slower: float = 0.0
    device_bytes: float = 0.0
    over_bytes: float = 0.0
    host_over_bytes: float = 0.0

    @property
    def fits(self) -> bool:
        return not self.refused and self.over_bytes <= 0 and self.host_over_bytes <= 0

    def __str__(self) -> str:
        """Return the verdict as a predicate: `cannot run: ...`, `does not fit: ...` (GPU before host), `takes as long`
        or `takes 2.1 % longer`.
        """
        if self.refused:
            return f"cannot run: {self.refused}"
        if self.over_bytes > 0:
            more = f"{self.over_bytes / GIB:.2f} GiB more than is usable"
            return f"does not fit: {self.device_bytes / GIB:.2f} GiB, {more}"
        if self.host_over_bytes > 0:
            return f"does not fit: it pins {self.host_over_bytes / GIB:.2f} GiB more of the host than may be pinned"
        if abs(self.slower) < 5e-5:
            return "takes as long"
        return f"takes {100 * abs(self.slower):.2f} % {'longer' if self.slower > 0 else 'less time'}"


def carried(candidate: Candidate, plan: Plan) -> Setup:
    """Return the configuration of a candidate with the GPUs, batch, sequence length, framework, version and packing of
    `plan`.

    Precision is the candidate's if the job's is auto, else the plan's. dp becomes the GPUs over tp x pp x cp (rounded
    down, at least 1); ep and etp become 1 without experts; unknown recompute modules and an unsupported
    fp8_param_gather are dropped.
    """
    job = plan.job
    precision = candidate.configuration.precision if job.precision == "auto" else plan.best.configuration.precision
    c = in_effect(candidate.configuration)
    if precision not in GATHERED_FORMATS:
        c = replace(c, fp8_param_gather=False)
    wanted = _request(plan, precision, c)
    again = tuple(name for name in c.recompute_modules if name in wanted.limits.modules)
    if c.recompute == "selective":
        c = replace(c, recompute="selective" if again else "none", recompute_modules=again)
    if plan.model.experts is None:
        c = replace(c, ep=1, etp=1)
    return Setup.of(
        replace(candidate, configuration=c, target=plan.best.target),
        wanted.framework,
        dp=max(1, plan.best.configuration.world_size // (c.tp * c.pp * c.cp)),
        global_batch=plan.best.configuration.global_batch,
        seq_length=plan.best.configuration.seq_length,
        precision=precision,
        packing=job.packing,
    )


def judged(plan: Plan, c: Setup) -> Verdict:
    """Return the verdict on a configuration under the plan's inputs: refused with the first reason, or bytes, and step
    against the plan's best. Reasons are degrees that do not divide the GPUs, limits and constraints of the framework,
    and InputError of the costs. Overruns of memory are no refusal.
    """
    wanted = _request(plan, c.precision, c)
    p, gpus = c, plan.best.configuration.world_size
    if gpus % (inner := p.tp * p.pp * p.cp):
        return Verdict(f"tp {p.tp} x pp {p.pp} x cp {p.cp} = {inner} does not divide {gpus} GPUs")
    if refused := _unknown(wanted, c):
        return Verdict(refused)
    try:
        point = as_found(plan.model, plan.cluster, c)
    except InputError as error:
        return Verdict(str(error.problems[0]).rstrip("."))
    point = replace(point, request=wanted, configuration=effective(point.configuration, wanted))
    if refused := _refused(point):
        return Verdict(refused)
    parts = costed(point)
    used, step_s = device_bytes(max(parts.peaks), point.machine, wanted.framework), refined_s(point, parts)
    pinned = float(np.ravel(host_bytes(parts.sums, parts.points, parts.setting))[0])
    room = HOST_SHARE * point.machine.host_memory_bytes_per_gpu
    best_s = plan.best.predicted.step_s
    return Verdict("", step_s, step_s / best_s - 1, used, used - plan.usable_bytes, pinned - room)


def _request(plan: Plan, precision: Precision, options: Configuration) -> Request:
    """Return the search's request for the plan's inputs at this precision, without pins and with the framework's
    options of a configuration on."""
    plain = request(plan.model, plan.cluster, plan.job, precision, parse({}))
    return switched_on(plain, options, plan.cluster.gpu.architecture)


def _unknown(request: Request, c: Setup) -> str:
    """Return why the framework supports something of the configuration at no degree: a general lack, pp, the ZeRO
    stage, or tp with this sequence parallelism; else "".
    """
    limits, name = request.limits, f"{request.framework.name} {request.version}"
    if lacks := limits.lacking():
        return lacks[0].rule
    if c.pp > 1 and not limits.pipeline:
        return f"{name} has no pipeline for this model"
    if c.zero_stage not in limits.zero:
        return f"{name} has no ZeRO stage {c.zero_stage} here"
    if c.tp > 1 and c.sequence_parallel not in limits.tensor_with_sequence:
        wanted = "with" if not c.sequence_parallel else "without"
        return f"{name} has tensor parallelism only {wanted} sequence parallelism"
    return ""


def _refused(prospect: Prospect) -> str:
    """Return the sentence of the first constraint that the layout or its options violate; "" if none. Constraints of
    experimental options are not counted, because a pin may enable them.
    """
    limits, point = prospect.request.limits, prospect.configuration
    young = {option.name for option in options(prospect.request.job.backend)}
    more = (one for one in failing(limits.table, limits.fixed, point) if one.name not in young)
    return next((one.sentence_at(limits.fixed, point) for one in (*prospect.refused(), *more)), "")


@dataclass(frozen=True, slots=True)
class Change:
    """One changed decision. text: `tp 4 -> 8`; kept: verdict on the new plan with only this decision reverted."""

    decision: str
    text: str
    kept: Verdict


@dataclass(frozen=True, slots=True)
class Changes:
    """What changed between two plans: decisions, sentences on derived values (`follows`), and the verdict on the
    whole old configuration under the new inputs (`stayed`).
    """

    decisions: tuple[Change, ...]
    follows: tuple[str, ...]
    stayed: Verdict


def changed(old: Plan, new: Plan) -> Changes:
    """Return what changed between two plans: decisions and the whole old configuration, judged under the new inputs,
    and derived values."""
    before, after = carried(old.best, new), carried(new.best, new)
    return Changes(tuple(_decisions(before, after, new)), tuple(_follows(old, new)), judged(new, before))


def _decisions(before: Setup, after: Setup, new: Plan) -> Iterator[Change]:
    """Yield a Change for each decision that differs, with the verdict on `after` with that decision alone as in
    `before`. Sequence parallelism is reverted together with tp. Decisions whose reversal changes nothing are skipped.
    """
    other = [name for name in DECISIONS if differs(name, before, after)]
    if "tp" in other and SEQUENCE in other:
        other.remove(SEQUENCE)
    for name in other:
        back = moved(after, before, (name, SEQUENCE) if name == "tp" else (name,))
        if reason := changes(back, after):
            yield Change(name, ", ".join(reason), judged(new, back))


def _follows(old: Plan, new: Plan) -> Iterator[str]:
    """Yield a sentence for each derived value that changed: dp, and the number of micro-batches (gradient
    accumulation).
    """
    was, now = old.best.configuration, new.best.configuration
    if was.dp != now.dp:
        inner = now.tp * now.pp * now.cp
        yield f"dp {was.dp} -> {now.dp}: {now.world_size} GPUs over tp x pp x cp = {inner}"
    if was.num_microbatches != now.num_microbatches:
        yield (
            f"accumulation {was.num_microbatches} -> {now.num_microbatches}: {now.global_batch} sequences over dp x "
            f"micro-batch = {now.dp * now.micro}"
        )
