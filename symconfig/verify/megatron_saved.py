"""What a stage keeps for the backward: symconfig's bytes beside those that autograd saved in Megatron's modules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from symconfig.cost.machine import LOW_PRECISION
from symconfig.cost.pipeline import in_flight
from symconfig.descriptor.sections import NO_MIXER
from symconfig.errors import SymconfigError
from symconfig.format import count, seconds
from symconfig.plans.plan import Plan
from symconfig.solve.costed import costed
from symconfig.units import MIB
from symconfig.verify import megatron_rank
from symconfig.verify.checks import Check, Compared
from symconfig.verify.megatron_session import Job, Result
from symconfig.verify.rank_states import stage_of, with_local_layers

TASK = "trace"
DISPATCHER = "alltoall"
TOLERANCE = 0.02  # of a stage


def saved_bytes(plan: Plan, stage: int) -> float:
    """Return the bytes kept for the backward by one microbatch of every chunk of a stage, as predicted with Megatron's
    own layers: activations over microbatches in flight, plus the head's. Raises SymconfigError if it cannot be costed.
    """
    found = costed(with_local_layers(plan))
    memory, microbatches = found.cost.memory, in_flight(found.points, found.setting)
    activations, head = (float(memory[part][stage].item()) for part in ("activations", "head and loss"))
    return activations / float(microbatches[stage].item()) + head


def unfit(plan: Plan) -> str | None:
    """Return why Megatron's own layers on a CPU keep other tensors than the plan's, or None if they keep the same.
    Reasons: sparse attention, scans, an 8- or 4-bit precision, or a dispatcher of experts other than DISPATCHER.
    """
    options = plan.best.configuration
    if plan.model.indexer is not None:
        return "kernels of sparse attention are of other packages, and what PyTorch does in their place keeps scores"
    if any(mixer.block != NO_MIXER for mixer in plan.model.mixers):
        return "scans are kernels of other packages, and what PyTorch does in their place keeps every step"
    if options.precision in LOW_PRECISION:
        return f"Megatron's own layers have no {options.precision}"
    if options.moe_dispatcher not in (None, DISPATCHER):
        return f"the number of tokens of an expert is known for {DISPATCHER} only, not for {options.moe_dispatcher}"
    return None


def jobs(job: Job, plan: Plan) -> list[Job]:
    """Return a trace job for each rank that would be built; none if `unfit`."""
    if unfit(plan) is not None:
        return []
    return [replace(job, id=f"{job.id}{TASK} {rank}", rank=rank, task=TASK) for rank in megatron_rank.ranks(plan)]


def checks(plan: Plan, jobs: Sequence[Job], results: Mapping[str, Result], place: str, file: str) -> Iterator[Check]:
    """Yield a check for each traced rank (job) with predicted and kept bytes, which may differ by TOLERANCE; a failed
    job or plan fails. One skipped check first if `unfit`.
    """
    if (reason := unfit(plan)) is not None:
        yield Check(f"{place}: kept for the backward", "skipped", reason, 0.0)
    for job in jobs:
        result, stage = results[job.id], stage_of(plan.best.configuration, job.rank)
        name = f"{place}: rank {job.rank}, stage {stage}, kept for the backward"
        if not result.ok:
            yield Check(name, "failed", f"{file}: {result.error}", result.seconds)
            continue
        try:
            row = Compared("all of the stage", saved_bytes(plan, stage), result.rank["saved_bytes"], "bytes")
        except SymconfigError as error:
            yield Check(name, "failed", " ".join(map(str, error.problems)), result.seconds)
            continue
        differs = abs(row.ours - row.real) > TOLERANCE * row.real
        off = f"{100 * row.difference:+.2f} %" if row.real else "nothing kept"
        detail = (
            f"Megatron's own layers keep {count(row.real / MIB)} MiB of one microbatch of every chunk, symconfig has "
            f"{count(row.ours / MIB)} MiB ({off}); traced in {seconds(result.rank['seconds'])} s with "
            f"{count(result.rank['max_rss_bytes'] / MIB)} MiB"
        )
        yield Check(name, "failed" if differs else "passed", detail, result.seconds, (row,))
