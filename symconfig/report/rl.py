"""A step of reinforcement learning, as `symconfig plan` prints it: its phases, and the layouts that come next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from symconfig.descriptor.task import Task
from symconfig.format import count, gib, percent, seconds, several
from symconfig.plans.plan import Candidate, Plan
from symconfig.plans.rl import BUSIEST, PlannedRl
from symconfig.render import own_target, summary
from symconfig.report.grid import Block, Grid

_WORDS = ("recompute", "on the host")  # columns that are not numbers


def blocks(plan: Plan) -> list[Block]:
    """Return the report of an RL plan: headline, ranking, phases of the best plan, and explanations."""
    pairs = zip((plan.best, *plan.alternatives), plan.rl, strict=True)
    rows = (_row(str(number), *pair) for number, pair in enumerate(pairs, 1))
    return [_headline(plan), Grid.of(rows, words=_WORDS, marked=0), phases(plan), _footer(plan)]


def stated(plan: Plan) -> list[Block]:
    """Return the report of a script's step: its phases and their totals."""
    return [phases(plan, "The phases of a step"), "\n".join(_sentences(plan, asks=False))]


def _headline(plan: Plan) -> str:
    """Return model, GPUs, algorithm and framework in three lines."""
    rl, best = plan.job.rl, plan.best
    assert rl is not None
    return (
        f"{plan.model.name} on {count(_gpus(plan))} x {plan.cluster.gpu.product} ({plan.cluster.name})\n"
        f"{rl.algorithm}: {several(rl.prompts, 'prompt')} x {several(rl.samples, 'sample')} a step, "
        f"{several(rl.updates, 'update')}\n"
        f"{own_target(plan)} with {best.target.backend} workers ({best.target.version}), "
        f"{best.options.precision}; generation by {rl.rollout.engine}, {rl.placement}"
    )


def _gpus(plan: Plan) -> int:
    step, trained = plan.rl[0], plan.best.parallel.world_size
    alone = plan.job.rl is not None and plan.job.rl.placement == "split"
    apart = (plan.job.rl.critic_gpus or 0) if plan.job.rl is not None else 0
    return trained + step.rollout_gpus * alone + (step.reward.gpus if step.reward is not None else 0) + apart


def compared(rows: Sequence[tuple[str, Plan]]) -> Grid:
    """Return a table with a row for the first RL step of each named plan."""
    return Grid.of((_row(name, plan.best, plan.rl[0]) for name, plan in rows), words=_WORDS)


def _row(number: str, candidate: Candidate, step: PlannedRl) -> dict[str, str]:
    """Return the cells of a candidate's step by column."""
    p = candidate.parallel
    moved, stays = " and ".join(step.away) or "nothing", candidate.options.optimizer_offload
    return {
        "#": number,
        **{name: str(getattr(p, name)) for name in ("tp", "pp", "vpp", "cp", "ep", "dp")},
        "tokens/GPU": count(step.tokens_per_gpu),
        "recompute": candidate.options.recompute.text,
        "rollout tp": str(step.rollout_tp) + (f" x {step.rollout_dp} dp" if step.rollout_dp > 1 else ""),
        "memory share": f"{step.memory_share:g}",
        "on the host": moved + (f"; {percent(stays, 0)} of the optimizer always" if stays else ""),
        "step s": seconds(step.step_s),
        "GPU GiB": gib(max(phase.bytes for phase in step.phases)),
    }


def phases(plan: Plan, title: str = "The phases of plan 1") -> Grid:
    """Return the table of the best plan's phases: seconds, share, and bytes by part on the fullest GPU."""
    rows = tuple((row.name, *row.cells) for row in summary.phases(plan))
    return Grid(("phase", "s", "share", "tokens/GPU", "GPU GiB", "of these"), rows, left=(0, 5), title=title)


def whole_step(plan: Plan) -> list[Block]:
    """Return the phases and total of a step with several phases; [] for other plans."""
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


