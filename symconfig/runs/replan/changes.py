"""What a new plan does otherwise than the old one, and what each change would cost if it stayed: the old choices under
the inputs of the new plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations

from symconfig.cost.step import HOST_SHARE
from symconfig.errors import InputError
from symconfig.existing.audit.steps import DECISIONS, changes, differs, moved
from symconfig.frameworks.constraint import failing
from symconfig.frameworks.extras import in_effect
from symconfig.frameworks.known import BACKENDS
from symconfig.frameworks.megatron.option_constraints import GATHERED_FORMATS
from symconfig.plans.configuration import Configuration, Precision
from symconfig.plans.plan import Candidate, Plan
from symconfig.render import target_of
from symconfig.runs.checkpoint.table import Loadable, Verdict
from symconfig.solve.candidate import described
from symconfig.solve.extras import switched_on
from symconfig.solve.interval import MEMORY_RISK
from symconfig.solve.predict import as_found
from symconfig.solve.prospect import Setup, effective
from symconfig.solve.run import request
from symconfig.solve.space import Request, device_budget
from symconfig.solve.stages import ROUNDING
from symconfig.units import GIB

SEQUENCE = "sequence parallel"  # of the decisions


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict on a configuration under a plan's inputs.

    refused: why it cannot run, a sentence without its period, else "". candidate: as priced; None if refused.
    over_bytes: bytes beyond the usable GPU memory, negative if it fits; host_over_bytes: the same of pinned host memory
    per GPU. at_risk: its memory is more than the job's `memory_risk` allows; False if that of the plan is, too.
    slower: its step over the plan's, less 1.
    """

    refused: str = ""
    candidate: Candidate | None = None
    slower: float = 0.0
    over_bytes: float = 0.0
    host_over_bytes: float = 0.0
    at_risk: bool = False

    @property
    def fits(self) -> bool:
        return not self.refused and self.over_bytes <= 0 and self.host_over_bytes <= 0

    @property
    def safe(self) -> bool:
        """Return whether it fits as the search demands, with the job's risk of running out of memory."""
        return self.fits and not self.at_risk

    def __str__(self) -> str:
        """Return the verdict as a predicate: `cannot run: ...`, `does not fit: ...` (GPU before host), `takes as long`
        or `takes 2.1 % longer`, with a clause on memory if at risk.
        """
        if self.refused:
            return f"cannot run: {self.refused}"
        if self.over_bytes > 0:
            more = f"{self.over_bytes / GIB:.2f} GiB more than is usable"
            assert self.candidate is not None
            return f"does not fit: {self.candidate.predicted.device_bytes / GIB:.2f} GiB, {more}"
        if self.host_over_bytes > 0:
            return f"does not fit: it pins {self.host_over_bytes / GIB:.2f} GiB more of the host than may be pinned"
        risk = ", with too high a risk of running out of memory" if self.at_risk else ""
        if abs(self.slower) < 5e-5:
            return f"takes as long{risk}"
        return f"takes {100 * abs(self.slower):.2f} % {'longer' if self.slower > 0 else 'less time'}{risk}"


def carried(candidate: Candidate, plan: Plan) -> Setup:
    """Return the configuration of a candidate with the GPUs, batch, sequence length, framework, version and packing of
    `plan`. Precision is the candidate's if the job's is auto, else the plan's. dp becomes the GPUs over tp x pp x cp
    (rounded down, at least 1); ep and etp become 1 without experts; unknown recompute modules and an unsupported
    fp8_param_gather are dropped.
    """
    job = plan.job
    precision = candidate.configuration.precision if job.precision == "auto" else plan.best.configuration.precision
    c = in_effect(candidate.configuration)
    if precision not in GATHERED_FORMATS:
        c = replace(c, fp8_param_gather=False)
    wanted = _unpinned_request(plan, precision, c)
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


def judged(plan: Plan, c: Setup) -> Judgement:
    """Return the verdict on a configuration under the plan's inputs: refused with the first reason, or bytes, and step
    against the plan's best. Options without effect at its degrees are off. Reasons are degrees that do not divide the
    GPUs, limits and constraints of the framework, InputError of the costs, and what the plan's target cannot write.
    Overruns and risks of memory are no refusal.
    """
    c = in_effect(c)
    wanted = _unpinned_request(plan, c.precision, c)
    c = replace(c, framework=wanted.framework)
    p, gpus = c, plan.best.configuration.world_size
    if gpus % (inner := p.tp * p.pp * p.cp):
        return Judgement(f"tp {p.tp} x pp {p.pp} x cp {p.cp} = {inner} does not divide {gpus} GPUs")
    if refused := _unknown(wanted, c):
        return Judgement(refused)
    try:
        point = as_found(plan.model, plan.cluster, c)
    except InputError as error:
        return Judgement(str(error.problems[0]).rstrip("."))
    point = replace(point, request=wanted, configuration=effective(point.configuration, wanted))
    # Constraints of experimental options do not count, because a pin may enable them.
    young = {option.name for option in BACKENDS[plan.job.backend].options}
    limits, at = wanted.limits, point.configuration
    more = (one for one in failing(limits.table, limits.fixed, at) if one.name not in young)
    if (failed := next(iter((*point.refused(), *more)), None)) is not None:
        return Judgement(failed.sentence_at(limits.fixed, at))
    kept = replace(described(point, plan.cluster, plan.job), target=plan.best.target)
    if unwritten := target_of(plan.model, plan.job).refusals(replace(plan, best=kept)):
        return Judgement(str(unwritten[0]).rstrip("."))
    predicted, room = kept.predicted, HOST_SHARE * point.machine.host_memory_bytes_per_gpu
    most = device_budget(wanted, point.machine) * (1 + ROUNDING)
    return Judgement(
        candidate=kept,
        slower=predicted.step_s / plan.best.predicted.step_s - 1,
        over_bytes=predicted.device_bytes - plan.usable_bytes,
        host_over_bytes=predicted.host_bytes - room,
        at_risk=predicted.device_bytes > most and all(one.name != MEMORY_RISK for one in plan.search.opened),
    )


