"""Rules about what is predicted, of a run and of the phases of a step: they need the model of costs, and a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from symconfig.errors import Problem
from symconfig.existing.audit.judge import Judged
from symconfig.existing.rules import rl
from symconfig.existing.rules.rule import Language, rules_of
from symconfig.format import gib
from symconfig.plans.plan import Plan
from symconfig.plans.rl import PlannedPhase, surprised
from symconfig.solve.budget import surprise

_GENERATES = ("generation", "weights to the engine")
_READS = ("log-probabilities", "reference", "values")
_REFERENCE = "reference"  # a part of a phase
_LLAMA = (
    "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 11008 --num-attention-heads 32 --vocab-size 32000 --swiglu "
    "--disable-bias-linear --normalization RMSNorm --position-embedding-type rope "
    "--untie-embeddings-and-output-weights --micro-batch-size 1 --global-batch-size 64 --bf16 "
    "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather"
)


def out_of_memory(judged: Judged) -> Iterator[Problem]:
    """Yield one problem about the fullest stage if any stage exceeds the usable memory."""
    over, plan = judged.overfull, judged.plan
    predicted = plan.best.predicted
    if not over:
        return
    worst = max(over, key=lambda number: judged.stage_bytes[number])
    where = f"stage {worst}" if plan.best.parallel.pp > 1 else "every GPU"
    others = f", and stages {', '.join(map(str, over))} are too full" if len(over) > 1 else ""
    parts = sorted(predicted.memory.items(), key=lambda item: -item[1])[:2]
    most = " and ".join(f"{name} {gib(value)} GiB" for name, value in parts)
    yield Problem(
        f"runs out of memory on {where}{others}",
        field="memory",
        got=f"{gib(judged.stage_bytes[worst])} GiB, of which {most}",
        need=f"{gib(plan.usable_bytes)} GiB usable of {gib(plan.cluster.gpu.memory_bytes.value)} GiB",
    )


def little_room(judged: Judged) -> Iterator[Problem]:
    """Yield a problem if the run fits, but the memory interval's upper end may not."""
    plan = judged.plan
    if judged.fits and plan.may_not_fit:
        high = plan.best.predicted.interval["device_bytes"][1]
        yield Problem(
            "may run out of memory",
            field="memory",
            got=f"{gib(plan.best.predicted.device_bytes)} GiB, likely up to {gib(high)} GiB",
            need=f"{gib(plan.cluster.gpu.memory_bytes.value)} GiB",
        )


def engine_share_too_large(judged: Judged) -> Iterator[Problem]:
    yield from _too_full(judged.plan, _GENERATES, "a smaller share, or offload of the actor's parameters and optimizer")


def log_probabilities_too_large(judged: Judged) -> Iterator[Problem]:
    if not judged.by_assumed_lengths:
        yield from _too_full(judged.plan, _READS, "fewer tokens in a micro-batch of log-probabilities")


def update_out_of_memory(judged: Judged) -> Iterator[Problem]:
    if not judged.by_assumed_lengths:
        ways = "fewer tokens in a micro-batch, or more ranks for a sequence"
        updates = [phase.name for phase in judged.plan.steps[0].phases if phase.name not in (*_GENERATES, *_READS)]
        yield from _too_full(judged.plan, updates, ways)


def reference_not_offloaded(judged: Judged) -> Iterator[Problem]:
    """Yield a problem for the first phase that exceeds the usable memory, but would fit without the reference model.

    The reference's own phase is passed over.
    """
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
    """Yield one problem if phases may run out of memory, but none surely does; nothing if the reference is to blame."""
    plan = judged.plan
    if any(reference_not_offloaded(judged)):
        return
    ratio = surprise(plan.model, plan.cluster, plan.job.limits.memory_risk)
    over = [
        phase
        for phase in plan.steps[0].phases
        if phase.bytes > plan.usable_bytes or surprised(phase.holds, ratio) > _memory(plan)
    ]
    sure = [phase for phase in over if phase.name in _GENERATES or not judged.by_assumed_lengths]
    if over and not any(phase.bytes > _memory(plan) for phase in sure):
        hint = "--prompt-length and --response-length, as they are in the mean" if judged.by_assumed_lengths else None
        yield _fullest(plan, over, "may run out of memory", hint)


def _too_full(plan: Plan, names: Sequence[str], hint: str) -> Iterator[Problem]:
    over = [phase for phase in plan.steps[0].phases if phase.name in names and phase.bytes > _memory(plan)]
    if over:
        yield _fullest(plan, over, "runs out of memory", hint)


def _memory(plan: Plan) -> float:
    return plan.cluster.gpu.memory_bytes.value


def _fullest(plan: Plan, phases: Sequence[PlannedPhase], what: str, hint: str | None) -> Problem:
    """Return the problem of the phase with the most bytes, with its two largest parts and the names of the other
    phases.
    """
    worst = max(phases, key=lambda phase: phase.bytes)
    parts = sorted(worst.holds.items(), key=lambda item: -item[1])[:2]
    most = " and ".join(f"{name} {gib(value)} GiB" for name, value in parts)
    others = [phase.name for phase in phases if phase is not worst]
    rest = f", and {', '.join(others)} {'is' if len(others) == 1 else 'are'} too full" if others else ""
    return Problem(
        f"{what} in the phase {worst.name}{rest}",
        field="memory",
        got=f"{gib(worst.bytes)} GiB, of which {most}",
        need=f"{gib(plan.usable_bytes)} GiB usable of {gib(_memory(plan))} GiB",
        hint=hint,
    )


_LANGUAGE: Language[Judged] = Language(getattr, lambda *_, **__: None, {}, {**rl.BASES, "LLAMA": _LLAMA})
MEMORY, PHASES = (rules_of(file, _LANGUAGE, globals()) for file in ("prediction", "phases"))
