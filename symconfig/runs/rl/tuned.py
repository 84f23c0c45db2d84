"""The step of a job that tunes on sequences of many lengths, or on preferences: its phases, and the plan that makes it
short.

The planner solves an update of full sequences; what a step has of them, and what a loss reads beside what is learnt
from, is counted around each of its best plans.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace

from symconfig.descriptor.job import Job
from symconfig.descriptor.tuning import Loss
from symconfig.errors import InfeasibleError
from symconfig.format import gib
from symconfig.plans.plan import Candidate, Plan
from symconfig.plans.rl import BUSIEST, PlannedPhase, PlannedStep
from symconfig.render.learning import Compares
from symconfig.render.target import Target
from symconfig.runs.rl.logits import PLAIN, of_loss
from symconfig.runs.rl.trained import MODEL_STATES, WEIGHTS, Trained
from symconfig.solve.candidate import fullness
from symconfig.solve.interval import surprise
from symconfig.solve.lengths import documents, longest_of
from symconfig.solve.predict import restore
from symconfig.solve.space import device_budget

WEIGHED = 12  # plans of an update, around each of which the step is counted
_LEFT = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)  # shares of a GPU that an update leaves to what a loss has besides, all tried
_WIDEST = 0.89  # margin that a job may have
Solve = Callable[[Job, int], Plan]
Step = tuple[Plan, Candidate, PlannedStep]  # a plan of an update, one of its candidates, and the step around it


def answer(job: Job, solve: Solve, target: Target, top: int) -> Plan:
    """Return the plan whose fine-tuning step is the shortest, with the steps of it and of up to `top` - 1 alternatives
    in `tuned`. Layouts that exceed the job's memory risk are used only if no other fits. Of equal steps the lower peak
    wins; `binding` names the fullest phase. Raises InfeasibleError if no candidate's phases fit into the usable memory.
    """
    shortest = sorted(_steps(job, solve, target, top), key=lambda each: (each[2].step_s, _peak(each[2])))
    usable = shortest[0][0].usable_bytes
    sure = [each for each in shortest if _peak(each[2]) <= min(usable, _budget(each[0]))]
    fitting = (sure or [each for each in shortest if _peak(each[2]) <= usable])[:top]
    if not fitting:
        leanest = min((step for _, _, step in shortest), key=_peak)
        phase = max(leanest.phases, key=lambda phase: phase.bytes)
        what = f"nothing fits: the phase {phase.name} of the leanest plan is too full"
        got, need = f"{gib(phase.bytes)} GiB", f"{gib(usable)} GiB usable"
        hint = "more GPUs, or adapters (the section lora)"
        raise InfeasibleError(what, field="preference", got=got, need=need, hint=hint)
    plan, best, step = fitting[0]
    fullest = max(step.phases, key=lambda phase: phase.bytes)
    most, memory = min(usable, _budget(plan)), plan.cluster.gpu.memory_bytes.value
    return replace(
        plan,
        best=best,
        binding=f"{fullness(fullest.bytes, most, plan.job.limits, memory)}, in the phase {fullest.name}",
        alternatives=tuple(candidate for _, candidate, _ in fitting[1:]),
        tuned=tuple(step for _, _, step in fitting),
    )


def _steps(job: Job, solve: Solve, target: Target, top: int) -> Collection[Step]:
    """Return (plan of an update, candidate, its step) for the best candidates of an update, each layout once. With
    preferences, updates are solved at one memory margin after another (_LEFT) while there is a plan. Raises
    InfeasibleError if there is none at the first. top: as many candidates of each plan, at least WEIGHED.
    """
    steps: dict[str, Step] = {}
    for left in _LEFT if job.preference is not None else _LEFT[:1]:
        try:
            plan = solve(_update(job, left), max(top, WEIGHED))
        except InfeasibleError:
            if not steps:
                raise
            break
        plan = replace(plan, job=plan.job.model_copy(update={"limits": job.limits}))
        for each in plan.ranked:
            share = fill(plan.job, each.configuration.micro, each.configuration.seq_length)
            logits = PLAIN if plan.job.preference is None else of_loss(plan.job.preference.means, target.name)
            step = counted(plan, Trained(plan, each, share, logits), target.compares)
            steps.setdefault(repr(each.configuration), (plan, each, step))
    return steps.values()


def _budget(plan: Plan) -> float:
    """Return the bytes of a GPU that a step may take at the job's `memory_risk`."""
    prospect = restore(plan, plan.best)
    risk = surprise(plan.model, plan.cluster, plan.job.limits.memory_risk)
    return device_budget(replace(prospect.request, job=plan.job, surprise=risk), prospect.machine)


