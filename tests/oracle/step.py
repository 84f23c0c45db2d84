"""Seconds of a step, by part: the slowest stage's microbatches, the bubble, data parallelism, optimizer, overhead."""

from __future__ import annotations

from tests.oracle.given import (
    ACTIVATION,
    ADAM,
    CONTENTION,
    GRADIENT,
    HBM,
    HIDE_DATA,
    HIDE_SEND,
    HOST_ADAM,
    HOST_LINK,
    HOST_LINK_REACHED,
    LAUNCH,
    STEP,
    WEIGHT,
    Run,
)
from tests.oracle.plan import Plan, Stage, shards, stages
from tests.oracle.seconds import contended, hidden, ring, send


def time(what: Plan) -> dict[str, float]:
    """By part. What is computed, recomputed and sent inside layers is one part ("passes")."""
    run, each = what.run, stages(what)
    m, (shown, lag) = run.microbatches, messages(what, each)
    # A chunk receives an activation and a gradient; the model's first one no activation, its last one no gradient.
    count = [2 * run.vpp - (s.index == 0) - (s.index == run.pp - 1) for s in each]
    received = [shown * n for n in count]
    whole = [stage.seconds + extra for stage, extra in zip(each, received, strict=True)]
    slowest = max(range(run.pp), key=lambda index: whole[index])
    filling = sum(whole) - whole[slowest]
    alone = 0.0
    if run.beside:
        # At both ends of the pipeline's step no other microbatch is beside a pass, nor in the warm-up of the last stage
        # and one chunk more.
        filling += sum(stage.without for stage in each) - each[slowest].without
        alone = each[slowest].without * min(m, ((run.vpp - 1) * run.pp + 1) / run.vpp)
    # Narayanan 2021, section 2.2: the bubble is (p - 1)(f + b) / v where stages are alike.
    bubble = filling / run.vpp + 2 * (run.pp * run.vpp - 1) * lag
    return {
        "passes": m * each[slowest].seconds + alone,
        "pipeline send/receive": m * received[slowest],
        "pipeline bubble": bubble,
        "data-parallel communication": _exchange(what, each),
        "optimizer": _optimizer(each, run),
        "overhead": STEP,
    }


def messages(what: Plan, each: list[Stage]) -> tuple[float, float]:
    """Of a message between stages: seconds for which its receiver waits, and for which it is under way besides. Of an
    interleaved schedule another chunk's forward hides most."""
    run = what.run
    if run.pp == 1:
        return 0.0, 0.0
    once = send(run.stream * what.model.hidden * ACTIVATION, run.pp, run.tp * run.cp * run.dp)
    if run.vpp == 1:
        return once, 0.0
    if run.beside:  # a stage runs a forward and a backward at once, and waits for the messages of both together
        return once / 2, 0.0
    shown = hidden(once, min(s.forward for s in each) / run.vpp, HIDE_SEND)
    return shown, once - shown


def moved(stage: Stage, run: Run) -> tuple[float, float]:
    """Seconds to gather a stage's weights once, and to reduce its gradients once.

    Without ZeRO an all-reduce of fp32 gradients; with it a reduce-scatter of those, an all-gather of bf16 weights.
    Replicas of what is no expert's are tp apart, those of an expert etp x ep.
    """
    over, over_expert = shards(run)

    def both(size: float, passes: int) -> float:
        dense = ring(size * stage.dense, over, run.tp, passes)
        return dense + (ring(size * stage.expert, over_expert, run.etp * run.ep, passes) if stage.expert else 0.0)

    if not run.zero:
        return 0.0, both(GRADIENT, 2)
    return both(WEIGHT, 1), both(GRADIENT, 1)


def _exchange(what: Plan, each: list[Stage]) -> float:
    """What shows of it. ZeRO 2 and 3 reduce every microbatch, 3 gathers for the forward and again for the backward."""
    run = what.run
    both = [moved(stage, run) for stage in each]
    if run.zero == 3:
        return run.microbatches * max(
            contended(gather, s.ahead, HIDE_DATA) + contended(gather + reduce, s.back, HIDE_DATA)
            for (gather, reduce), s in zip(both, each, strict=True)
        )
    if run.pp == 1 or run.zero == 2:
        often = run.microbatches if run.zero == 2 else 1
        return max(
            often * contended(reduce, s.back, HIDE_DATA) + contended(gather, s.ahead, HIDE_DATA)
            for (gather, reduce), s in zip(both, each, strict=True)
        )
    if run.vpp > 1:
        return _between_groups([g for g, _ in both], [s.ahead for s in each], each, run) + _between_groups(
            [r for _, r in both], [s.back for s in each], each, run
        )
    # Without interleaving the gather is after the optimizer, alone; the first stage alone has buckets small enough for
    # a part of its reduction to go beside its own last backward.
    gathers = _beside_own([g for g, _ in both], [s.ahead for s in each], [0.0] * run.pp)
    reduces = _beside_own([r for _, r in both], [s.back for s in each], [HIDE_DATA] + [0.0] * (run.pp - 1))
    return gathers + reduces


def _beside_own(seconds: list[float], work: list[float], shares: list[float]) -> float:
    """By how much the stages' collectives outlast the pipeline's filling before them (its draining after them)."""
    worst = 0.0
    for index, (t, mine, share) in enumerate(zip(seconds, work, shares, strict=True)):
        covered = min(t, share * mine)
        worst = max(worst, t - covered - index * min(work), CONTENTION * covered)
    return worst


def _between_groups(seconds: list[float], work: list[float], each: list[Stage], run: Run) -> float:
    """One collective a chunk. Nothing is beside the first (last) chunk's, which on the first stage has the look-up;
    each other one has the time that a group of microbatches takes in a chunk."""
    group, worst = min(run.pp, run.microbatches), 0.0
    for t, mine, stage in zip(seconds, work, each, strict=True):
        table = stage.vocabulary / (stage.dense + stage.expert) if stage.index == 0 else 0.0
        own = t * (table + (1 - table) / run.vpp)
        late = t - (1 - 1 / run.vpp) * group * mine
        worst = max(worst, max(own + CONTENTION * (t - own), late) - stage.index * min(work) / run.vpp)
    return worst


def _optimizer(each: list[Stage], run: Run) -> float:
    """Bound by memory: 34 bytes a parameter of the rank's share, on the stage that has most."""
    over, over_expert = shards(run) if run.zero else (1.0, 1.0)
    mine = max(s.dense / over + s.expert / over_expert for s in each)
    # What is in host memory: its gradients go there, the processors step, its weights come back.
    away = (GRADIENT + WEIGHT) / (HOST_LINK * HOST_LINK_REACHED) + ADAM / HOST_ADAM
    return mine * ((1 - run.offload) * ADAM / HBM + run.offload * away) + LAUNCH
