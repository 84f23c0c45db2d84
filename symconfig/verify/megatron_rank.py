"""Ranks of a plan as Megatron's own code builds them: their parameters one by one, and their bytes, as planned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from symconfig.cost.machine import LOW_PRECISION
from symconfig.cost.pipeline import in_flight
from symconfig.descriptor.sections import NO_MIXER
from symconfig.errors import Problem, SymconfigError
from symconfig.format import count, seconds
from symconfig.frameworks.megatron.environment import used
from symconfig.frameworks.megatron.releases import between
from symconfig.plans.plan import Plan
from symconfig.solve.costed import costed
from symconfig.units import MIB
from symconfig.verify.checks import Check, Compared
from symconfig.verify.megatron_session import Job, Result
from symconfig.verify.rank_states import (
    PADDING,
    Parameter,
    Predicted,
    chunk_parameters,
    coordinates,
    predicted,
    stage_of,
    with_local_layers,
)

BUILD = "build"

BUILDERS_SINCE = "core_v0.19.0"  # megatron/training/models

NAMED = 4  # sizes of parameters that a sentence names

Chunks = Sequence[Sequence[Parameter]]  # of each virtual stage


def ranks(plan: Plan) -> tuple[int, ...]:
    """Return the ranks to build, in order of stages: on the first, a middle and the last stage, and one on every other
    kind of stage (by layers of its chunks); with one stage its first and last rank.

    From the first chosen stage to the last the rank's position within its stage rises evenly from 0 to the end, since
    shards differ by it; equal ranks occur once.
    """
    kinds = [stage.chunks for stage in plan.best.stages]
    wanted = {0, len(kinds) // 2, len(kinds) - 1, *(kinds.index(kind) for kind in kinds)}
    within = plan.best.configuration.world_size // len(kinds)
    stages = sorted(wanted) if len(wanted) > 1 else [0, 0]
    last = len(stages) - 1
    return tuple(dict.fromkeys(stage * within + place * (within - 1) // last for place, stage in enumerate(stages)))


def build_jobs(job: Job, plan: Plan) -> list[Job]:
    """Return a build job for each of `ranks(plan)`; ids continue the job's."""
    return [replace(job, id=f"{job.id}rank {rank}", rank=rank, task=BUILD) for rank in ranks(plan)]


def unbuilt(plan: Plan) -> str | None:
    """Return why the plan's ranks cannot be built, or None if they can: a release before BUILDERS_SINCE, or an
    optimizer other than Adam with master weights and moments in fp32.
    """
    if not between(plan.best.target.version, BUILDERS_SINCE, None):
        return f"with {plan.best.target.version}: ranks are built with the builders of {BUILDERS_SINCE} and later"
    optimizer = plan.job.optimizer
    if optimizer.usual:
        return None
    wants = {"muon": "emerging_optimizers", "adam": "Transformer Engine's Adam"}.get(optimizer.name, "its states")
    return f"with {optimizer.name} as the job has it: that wants {wants}, and ranks are built without"


def check(plan: Plan, job: Job, result: Result, place: str, file: str) -> Check:
    """Return the check of one built rank against the plan, with the compared figures; failed if the job failed, the
    plan cannot be costed, or any problem is found. place: names the Megatron; file: of the arguments.
    """
    stage = stage_of(plan.best.configuration, job.rank)
    name = f"{place}: rank {job.rank}, stage {stage}"
    if not result.ok:
        return Check(name, "failed", f"{file}: {result.error}", result.seconds)
    try:
        chunks = chunk_parameters(plan, stage)
        rows = tuple(compared(chunks, predicted(plan, stage), result.rank))
        wrong = " ".join(str(problem) for problem in problems(plan, job.rank, chunks, rows, result.rank, file))
    except SymconfigError as error:
        return Check(name, "failed", " ".join(map(str, error.problems)), result.seconds)
    return Check(name, "failed" if wrong else "passed", wrong or _passed(plan, result.rank), result.seconds, rows)


def _passed(plan: Plan, real: Mapping[str, Any]) -> str:
    """Return the detail of a passed check: number of parameters, coordinates, seconds, MiB, and options whose kernels
    need modules that ranks are built without.
    """
    places = ", ".join(f"{axis} {place}" for axis, place in real["coordinates"].items())
    listed = sum(len(chunk["parameters"]) for chunk in real["chunks"])
    left = [option.label for option in used(plan) if any(need.module for need in option.needs)]
    without = f", without {', '.join(left)}" if left else ""
    return (
        f"{count(listed)} parameters as planned, with the buffers and shards of {places}; built in "
        f"{seconds(real['seconds'])} s with {count(real['max_rss_bytes'] / MIB)} MiB{without}"
    )