def _footer(plan: Plan) -> str:
    longer = plan.rl[0].step_s / min(step.step_s for step in plan.rl) - 1
    plain = f"Plan 1 takes {percent(longer)} longer than the shortest step that is shown; it is plainer."
    weighed = "Engines were weighed around the planner's best plans of an update alone, so a better one may exist."
    return "\n".join([*_sentences(plan), weighed, *([plain] if longer else [])])


def uneven_loads(of: Mapping[str, tuple[float, float]], task: Task, held: str) -> list[str]:
    """Return sentences on how unevenly the router loads the ranks and what time that takes.

    of: `Predicted.untrained`; without "step_s" the time is left out. held: text on the memory.
    """
    load, layer = of["load"], of["layer_load"]
    when = "While the router is untrained" if task == "pretrain" else "On data of one kind"
    sentences = [
        f"{when}, experts of the busiest rank get {load[0]:.2f} to {load[1]:.2f} times the mean over its layers, in "
        f"one of them up to {layer[0]:.1f} to {layer[1]:.1f} times: {held}."
    ]
    if "step_s" in of:  # plans of older versions do not have it
        waited, least, most = of["waited_load"], *map(seconds, of["step_s"])
        each = "Once it is balanced, each layer" if task == "pretrain" else "Each layer"
        waits = f"{each} waits for the busiest rank, {waited[0]:.2f} to {waited[1]:.2f} times the mean"
        sentences.append(f"{waits}: {least} to {most} s, which the step's interval counts.")
    return sentences


def _replicas(step: PlannedRl) -> str:
    number = step.rollout_gpus // step.replica_gpus
    return f"each of {number} replicas" if number > 1 else "one replica"


def _sentences(plan: Plan, *, asks: bool = True) -> list[str]:
    """Return sentences on step, generation, experts and memory. asks: whether to suggest job fields and describe the
    engine.
    """
    step, rl = plan.steps[0], plan.job.rl
    usable, fullest = plan.usable_bytes, max(step.phases, key=lambda phase: phase.bytes)
    low, high = step.interval
    experts: list[str] = []
    head, generation = f"A step takes {seconds(step.step_s)} s, likely between {seconds(low)} and {seconds(high)} s", []
    if rl is not None and isinstance(step, PlannedRl):
        stated = rl.rollout.tokens_per_s_per_gpu is not None
        head += (
            ": generation at the rate that the job states"
            if stated
            else ": generation is by a model, and least certain"
        )
        most = max(phase.holds.get(BUSIEST, 0.0) for phase in step.phases)
        if most and (loads := plan.best.predicted.untrained) is not None:
            experts = uneven_loads(loads, plan.task, f"{gib(most)} GiB in the phases, which its risk counts")
        generation = [
            f"Generation: {count(step.generated_per_s_per_gpu)} tokens/s on each GPU, up to "
            f"{several(step.at_once, 'sequence')} at once in {_replicas(step)}."
            + ("" if stated or not asks else " Try: rl.rollout.tokens_per_s_per_gpu of a log of yours."),
            *([_critic(plan.best, step)] if step.critic else ()),
            *summary.rewards(plan),
        ]
        if step.sleep_level == 1 and rl.placement == "colocated":
            generation.append("The engine sleeps at level 1: its weights wait on the host meanwhile.")
    return [
        f"{head}.",
        *generation,
        *experts,
        f"Memory is fullest in the phase {fullest.name}: {gib(fullest.bytes)} of {gib(usable)} GiB usable.",
        f"Host memory: {gib(step.host_bytes)} GiB for each GPU.",
    ]


def _critic(actor: Candidate, step: PlannedRl) -> str:
    """Return the sentence on the critic's degrees and recomputation that differ from the actor's."""
    pairs = [(name, str(value), str(getattr(actor.parallel, name))) for name, value in step.critic.items()]
    if step.critic_options is not None:
        pairs.append(("recompute", step.critic_options.recompute.text, actor.options.recompute.text))
    if not (own := [pair for pair in pairs if pair[1] != pair[2]]):
        return "The critic has the actor's degrees."
    mine, theirs = (", ".join(f"{pair[0]} {pair[place]}" for pair in own) for place in (1, 2))
    return f"The critic has {mine}, where the actor has {theirs}; its other degrees are the actor's."
