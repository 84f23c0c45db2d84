"""What files and answers say of a step: its phases, and why its engine and its reads are as they are."""

from __future__ import annotations

from collections.abc import Iterator

from symconfig.format import count, gib, percent, seconds, several
from symconfig.plans.plan import Plan
from symconfig.plans.rl import AWAKE, READING
from symconfig.render import learning, rewarding
from symconfig.render.summary import Row


def phases(plan: Plan) -> tuple[Row, ...]:
    """Return a row for each phase of an RL step: seconds, share of the step, tokens of a micro-batch per GPU, memory
    and its parts.

    The shares of phases that overlap add up to more than 100 %. () for a plan without phases.
    """
    if not plan.steps:
        return ()
    step = plan.steps[0]
    return tuple(
        Row(
            phase.name,
            (
                seconds(phase.seconds),
                percent(phase.seconds / step.step_s),
                count(phase.tokens) if phase.tokens else "",
                gib(phase.bytes),
                ", ".join(
                    f"{name} {gib(size)}" for name, size in sorted(phase.holds.items(), key=lambda part: -part[1])
                ),
            ),
        )
        for phase in step.phases
    )


def engine_share(plan: Plan) -> Iterator[str]:
    """Yield a sentence on why the engine has its share of memory, if the plan chose it."""
    rl = learning.section(plan)
    if not plan.rl or rl.rollout.memory_share is not None or AWAKE not in (held := plan.rl[0].phases[0].holds):
        return
    step, resting = plan.rl[0], sum(held.values()) - held[AWAKE]
    meant = "weights, keys and values, of what is free" if rl.rollout.static_share else "all that the engine takes"
    yield (
        f"Memory share {step.memory_share:g} ({meant}) is the largest of those that generate as fast: it leaves room "
        f"for the {gib(resting)} GiB beside it, their gaps and the margin, and has itself room for "
        f"{several(step.at_longest, 'sequence')} at once where all are as long as they may be."
    )


def read_at_once(plan: Plan) -> Iterator[str]:
    """Yield a sentence on the micro-batch size of log-probabilities, if it is smaller than that of the update."""
    tokens = {phase.name: phase.tokens for step in plan.rl[:1] for phase in step.phases}
    if (read := tokens.get(READING, 0)) < tokens.get("update", 0):
        yield f"Log-probabilities are computed of {read:,} tokens a GPU at once: those of an update's do not fit."


def notes(plan: Plan, moved: str = "") -> Iterator[str]:
    """Yield sentences about the step to read before the first start.

    moved: how the reference model of a preference loss could be taken off the GPU.
    """
    if (rl := plan.job.rl) is None:
        if plan.tuned and (copy := plan.tuned[0].phases[-1].holds.get("reference")):
            yield f"The reference is on the GPU in every phase, {gib(copy)} GiB" + (f"; {moved}" if moved else "")
        return
    if not rl.reference:
        yield "There is no KL term, and so no reference model"
    yield from (
        sentence.removesuffix(".")
        for sentence in (*engine_share(plan), *read_at_once(plan), *rewarding.sentences(plan))
    )
    if plan.rl and plan.rl[0].generated_per_s_per_gpu and rl.rollout.tokens_per_s_per_gpu is None:
        yield (
            f"Generation is predicted by a model, at {plan.rl[0].generated_per_s_per_gpu:,.0f} tokens/s on each GPU; "
            "plan again with rl.rollout.tokens_per_s_per_gpu of your first steps' log"
        )
