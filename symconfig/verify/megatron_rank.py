"""Ranks of a plan as Megatron's own code builds them, against symconfig's numbers: exactly, or the check fails."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from typing import Any

from symconfig.errors import Problem, SymconfigError
from symconfig.format import count, seconds
from symconfig.frameworks.megatron.environment import used
from symconfig.plans.plan import Plan
from symconfig.units import MIB
from symconfig.verify.checks import Check, Compared
from symconfig.verify.megatron_session import Job, Result
from symconfig.verify.states.grid import stage_of
from symconfig.verify.states.inventory import Parameter
from symconfig.verify.states.megatron import Buffer, RankStates, rank_states

TASK = "build"
NAMED = 4  # parameters that a sentence names

# What makes a parameter another one, for buffers and shards.
Kind = tuple[int, bool, bool]


def ranks(plan: Plan) -> tuple[int, ...]:
    """Choose the first rank, one of a middle stage, the last, and one of every further kind of stage.

    Each is at another place within its stage, because shards differ by it. Megatron's stages are blocks of ranks.
    """
    kinds = [stage.chunks for stage in plan.best.stages]
    wanted = {0, len(kinds) // 2, len(kinds) - 1, *(kinds.index(kind) for kind in kinds)}
    within = plan.best.parallel.world_size // len(kinds)
    stages = sorted(wanted) if len(wanted) > 1 else [0, 0]
    last = len(stages) - 1
    return tuple(dict.fromkeys(stage * within + place * (within - 1) // last for place, stage in enumerate(stages)))


def jobs(job: Job, plan: Plan) -> list[Job]:
    """Return one job for each of the plan's ranks to build; their ids go on from the job's."""
    return [replace(job, id=f"{job.id}rank {rank}", rank=rank, task=TASK) for rank in ranks(plan)]


def unbuilt(plan: Plan) -> str | None:
    """Return why a plan's ranks are not built; None: they are."""
    optimizer = plan.job.optimizer
    if optimizer.usual:
        return None
    wants = {"muon": "emerging_optimizers", "adam": "Transformer Engine's Adam"}.get(optimizer.name, "its states")
    return f"with {optimizer.name} as the job has it: that wants {wants}, and ranks are built without"


def check(plan: Plan, job: Job, result: Result, place: str, file: str) -> Check:
    """Check one rank's numbers. `place`: which Megatron; `file`: of the arguments."""
    name = f"{place}: rank {job.rank}, stage {stage_of(plan.best.parallel, job.rank)}"
    if not result.ok:
        return Check(name, "failed", f"{file}: {result.error}", result.seconds)
    try:
        ours = rank_states(plan, job.rank, "local")
    except SymconfigError as error:
        return Check(name, "failed", " ".join(map(str, error.problems)), result.seconds)
    wrong = " ".join(str(problem) for problem in problems(ours, result.rank, file))
    return Check(
        name,
        "failed" if wrong else "passed",
        wrong or _passed(plan, result.rank),
        result.seconds,
        tuple(compared(ours, result.rank)),
    )


def _passed(plan: Plan, real: Mapping[str, Any]) -> str:
    places = ", ".join(f"{axis} {place}" for axis, place in real["coordinates"].items())
    listed = sum(len(chunk["parameters"]) for chunk in real["chunks"])
    return (
        f"{count(listed)} parameters as planned, with the buffers and shards of {places}; built in "
        f"{seconds(real['seconds'])} s with {count(real['max_rss_bytes'] / MIB)} MiB{_not_built(plan)}"
    )


def _not_built(plan: Plan) -> str:
    """Say which options of the plan were left out, since they are kernels of modules that a GPU runs."""
    left = [option.label for option in used(plan) if any(need.module for need in option.needs)]
    return f", without {', '.join(left)}" if left else ""


