"""A step of reinforcement learning, as `symconfig plan` prints it: its phases, and the layouts that come next."""

from __future__ import annotations

from collections.abc import Sequence

from symconfig.format import count, gib, percent, seconds, several
from symconfig.plans.configuration import DEGREES
from symconfig.plans.plan import Candidate, Plan
from symconfig.plans.rl import PlannedRl
from symconfig.render import own_target, shared
from symconfig.report.grid import Block, Grid

_WORDS = ("recompute", "on the host")  # columns that are not numbers


def blocks(plan: Plan) -> list[Block]:
    """Return the report of an RL plan: headline (model and GPUs of all roles; the step; target and generation),
    ranking, phases of the best plan, and sentences on its step; the last one says by how much it is longer than the
    shortest shown, if it is.
    """
    rl, best, step, sentences = plan.job.rl, plan.best, plan.rl[0], _sentences(plan)
    assert rl is not None
    alone = step.rollout_gpus * (rl.placement == "split") + (rl.critic_gpus or 0)
    gpus = best.configuration.world_size + alone + (step.reward.gpus if step.reward is not None else 0)
    headline = (
        f"{plan.model.name} on {count(gpus)} x {plan.cluster.gpu.product} ({plan.cluster.name})\n"
        f"{rl.algorithm}: {several(rl.prompts, 'prompt')} x {several(rl.samples, 'sample')} a step, "
        f"{several(rl.updates, 'update')}\n"
        f"{own_target(plan)} with {best.target.backend} workers ({best.target.version}), "
        f"{best.configuration.precision}; generation by {rl.rollout.engine}, {rl.placement}"
    )
    pairs = zip(plan.ranked, plan.rl, strict=True)
    rows = (_row(str(number), *pair) for number, pair in enumerate(pairs, 1))
    if longer := plan.rl[0].step_s / min(step.step_s for step in plan.rl) - 1:
        sentences.append(f"Plan 1 takes {percent(longer)} longer than the shortest step that is shown; it is plainer.")
    return [headline, Grid.of(rows, words=_WORDS, marked=0), phases(plan), "\n".join(sentences)]


def stated(plan: Plan) -> list[Block]:
    """Return the report of a script's step: its phases and their totals."""
    return [phases(plan, "The phases of a step"), "\n".join(_sentences(plan, suggests=False))]


def compared(rows: Sequence[tuple[str, Plan]]) -> Grid:
    """Return a table with a row for the first RL step of each named plan."""
    return Grid.of((_row(name, plan.best, plan.rl[0]) for name, plan in rows), words=_WORDS)


def _row(number: str, candidate: Candidate, step: PlannedRl) -> dict[str, str]:
    """Return the cells of a candidate's step by column; "on the host": what moves there between phases, and the share
    of the optimizer that is always there. GPU GiB is the fullest phase's.
    """
    c, moved = candidate.configuration, " and ".join(step.away) or "nothing"
    stays = f"; {percent(c.optimizer_offload, 0)} of the optimizer always" if c.optimizer_offload else ""
    return {
        "#": number,
        **{name: str(getattr(c, name)) for name in ("tp", "pp", "vpp", "cp", "ep", "dp")},
        "tokens/GPU": count(step.tokens_per_gpu),
        "recompute": c.recompute_text,
        "rollout tp": str(step.rollout_tp) + (f" x {step.rollout_dp} dp" if step.rollout_dp > 1 else ""),
        "memory share": f"{step.memory_share:g}",
        "on the host": moved + stays,
        "step s": seconds(step.step_s),
        "GPU GiB": gib(max(phase.bytes for phase in step.phases)),
    }


def phases(plan: Plan, title: str = "The phases of plan 1") -> Grid:
    """Return the table of the first step's phases: name, seconds, share of the step (of phases that overlap they add up
    to more than 100 %), tokens of a micro-batch per GPU, GiB on the fullest GPU, and its parts, largest first.
    """
    step = plan.steps[0]
    rows = tuple(
        (
            phase.name,
            seconds(phase.seconds),
            percent(phase.seconds / step.step_s),
            count(phase.tokens) if phase.tokens else "",
            gib(phase.bytes),
            ", ".join(f"{name} {gib(size)}" for name, size in sorted(phase.holds.items(), key=lambda part: -part[1])),
        )
        for phase in step.phases
    )
    return Grid(("phase", "s", "share", "tokens/GPU", "GPU GiB", "of these"), rows, left=(0, 5), title=title)


def whole_step(plan: Plan) -> list[Block]:
    """Return the table of the first step's phases, and sentences with the seconds of that step and its interval, and of
    the other candidates' steps; [] for a plan whose steps have no phases.
    """
    if not plan.steps:
        return []
    step = plan.steps[0]
    low, high = map(seconds, step.interval)
    others = ", ".join(f"{seconds(each.step_s)} s" for each in plan.steps[1:])
    sentences = [
        f"A whole step takes {seconds(step.step_s)} s, likely between {low} and {high} s.",
        f"Those of the plans that follow take {others}." if others else "",
        "The rest of this answer is of one update of the trained model, whose micro-batches are full.",
    ]
    return [phases(plan), "\n".join(filter(None, sentences))]


def _sentences(plan: Plan, *, suggests: bool = True) -> list[str]:
    """Return sentences on step, generation, critic and reward (these three only for reinforcement learning, the critic
    if there is one), the fullest phase and host memory. suggests: whether to suggest stating an unstated engine's
    rate.
    """
    step, rl = plan.steps[0], plan.job.rl
    fullest = max(step.phases, key=lambda phase: phase.bytes)
    low, high = map(seconds, step.interval)
    sentences = [f"A step takes {seconds(step.step_s)} s, likely between {low} and {high} s."]
    if rl is not None and isinstance(step, PlannedRl):
        measured = rl.rollout.tokens_per_s_per_gpu is not None
        replicas = step.rollout_gpus // step.replica_gpus
        sentences.append(
            f"Generation{', at the rate that the job states' if measured else ', the least certain part'}: "
            f"{count(step.generated_per_s_per_gpu)} tokens/s on each GPU, up to {several(step.at_once, 'sequence')} at "
            f"once in each of {several(replicas, 'replica')}."
            + ("" if measured or not suggests else " Try: rl.rollout.tokens_per_s_per_gpu of a log of yours.")
        )
        if step.critic:
            sentences.append(_critic(plan.best, step))
        sentences += shared.rewards(plan)
    return [
        *sentences,
        f"Memory peaks in the phase {fullest.name}: {gib(fullest.bytes)} of {gib(plan.usable_bytes)} GiB usable.",
        f"Host memory: {gib(step.host_bytes)} GiB for each GPU.",
    ]


def _critic(actor: Candidate, step: PlannedRl) -> str:
    """Return the sentence on the critic's degrees (but dp) and recompute that differ from the actor's, or that none
    does.
    """
    one, other = step.critic or actor.configuration, actor.configuration
    own = {
        name: str(getattr(one, name)) for name in DEGREES if name != "dp" and getattr(one, name) != getattr(other, name)
    }
    if one.recompute_text != other.recompute_text:
        own["recompute"] = one.recompute_text
    if not own:
        return "The critic has the actor's degrees."
    return f"The critic has {', '.join(f'{name} {value}' for name, value in own.items())}, all else as the actor."