def _unpinned_request(plan: Plan, precision: Precision, options: Configuration) -> Request:
    """Return the search's request for the plan's inputs at this precision, without pins and with the framework's
    options of a configuration on."""
    plain = request(plan.model, plan.cluster, plan.job.model_copy(update={"pins": {}}), precision)
    return switched_on(plain, options, plan.cluster.gpu.architecture)


def _unknown(request: Request, c: Setup) -> str:
    """Return why the framework can run no layout with this choice of the configuration, the first of: a general lack, a
    pipeline, the ZeRO stage, tensor parallelism with (or without) sequence parallelism; "" if it can.
    """
    limits, name = request.limits, f"{request.framework.name} {request.version}"
    if lacks := limits.lacking():
        return lacks[0].rule
    if c.pp > 1 and not limits.pipeline:
        return f"{name} has no pipeline for this model"
    if c.zero_stage not in limits.zero:
        return f"{name} has no ZeRO stage {c.zero_stage} here"
    if c.tp > 1 and not limits.runs(sequence_parallel=c.sequence_parallel):
        wanted = "with" if not c.sequence_parallel else "without"
        return f"{name} has tensor parallelism only {wanted} sequence parallelism"
    return ""


@dataclass(frozen=True, slots=True)
class Change:
    """One changed decision. text: `tp 4 -> 8`; kept: verdict on the new plan with only this decision reverted."""

    decision: str
    text: str
    kept: Judgement


@dataclass(frozen=True, slots=True)
class Changes:
    """What changed between two plans: decisions, sentences on derived values (`follows`), and the verdict on the
    whole old configuration under the new inputs (`stayed`).
    """

    decisions: tuple[Change, ...]
    follows: tuple[str, ...]
    stayed: Judgement


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


WORTH = 0.01  # a step that is this much longer is worth a checkpoint that is loaded with less ado
FREE = 0.001  # and this much longer is nothing
# Decisions on how a checkpoint is sharded, by what is kept together, each with its pins; and the micro-batch, that goes
# with a layout.
_KEPT: tuple[Mapping[str, tuple[str, ...]], ...] = (
    {"tp": ("tp",), "stages": ("pp", "vpp"), "experts": ("ep", "etp")},
    {"zero": ("zero",)},
    {"precision": ("precision",)},
    {"micro-batch": ("mbs",)},
)


@dataclass(frozen=True, slots=True)
class NearPlan:
    """The new plan's best candidate with some choices of the old plan, as `pins`. slower: its step over the new plan's,
    less 1. verdict: on loading the old plan's checkpoint.
    """

    pins: dict[str, str]
    candidate: Candidate
    slower: float
    verdict: Verdict

    @property
    def free(self) -> bool:
        """Return whether the step is at most FREE (0.1 %) slower."""
        return self.slower <= FREE


def nearest(old: Plan, new: Plan, loads: Loadable, loadable: Callable[[Plan], Loadable]) -> NearPlan | None:
    """Return the new plan with those old choices (of _KEPT) with which the old checkpoint loads best, at a step at most
    WORTH (1 %) longer. None if that is no better than `loads`, the verdict for `new`, or for another model or backend.
    Ties go to the faster, then to fewer pins. loadable: returns the verdict for any plan.
    """
    if loads.verdict is Verdict.AS_IS or old.model != new.model or old.best.target.backend != new.best.target.backend:
        return None
    before, after = carried(old.best, new), carried(new.best, new)
    free = [{name: pins for name, pins in group.items() if not {*pins} & {*new.job.pins}} for group in _KEPT]
    groups = [names for group in free if (names := [name for name in group if differs(name, before, after)])]
    every = {name: pins for group in _KEPT for name, pins in group.items()}
    plans = []
    for some in (each for size in range(1, len(groups) + 1) for each in combinations(groups, size)):
        names = [name for group in some for name in group]
        kept = judged(new, moved(after, before, (*names, SEQUENCE) if "tp" in names else tuple(names)))
        if kept.candidate is None or not kept.safe or kept.slower > WORTH:
            continue
        verdict = loadable(replace(new, best=kept.candidate)).verdict
        if verdict.rank < loads.verdict.rank:
            pins = {pin: _pin(pin, before) for name in names for pin in every[name]}
            pins = {pin: value for pin, value in pins.items() if value != "1" or _pin(pin, after) != "1"}
            plans.append(NearPlan(pins, kept.candidate, kept.slower, verdict))
    return min(plans, key=lambda one: (one.verdict.rank, max(0.0, one.slower), len(one.pins)), default=None)


def _pin(name: str, c: Setup) -> str:
    return str(getattr(c, {"zero": "zero_stage", "mbs": "micro"}.get(name, name)))