def compared(ours: RankStates, real: Mapping[str, Any]) -> Iterator[Compared]:
    """Yield the sums: symconfig's and Megatron's."""
    yield Compared("parameters", ours.parameters, real["parameters"], "count")
    yield Compared("gradient buffers", ours.gradient_buffer_bytes, real["gradient_buffer_bytes"], "bytes")
    yield Compared("optimizer shard", ours.optimizer_shard_bytes, real["optimizer_shard_bytes"], "bytes")
    if ours.optimizer_host_bytes or real["optimizer_host_bytes"]:
        yield Compared("of it on the host", ours.optimizer_host_bytes, real["optimizer_host_bytes"], "bytes")
    yield Compared("layers", sum(ours.layers), sum(real["layers"]), "count")


def problems(ours: RankStates, real: Mapping[str, Any], file: str) -> Iterator[Problem]:
    """Yield every difference: of places in groups, of each chunk's layers and parameters, of buffers and shards."""
    for axis, got in real["coordinates"].items():
        if (need := ours.coordinates[axis]) != got:
            yield Problem(
                "Megatron puts this rank at another place", file=file, field=axis, got=str(got), need=str(need)
            )
    if len(ours.chunks) != len(real["chunks"]):
        yield Problem(
            "Megatron builds another number of virtual stages",
            file=file,
            field="vpp",
            got=str(len(real["chunks"])),
            need=str(len(ours.chunks)),
        )
        return
    others = 0
    for place, (mine, theirs) in enumerate(zip(ours.chunks, real["chunks"], strict=True)):
        for name, need in (("layers", mine.layers), ("mtp", mine.mtp)):
            if need != theirs[name]:
                yield Problem(
                    "Megatron builds another number of layers",
                    file=file,
                    field=f"chunk {place}, {name}",
                    got=str(theirs[name]),
                    need=str(need),
                )
        if difference := parameters(mine.parameters, theirs["parameters"]):
            others += 1
            if others == 1:
                yield Problem(f"Megatron builds other parameters: {difference}", file=file, field=f"chunk {place}")
    if others > 1:
        yield Problem("Megatron builds other parameters here, too", file=file, field=f"{others - 1} more chunks")
    yield from buffers(ours.buffers, real["buffers"], file)
    for row in compared(ours, real):
        if row.unit == "bytes" and row.ours != row.real:
            yield Problem(
                "Megatron holds other bytes", file=file, field=row.what, got=count(row.real), need=count(row.ours)
            )


def buffers(ours: Sequence[Buffer], real: Sequence[Mapping[str, Any]], file: str) -> Iterator[Problem]:
    """Yield the first gradient buffer that differs: sums may agree by chance.

    What this version does not tell is None.
    """
    if len(ours) != len(real):
        yield Problem(
            "Megatron makes another number of gradient buffers", file=file, got=str(len(real)), need=str(len(ours))
        )
    for place, (mine, theirs) in enumerate(zip(ours, real, strict=False)):
        wrong = {name: got for name, got in theirs.items() if got is not None and got != getattr(mine, name)}
        if wrong:
            yield Problem(
                "Megatron makes another gradient buffer",
                file=file,
                field=f"buffer {place}",
                got=_fields(wrong),
                need=_fields({name: getattr(mine, name) for name in wrong}),
            )
            return


def _fields(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value:,}" for name, value in values.items())


def parameters(ours: Sequence[Parameter], real: Sequence[tuple[str, int, bool, bool]]) -> str:
    """Describe how the two lists differ, by name; nothing when they are equal in order, size and kind."""
    mine: list[Kind] = [(item.elements, item.expert, item.trainable) for item in ours]
    theirs: list[Kind] = [(elements, expert, trainable) for _, elements, expert, trainable in real]
    missing: list[str] = []
    extra: list[str] = []
    for what, first, behind, start, end in SequenceMatcher(None, mine, theirs, autojunk=False).get_opcodes():
        if what != "equal":
            missing += [
                _named(item.name, kind) for item, kind in zip(ours[first:behind], mine[first:behind], strict=True)
            ]
            extra += [_named(item[0], kind) for item, kind in zip(real[start:end], theirs[start:end], strict=True)]
    parts = [f"{word} {_some(names)}" for word, names in (("it has", extra), ("the plan has", missing)) if names]
    return "; ".join(parts)


def _named(name: str, kind: Kind) -> str:
    elements, expert, trainable = kind
    return f"{name} ({count(elements)}{', expert' if expert else ''}{'' if trainable else ', frozen'})"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