def compared(chunks: Chunks, ours: Predicted, real: Mapping[str, Any]) -> Iterator[Compared]:
    """Yield planned and real parameters (count), gradient buffers and optimizer shard (bytes)."""
    held = sum(parameter.elements for chunk in chunks for parameter in chunk)
    yield Compared("parameters", held, real["parameters"], "count")
    yield Compared("gradient buffers", ours.gradient_bytes, real["gradient_buffer_bytes"], "bytes")
    yield Compared("optimizer shard", ours.optimizer_bytes, real["optimizer_shard_bytes"], "bytes")


def problems(
    plan: Plan, rank: int, chunks: Chunks, rows: Sequence[Compared], real: Mapping[str, Any], file: str
) -> Iterator[Problem]:
    """Yield a problem for each difference in coordinates, number of chunks (then nothing more), chunks' parameters, and
    bytes beyond PADDING. Of chunks with other parameters the first is described and the rest are counted. Rows in other
    units than bytes are not judged.
    """
    parallel = plan.best.configuration
    here = coordinates(parallel if plan.model.experts else replace(parallel, etp=parallel.tp), rank)
    for axis, got in real["coordinates"].items():
        if (place := here[axis]) != got:
            what = "Megatron puts this rank at another place"
            yield Problem(what, file=file, field=axis, got=str(got), need=str(place))
    if len(chunks) != len(real["chunks"]):
        what = "Megatron builds another number of virtual stages"
        yield Problem(what, file=file, field="vpp", got=str(len(real["chunks"])), need=str(len(chunks)))
        return
    pairs = zip(chunks, real["chunks"], strict=True)
    others = {place: text for place, pair in enumerate(pairs) if (text := parameters(pair[0], pair[1]["parameters"]))}
    for place, text in [*others.items()][:1]:
        yield Problem(f"Megatron builds other parameters: {text}", file=file, field=f"chunk {place}")
    if len(others) > 1:
        yield Problem("Megatron builds other parameters here, too", file=file, field=f"{len(others) - 1} more chunks")
    for row in rows:
        if row.unit == "bytes" and abs(row.ours - row.real) > PADDING * row.real:
            need = count(row.ours)
            yield Problem("Megatron holds other bytes", file=file, field=row.what, got=count(row.real), need=need)


def parameters(ours: Sequence[Parameter], real: Sequence[tuple[str, int, bool]]) -> str:
    """Return text on parameters that only one side has, matched by size and trainability, not by name; at most NAMED
    kinds of each side, "" if there are none. ours: the plan's; real: (name, elements, trainable) as built.
    """
    mine = [(item.name, item.elements, item.trainable) for item in ours]
    parts = []
    for word, these, those in (("it has", real, mine), ("the plan has", mine, real)):
        more = Counter(tuple(kind) for _, *kind in these) - Counter(tuple(kind) for _, *kind in those)
        named = []
        for (elements, trainable), number in more.items():
            name = next(name for name, *kind in these if kind == [elements, trainable])
            rest = f" and {number - 1} more" if number > 1 else ""
            named.append(f"{name} ({count(elements)}{'' if trainable else ', frozen'}){rest}")
        if named:
            parts.append(f"{word} {', '.join(named[:NAMED])}{', …' if len(named) > NAMED else ''}")
    return "; ".join(parts)


TRACE = "trace"

DISPATCHER = "alltoall"

TOLERANCE = 0.02  # of a stage


def saved_bytes(plan: Plan, stage: int) -> float:
    """Return the bytes kept for the backward by one microbatch of every chunk of a stage, as predicted with Megatron's
    own layers: activations divided by the microbatches in flight, plus the head's. Raises SymconfigError if it cannot
    be costed.
    """
    found = costed(with_local_layers(plan))
    memory, microbatches = found.cost.memory, in_flight(found.points, found.setting)
    activations, head = (float(memory[part][stage].item()) for part in ("activations", "head and loss"))
    return activations / float(microbatches[stage].item()) + head


def untraced(plan: Plan) -> str | None:
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


def trace_jobs(job: Job, plan: Plan) -> list[Job]:
    """Return a trace job for each rank that would be built; none if `untraced`."""
    if untraced(plan) is not None:
        return []
    return [replace(job, id=f"{job.id}{TRACE} {rank}", rank=rank, task=TRACE) for rank in ranks(plan)]


def trace_checks(
    plan: Plan, jobs: Sequence[Job], results: Mapping[str, Result], place: str, file: str
) -> Iterator[Check]:
    """Yield a check for each traced rank (job) with predicted and kept bytes, which may differ by TOLERANCE; a failed
    job or plan fails. One skipped check first if `untraced`.
    """
    if (reason := untraced(plan)) is not None:
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
