"""What a run costs, by the planner's own estimate without a search, and the rules about that and about the phases of a
step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pydantic import ValidationError

from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.document import Document
from symconfig.descriptor.job import Job, Limits
from symconfig.descriptor.strict import problems
from symconfig.errors import InputError, Problem
from symconfig.existing.recover.run import Impossible, Run
from symconfig.existing.rules import megatron
from symconfig.existing.rules.deepspeed import GRID
from symconfig.existing.rules.rule import Check, Language, bases_of, rules_of
from symconfig.format import gib
from symconfig.frameworks.known import BACKENDS
from symconfig.plans.plan import Plan
from symconfig.plans.rl import PlannedPhase, surprised
from symconfig.solve.estimate import Estimate, priced
from symconfig.solve.interval import surprise
from symconfig.solve.predict import as_found
from symconfig.solve.run import with_training


@dataclass(frozen=True, kw_only=True)
class Judged(Estimate):
    """An estimate of a run."""

    run: Run

    @property
    def by_assumed_lengths(self) -> bool:
        """Return whether sequence lengths were assumed, so that memory that depends on them is uncertain."""
        return self.run.step is not None and self.run.step.assumed_lengths


def judge(run: Run, cluster: ClusterDescriptor, limits: Limits) -> Judged:
    """Return the estimated time and memory of a run, without a search, also if it does not fit.

    Raises InputError for values that no job can have, and with `Impossible` problems for degrees that do not divide
    what they must. Other constraints do not keep a run from being predicted.
    """
    model = run.described.model
    job = with_training(model, job_of(run, cluster, limits))
    prospect = as_found(model, cluster, run.configuration, job)
    fixed, point = prospect.request.limits.fixed, prospect.configuration
    # Other constraints that refuse it do not keep a run from being predicted.
    if wrong := [each for each in prospect.refused() if each.divides]:
        named = {each: rule.name for rule in reversed(megatron.RULES) for each in rule.constraints}
        raise InputError(
            [Impossible(what=each.sentence_at(fixed, point), rule=named.get(each, GRID)) for each in wrong]
        )
    plan, memory = priced(prospect, cluster, job, target=run.target)
    c = plan.best.configuration
    if run.target.backend == "fsdp" and c.instances >= c.tp * c.cp * c.dp:  # each GPU holds a copy of its own
        plan = replace(plan, best=replace(plan.best, configuration=replace(c, zero_stage=0)))
    return Judged(plan=plan, memory=memory, run=run)


def job_of(run: Run, cluster: ClusterDescriptor, limits: Limits) -> Job:
    """Return the job that the run solves; degrees, recompute, overlap and other options are left to the planner.

    It has the run's model, cluster, GPUs, batch, sequence length, packing, precision, task, optimizer, backend and
    release, and `limits`. Raises InputError for values that no job can have.
    """
    configuration, model = run.configuration, run.described.model
    fields = {
        "model": run.described.zoo or model.name,
        "cluster": cluster.name,
        "gpus": configuration.world_size,
        "global_batch_size": configuration.global_batch,
        "seq_length": configuration.seq_length,
        "packing": configuration.packing,
        "backend": run.target.backend,
        "precision": configuration.precision,
        **_task(run),
        **({} if run.program is None else {"target": run.program}),
        "limits": limits.model_dump(),
        "optimizer": run.optimizer.model_dump(exclude_unset=True) or {},
        **BACKENDS[run.target.backend].releases.fields(run.target.version),
    }
    try:
        return Job.model_validate(fields)
    except ValidationError as error:
        raise InputError(list(problems(error, Document(fields, file=""), Job))) from None


def _task(run: Run) -> dict[str, object]:
    """Return the fields of a job for its task: RL, preference, LoRA (if the model has an adapter) or pretraining."""
    if run.step is not None:
        return {"task": "rl", "rl": run.step.rl}
    if run.alone is not None and run.alone.preference is not None:
        return {"task": run.alone.preference.means.task, "preference": run.alone.preference}
    return {"task": "lora" if run.described.model.adapter else "pretrain"}


_GENERATES = ("generation", "weights to the engine")
_READS = ("log-probabilities", "reference", "values")
_REFERENCE = "reference"  # a part of a phase


def out_of_memory(judged: Judged) -> Iterator[Problem]:
    """Yield one problem about the fullest stage, with its two largest parts, if any stage exceeds the usable memory.

    If several do, all of them are named. Nothing otherwise.
    """
    over, plan = judged.overfull, judged.plan
    if not over:
        return
    worst = max(over, key=lambda number: judged.stage_bytes[number])
    where = f"stage {worst}" if plan.best.configuration.pp > 1 else "every GPU"
    others = f", and stages {', '.join(map(str, over))} are too full" if len(over) > 1 else ""
    what = f"runs out of memory on {where}{others}"
    yield _beyond_memory(plan, what, judged.stage_bytes[worst], plan.best.predicted.memory)


def little_room(judged: Judged) -> Iterator[Problem]:
    """Yield a problem if the run fits, but its memory interval may exceed the GPU (`Plan.may_not_fit`)."""
    plan = judged.plan
    if judged.fits and plan.may_not_fit:
        high = plan.best.predicted.interval["device_bytes"][1]
        yield Problem(
            "may run out of memory",
            field="memory",
            got=f"{gib(plan.best.predicted.device_bytes)} GiB, likely up to {gib(high)} GiB",
            need=f"{gib(plan.cluster.gpu.memory_bytes.value)} GiB",
        )


def _too_full(concerns: Callable[[str], bool], hint: str, *, sure: bool = False) -> Check[Judged]:
    """Return a check that yields one problem if phases whose names it `concerns` exceed the GPU's memory.

    Nothing if that depends on assumed lengths of sequences, unless it is `sure`.
    """

    def check(judged: Judged) -> Iterator[Problem]:
        plan = judged.plan
        over = [each for each in plan.steps[0].phases if concerns(each.name) and each.bytes > _gpu_bytes(plan)]
        if over and (sure or not judged.by_assumed_lengths):
            yield _fullest(plan, over, "runs out of memory", hint)

    return check


engine_share_too_large = _too_full(
    lambda name: name in _GENERATES, "a smaller share, or offload of the actor's parameters and optimizer", sure=True
)
log_probabilities_too_large = _too_full(
    lambda name: name in _READS, "fewer tokens in a micro-batch of log-probabilities"
)
update_out_of_memory = _too_full(
    lambda name: name not in (*_GENERATES, *_READS), "fewer tokens in a micro-batch, or more ranks for a sequence"
)


def reference_not_offloaded(judged: Judged) -> Iterator[Problem]:
    """Yield a problem for the first phase that would fit into memory without the reference model."""
    plan = judged.plan
    for phase in plan.steps[0].phases:
        rests = phase.holds.get(_REFERENCE, 0.0) if phase.name != "reference" else 0.0
        if rests and phase.bytes > plan.usable_bytes >= phase.bytes - rests:
            got, need = f"{gib(phase.bytes)} GiB, of which it has {gib(rests)}", f"{gib(plan.usable_bytes)} GiB usable"
            what = f"keeps the reference on the GPU, which is too full in the phase {phase.name}"
            around = judged.run.around
            hint = around.trainer.offload if around is not None else None
            yield Problem(what, field="memory", got=got, need=need, hint=hint)
            return


def phase_has_little_room(judged: Judged) -> Iterator[Problem]:
    """Yield one problem if phases may exceed the GPU's memory, by the prediction or the upper end of its interval.

    Nothing if one surely exceeds it as predicted, which other rules report: a phase that generates, or any if sequence
    lengths are not assumed. Nothing either if `reference_not_offloaded` has a problem.
    """
    plan = judged.plan
    if any(reference_not_offloaded(judged)):
        return
    ratio = surprise(plan.model, plan.cluster, plan.job.limits.memory_risk)
    over = [
        phase
        for phase in plan.steps[0].phases
        if phase.bytes > plan.usable_bytes or surprised(phase.holds, ratio) > _gpu_bytes(plan)
    ]
    sure = [phase for phase in over if phase.name in _GENERATES or not judged.by_assumed_lengths]
    if over and not any(phase.bytes > _gpu_bytes(plan) for phase in sure):
        hint = "--prompt-length and --response-length, as they are in the mean" if judged.by_assumed_lengths else None
        yield _fullest(plan, over, "may run out of memory", hint)


def _gpu_bytes(plan: Plan) -> float:
    return plan.cluster.gpu.memory_bytes.value


def _fullest(plan: Plan, phases: Sequence[PlannedPhase], what: str, hint: str | None) -> Problem:
    """Return the problem of the fullest of `phases`, with its largest parts; `what` is wrong in it."""
    worst = max(phases, key=lambda phase: phase.bytes)
    others = [phase.name for phase in phases if phase is not worst]
    rest = f", and {', '.join(others)} {'is' if len(others) == 1 else 'are'} too full" if others else ""
    return _beyond_memory(plan, f"{what} in the phase {worst.name}{rest}", worst.bytes, worst.holds, hint)


def _beyond_memory(plan: Plan, what: str, used: float, parts: Mapping[str, float], hint: str | None = None) -> Problem:
    """Return the problem that `used` bytes are too many, with the two largest of `parts` (bytes by name)."""
    largest = sorted(parts.items(), key=lambda item: -item[1])[:2]
    most = " and ".join(f"{name} {gib(value)} GiB" for name, value in largest)
    need = f"{gib(plan.usable_bytes)} GiB usable of {gib(_gpu_bytes(plan))} GiB"
    return Problem(what, field="memory", got=f"{gib(used)} GiB, of which {most}", need=need, hint=hint)


_LANGUAGE: Language[Judged] = Language(getattr, lambda *_: None, {}, bases_of("rl"))
MEMORY, PHASES = (rules_of(file, _LANGUAGE, globals()) for file in ("prediction", "phases"))
