"""Whether a plan's degrees and batch multiply out to its job's, and its stages hold its model: one that somebody edited
and signed anew may not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from math import prod

from symconfig.descriptor.job import Job
from symconfig.descriptor.model import ModelDescriptor
from symconfig.errors import Problem
from symconfig.plans.pipeline_layout import compact, dealt, expanded, letters, written
from symconfig.plans.plan import Candidate, Plan


def problems(plan: Plan, file: str) -> Iterator[Problem]:
    """Yield the contradictions of each candidate's degrees, batch and stages with the plan's job and model.

    Stages are checked only where degrees and batch are right. file: the name that the problems have.
    """
    places = ("best", *(f"alternatives.{place}" for place in range(len(plan.alternatives))))
    for where, candidate in zip(places, (plan.best, *plan.alternatives), strict=True):
        gathered = [*_products(candidate, plan.job, file, where)]
        yield from gathered or _stages(candidate, plan.model, file, where)


def _products(candidate: Candidate, job: Job, file: str, where: str) -> Iterator[Problem]:
    """Yield the problems of degrees and batch: wrong products, and differences from the job.

    With degrees below 1, only these are yielded.
    """
    degrees, batch = asdict(candidate.parallel), candidate.batch
    if wrong := [name for name, degree in degrees.items() if degree < 1]:
        for name in wrong:
            yield Problem(
                "is no degree", file=file, field=f"{where}.parallel.{name}", got=str(degrees[name]), need="1 or more"
            )
        return
    parallel = candidate.parallel

    def problem(field: str, what: str, got: str | int, need: str | int) -> Problem:
        return Problem(what, file=file, field=f"{where}.{field}", got=str(got), need=str(need))

    if job.gpus not in ("auto", parallel.world_size):
        split = _product(**{name: degrees[name] for name in ("tp", "pp", "cp", "dp")})
        yield problem("parallel", "do not multiply to the job's GPUs", split, job.gpus)
    ranks, experts = parallel.tp * parallel.cp * parallel.dp, parallel.ep * parallel.etp
    if ranks % experts:
        yield problem("parallel", "ep x etp does not divide tp x cp x dp", f"{experts} and {ranks}", "a divisor")
    if batch.micro * batch.num_microbatches * parallel.dp != batch.global_:
        held = _product(micro=batch.micro, num_microbatches=batch.num_microbatches, dp=parallel.dp)
        yield problem("batch", "does not multiply to its sequences", held, batch.global_)
    if batch.global_ != job.global_batch_size:
        yield problem("batch.global", "is not the job's batch", batch.global_, job.global_batch_size)
    if job.seq_length not in (None, batch.seq_length):
        yield problem("batch.seq_length", "is not the job's sequence", batch.seq_length, str(job.seq_length))


def _product(**factors: int) -> str:
    return f"{' x '.join(f'{name} {value:,}' for name, value in factors.items())} = {prod(factors.values()):,}"


def _stages(candidate: Candidate, model: ModelDescriptor, file: str, where: str) -> Iterator[Problem]:
    """Yield the first problem of the stages.

    There are other stages or chunks than pp and vpp say, other layers than the model's, or another division than the
    options say.
    """
    problem = partial(Problem, file=file, field=f"{where}.stages")
    pp, vpp = candidate.parallel.pp, candidate.parallel.vpp
    got = [len(stage.chunks) for stage in candidate.stages]
    if got != [vpp] * pp:
        has = f"{len(got)} stages of {', '.join(map(str, dict.fromkeys(got)))} chunks"
        yield problem("has other stages than its degrees say", got=has, need=f"{pp} of {vpp}")
        return
    chunks = [stage.chunks[chunk] for chunk in range(vpp) for stage in candidate.stages]
    held = tuple(kind for chunk in chunks for kind in chunk)
    need = (*model.encoder_kinds, "embedding", *model.layer_kinds, *("mtp",) * model.num_nextn_predict_layers, "head")
    if held != need:
        has = _counts(held) if Counter(held) != Counter(need) else "another order"
        yield problem("does not hold the model's layers once and in order", got=has, need=_counts(need))
    elif (kinds := _letters(candidate, model)) != [letters(chunk) for chunk in chunks]:
        says = compact(kinds) if kinds else candidate.options.stage_layout or "equal chunks"
        yield problem("has other stages than its options say", got=written(chunks), need=says)


def _letters(candidate: Candidate, model: ModelDescriptor) -> list[str]:
    """Return the letters of each chunk by the candidate's options; empty if no such division exists."""
    options, parallel = candidate.options, candidate.parallel
    if options.pipeline_layout is not None:
        return expanded(options.pipeline_layout)
    sizes = dealt(
        model.num_hidden_layers,
        parallel.pp,
        parallel.vpp,
        first=options.first_stage_layers,
        last=options.last_stage_layers,
        embedding=options.account_for_embedding,
        loss=options.account_for_loss,
    )
    chunks = ["t" * size for size in sizes or ()]
    if chunks:
        chunks[0] = "E" + chunks[0]
        chunks[-1] += "m" * model.num_nextn_predict_layers + "L"
    return chunks


def _counts(kinds: tuple[str, ...]) -> str:
    return " + ".join(f"{count} {kind}" for kind, count in Counter(kinds).items()) or "nothing"
