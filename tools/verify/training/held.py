"""What trained workers of reinforcement learning held and read in a step, as their ranks say it, against the plan."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic.dataclasses import dataclass

from symconfig.existing.recover.rl.step import Packed, in_a_row
from symconfig.graph.implementation import Attention
from symconfig.plans.plan import Plan
from symconfig.runs.rl.logits import VERL, VERL_FSDP
from symconfig.runs.rl.trained import GRADIENTS, STATES, WEIGHTS, Trained
from symconfig.solve.prospect import Prospect
from symconfig.verify.rank_states import with_local_layers

COUNTED = re.compile(r"^counted (\{.*\})$", re.MULTILINE)
READS = ("log-probabilities", "reference")
BYTES, PEAK, PASSES = "bytes of {}", "peak beside what rests", "micro-batches"
ROUGHLY = 0.06  # of a peak: index tensors and the hidden states before the head are not predicted
FILLED = 1e-3  # of a buffer of Megatron's, which fills each tensor up to 64 numbers
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


def in_shards(plan: Plan) -> bool:
    """Tell whether workers are those of FSDP; else they are Megatron's."""
    return plan.best.target.backend == "fsdp"


def actor(plan: Plan) -> Trained:
    """Return the trained model as verl's workers have it."""
    return Trained(plan, plan.best, 1.0, VERL_FSDP if in_shards(plan) else VERL)


def held(plan: Plan, every: Sequence[Rank]) -> Iterator[Held]:
    """Yield the figures of a step of verl's workers."""
    own = actor(plan)

    def most(phase: str, what: str) -> float:
        return float(max(rank[phase][what] for rank in every))

    for part in (WEIGHTS, GRADIENTS, STATES):
        yield Held("update", BYTES.format(part), resting(own, part), most("update", part))
    if copied(plan):
        yield Held("reference", BYTES.format("the reference"), resting(own, WEIGHTS), most("reference", "reference"))
    for phase in (name for name in (*READS, "update") if name in every[0]):
        batches = [batch for rank in every for batch in rank[phase]["tokens"]]
        tokens = max(max(batch) for rank in every for batch in rank[phase]["read"])
        yield Held(phase, PASSES, planned_passes(plan, phase), max(map(len, batches)))
        yield Held(phase, PEAK, peak_bytes(own, phase, tokens), most(phase, "peak"))


def resting(own: Trained, part: str) -> float:
    """Return the bytes of a part on the GPU that has most of it."""
    return own.memory[part] if in_shards(own.plan) else max(by_stage(own, part))


def by_stage(own: Trained, *parts: str) -> list[float]:
    """Return the bytes of some parts on a GPU of each stage of Megatron's."""
    return [float(size) for size in sum(own._by_stage(own.parts.cost.memory[part]) for part in parts)]


def copied(plan: Plan) -> bool:
    """Tell whether the reference is a second copy."""
    return plan.job.rl.reference and plan.model.adapter is None


def planned_passes(plan: Plan, phase: str) -> float:
    """Return the micro-batches of each optimizer step, or of a read."""
    rl, best = plan.job.rl, plan.best
    if phase == "update":
        return float(best.configuration.num_microbatches)
    room = plan.rl[0].read_per_gpu * best.configuration.cp
    return float(
        Packed(room=room, length=rl.mean_tokens).read(rl, best.configuration.dp, in_a_row(best.configuration)).passes
    )


def peak_bytes(own: Trained, phase: str, tokens: int) -> float:
    """Return what is predicted beside what rests, without cuBLAS's workspace. Of FSDP's update without the buffer of an
    all-gather, too: half of what is whole of weights is a copy out of it. Megatron's weights and gradients that are
    away come in the phase."""
    ran, rl = Trained(own.plan, own.candidate, 1.0, own.logits, point=as_counted(own)), own.plan.job.rl
    reader = ran.reading(tokens)
    if in_shards(own.plan):
        if phase in READS:
            return reader.forward_bytes(entropy=phase == READS[0])
        return reader.passing_bytes(rl.entropy) - reader._gathered / 2 - own.memory[WEIGHTS] - own.memory[STATES]
    come = WEIGHTS in own.plan.rl[0].away
    if phase in READS:
        return reader.forward_bytes(entropy=phase == READS[0]) + resting(own, WEIGHTS) * (come and phase == READS[0])
    there = by_stage(reader, STATES, *(() if come else (WEIGHTS, GRADIENTS)))
    return max(whole - rests for whole, rests in zip(reader.passing_by_stage(rl.entropy), there, strict=True))


def as_counted(own: Trained) -> Prospect:
    """Return the actor's point as a CPU runs it: Megatron-Core's own layers in the place of Transformer Engine's, but
    with flash attention."""
    point = own.prospect if in_shards(own.plan) else with_local_layers(own.plan)
    framework = replace(point.request.framework, torch_workspace=0.0)
    if not in_shards(own.plan):
        how = replace(framework.implementation, attention=Attention())
        framework = replace(framework, implementation=how)
    return replace(point, request=replace(point.request, framework=framework))


def wrong(plan: Plan, figures: Sequence[Held], every: Sequence[Rank]) -> Iterator[str]:
    """Yield where a step is not that of the plan."""
    if len(every) != plan.best.configuration.world_size:
        yield f"{len(every)} of {plan.best.configuration.world_size} ranks say what they hold."
    for each in figures:
        apart = abs(each.counted - each.predicted)
        rest = 0.0 if in_shards(plan) else FILLED * each.predicted
        allowed = {PEAK: ROUGHLY * each.predicted, PASSES: 1.0}.get(each.what, rest)
        if apart > allowed:
            yield f"{each.phase}: {each.what}: {each.counted:,.0f}, the plan has {each.predicted:,.0f}."
    rooms = dict.fromkeys(READS, plan.rl[0].read_per_gpu) | {"update": plan.rl[0].tokens_per_gpu}
    away = sorted(plan.rl[0].away)
    for rank in every:
        for phase, room in rooms.items():
            if phase not in rank:
                continue
            if (most := max(map(max, rank[phase]["tokens"]))) > room * plan.best.configuration.cp:
                yield f"{phase}: {most} tokens in a micro-batch that has room for {room}."
            needed = (WEIGHTS, STATES) if phase == "update" else (WEIGHTS,)  # of the actor
            needed = () if phase == "reference" and copied(plan) else needed
            meanwhile = [part for part in away if part not in needed]
            expected = {"on the host": meanwhile, "on the host afterwards": away}
            for name, parts in expected.items():
                if rank[phase][name] != parts:
                    yield f"{phase}: {name}: {rank[phase][name]}, the plan has {parts}."
            keeps = not in_shards(plan) and WEIGHTS not in away  # verl gives gradients up with the weights
            for name in ("gradients afterwards", *(("gradients",) if phase in READS else ())):
                if bool(rank[phase][name]) != keeps:
                    yield f"{phase}: {name}: {rank[phase][name]:,} bytes are there."
