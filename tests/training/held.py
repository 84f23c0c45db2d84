"""What trained workers of reinforcement learning held and read in a step, as their ranks say it, against the plan."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic.dataclasses import dataclass

from symconfig.existing.recover.rl.sequences import Packed
from symconfig.plans.plan import Plan
from symconfig.runs.rl.logits import VERL_FSDP
from symconfig.runs.rl.trained import GRADIENTS, STATES, WEIGHTS, Stated, Trained

COUNTED = re.compile(r"^counted (\{.*\})$", re.MULTILINE)
READS = ("log-probabilities", "reference")
BYTES, PEAK, PASSES = "bytes of {}", "peak beside what rests", "micro-batches"
ROUGHLY = 0.06  # of a peak: index tensors and the hidden states before the head are not predicted
Rank = Mapping[str, Any]


@dataclass(frozen=True)
class Held:
    """One figure of a phase: as the plan has it, and as the fullest rank has it."""

    phase: str
    what: str
    predicted: float
    counted: float


def ranks(log: str) -> list[Rank]:
    """Return what each rank counted, by phase."""
    return [json.loads(line) for line in COUNTED.findall(log)]


def actor(plan: Plan) -> Trained:
    """Return the trained model as verl's FSDP workers have it."""
    return Trained(plan, plan.best, 1.0, VERL_FSDP)


def held(plan: Plan, every: Sequence[Rank]) -> Iterator[Held]:
    """Yield the figures of a step of verl's FSDP workers."""
    own = actor(plan)

    def most(phase: str, what: str) -> float:
        return float(max(rank[phase][what] for rank in every))

    for part in (WEIGHTS, GRADIENTS, STATES):
        yield Held("update", BYTES.format(part), own.memory[part], most("update", part))
    if copied(plan):
        yield Held("reference", BYTES.format("the reference"), own.memory[WEIGHTS], most("reference", "reference"))
    for phase in (name for name in (*READS, "update") if name in every[0]):
        tokens = [batch for rank in every for batch in rank[phase]["tokens"]]
        yield Held(phase, PASSES, planned_passes(plan, phase), max(map(len, tokens)))
        yield Held(phase, PEAK, peak_bytes(own, phase, max(map(max, tokens))), most(phase, "peak"))


def copied(plan: Plan) -> bool:
    """Tell whether the reference is a second copy."""
    assert plan.job.rl is not None
    return plan.job.rl.reference and plan.model.adapter is None


def planned_passes(plan: Plan, phase: str) -> float:
    """Return the micro-batches of each optimizer step, or of a read."""
    rl, best = plan.job.rl, plan.best
    assert rl is not None
    if phase == "update":
        return float(best.batch.num_microbatches)
    room = plan.rl[0].read_per_gpu * best.parallel.cp
    return float(Packed(room=room, length=rl.mean_tokens).read(rl, best.parallel.dp).passes)


def peak_bytes(own: Trained, phase: str, tokens: int) -> float:
    """Return what is predicted beside what rests, without cuBLAS's workspace; of an update without the buffer of an
    all-gather, too: half of what is whole of weights is a copy out of it."""
    point = own.reading(tokens).prospect
    framework = replace(point.request.framework, torch_workspace=0.0)
    point = replace(point, request=replace(point.request, framework=framework))
    reader = Stated(own.plan, own.candidate, 1.0, own.logits, point=point)
    if phase in READS:
        return reader.forward_bytes(entropy=phase == READS[0])
    return reader.passing_bytes() - reader._gathered / 2 - own.memory[WEIGHTS] - own.memory[STATES]


def wrong(plan: Plan, figures: Sequence[Held], every: Sequence[Rank]) -> Iterator[str]:
    """Yield where a step is not that of the plan."""
    if len(every) != plan.best.parallel.world_size:
        yield f"{len(every)} of {plan.best.parallel.world_size} ranks say what they hold."
    for each in figures:
        apart = abs(each.counted - each.predicted)
        allowed = {PEAK: ROUGHLY * each.predicted, PASSES: 1.0}.get(each.what, 0.0)
        if apart > allowed:
            yield f"{each.phase}: {each.what}: {each.counted:,.0f}, the plan has {each.predicted:,.0f}."
    rooms = dict.fromkeys(READS, plan.rl[0].read_per_gpu) | {"update": plan.rl[0].tokens_per_gpu}
    away = sorted(plan.rl[0].away)
    for rank in every:
        for phase, room in rooms.items():
            if phase not in rank:
                continue
            if (most := max(map(max, rank[phase]["tokens"]))) > room * plan.best.parallel.cp:
                yield f"{phase}: {most} tokens in a micro-batch that has room for {room}."
            needed = (WEIGHTS, STATES) if phase == "update" else (WEIGHTS,)  # of the actor
            needed = () if phase == "reference" and copied(plan) else needed
            meanwhile = [part for part in away if part not in needed]
            expected = {"on the host": meanwhile, "on the host afterwards": away}
            for name, parts in expected.items():
                if rank[phase][name] != parts:
                    yield f"{phase}: {name}: {rank[phase][name]}, the plan has {parts}."
            if rank[phase]["gradients afterwards"]:
                yield f"{phase}: gradients are there afterwards."