def _update(job: Job, left: float) -> Job:
    """Return the job of one update: with `left` added to its memory margin (at most _WIDEST), and packing. left: share
    of each GPU that is reserved for what the loss reads besides.
    """
    margin = min(job.limits.memory_margin + left, _WIDEST)
    changes: dict[str, object] = {"limits": job.limits.model_copy(update={"memory_margin": margin})}
    if job.sequences is not None and job.sequences.batching == "packed":
        changes["packing"] = documents(job.sequences)
    return job.model_copy(update=changes)


def fill(job: Job, micro: int, seq_length: int) -> float:
    """Return the share (0 to 1) of a micro-batch's token positions that are taken; 1 without `sequences` or with
    packing. padding_free: real tokens; padded: all up to the expected longest of `micro` sequences.
    """
    sequences = job.sequences
    if sequences is None or sequences.batching == "packed":
        return 1.0
    return (sequences.mean if sequences.batching == "padding_free" else longest_of(sequences, micro)) / seq_length


def counted(plan: Plan, trained: Trained, how: Compares | None, *, resident: bool = True) -> PlannedStep:
    """Return the step of a trained model: its phases, seconds with their 90 % interval (the candidate's, scaled to the
    step), and host bytes. how: in which order and with which copies the program trains on preferences; None: as is
    usual. resident: whether the reference model stays on the GPU.
    """
    candidate, phases = trained.candidate, tuple(_phases(plan, trained, how or Compares(losses=()), resident))
    step_s = sum(phase.seconds for phase in phases)
    low, high = (step_s * end / candidate.predicted.step_s for end in candidate.predicted.interval["step_s"])
    return PlannedStep(
        host_bytes=candidate.predicted.host_bytes,
        step_s=step_s,
        interval=(low, high),
        phases=phases,
    )


def _phases(plan: Plan, trained: Trained, how: Compares, resident: bool) -> Iterator[PlannedPhase]:
    """Yield the phases of a step: forwards for the KL term and of the reference (only if the loss has them), then the
    update. With an adapter the reference is the model without it, unless the program copies the weights. resident:
    whether the reference's weights stay on the GPU, then in all phases. During these forwards the GPU also holds the
    policy's activations, unless the program reads before the policy's forward (`how.first`) and pp is 1.
    """
    means = Loss(reference=0) if plan.job.preference is None else plan.job.preference.means
    held, tokens = {part: trained.memory[part] for part in MODEL_STATES}, trained.tokens_per_gpu
    if means.reference and resident and (plan.model.adapter is None or how.copies):
        held["reference"] = trained.memory[WEIGHTS]
    for name, reader, forwards in (("KL term", "model", means.read), ("reference", "reference", means.reference)):
        alone, most = reader in how.first and trained.candidate.configuration.pp == 1, trained.busiest
        kept = 0.0 if alone else trained.kept_bytes
        read = {"policy's activations and logits": kept, "forward": trained.forward_bytes()}
        read[BUSIEST] = most.forward_bytes() + (0.0 if alone else most.kept_bytes) - sum(read.values())
        if forwards:
            yield PlannedPhase.of(name, forwards * trained.forward_s(1), _whole(trained, held | read), tokens)
    peak = trained.peak_bytes()
    passing = {"activations, head and loss": peak - sum(trained.memory[part] for part in MODEL_STATES)}
    passing[BUSIEST] = trained.busiest.peak_bytes() - peak
    yield PlannedPhase.of("update", trained.update_s(1), _whole(trained, held | passing), tokens)


def _whole(trained: Trained, held: dict[str, float]) -> dict[str, float]:
    """Return the named bytes of a phase with entries "allocator" and "libraries" added; entries of 0 are dropped."""
    allocated = sum(held.values())
    extra = {"allocator": trained.reserved(allocated) - allocated, "libraries": trained.libraries}
    return {name: size for name, size in (held | extra).items() if size}


def _peak(step: PlannedStep) -> float:
    return max(phase.bytes for phase in step.phases)
