"""What the files of several targets say of a plan: its nodes, modules that options need, notes on a step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from symconfig.format import gib, picked, several
from symconfig.frameworks.megatron import environment
from symconfig.plans.plan import Plan

PACKING = (
    "The job's packing enters the predicted time only: attention is counted within documents. The files here do "
    "not pack; the data decides what a sequence holds"
)


def modules_wanted(plan: Plan) -> tuple[dict[str, str], ...]:
    """Return {option, label, module, attribute, named, why, hint} for each Python module that used options of a
    Megatron plan need, in the order of the options. attribute: a name that the module must have; "": any build will do.
    named: both in words. The same module may appear for several options; needs that are no modules are left out.
    """
    return tuple(
        {"option": option.name, "label": option.label, "attribute": need.attribute or ""}
        | picked(need, "module", "named", "why", "hint")
        for option in environment.used(plan)
        for need in option.needs
        if need.module is not None
    )


@dataclass(frozen=True, slots=True)
class Nodes:
    """The nodes of a run: `count` of them with `gpus` each."""

    count: int
    gpus: int


def nodes(plan: Plan) -> Nodes:
    """Return the fewest nodes with equally many GPUs each that make up the world size, none with more than the
    cluster's.
    """
    total, most = plan.best.configuration.world_size, plan.cluster.gpus_per_node
    count = -(-total // most)
    while total % count:
        count += 1
    return Nodes(count, total // count)


def number(value: float) -> str:
    """Return a number with three significant digits, or without decimals from 100 on; no exponents above 0.0001."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def duration(value: float) -> str:
    return f"{value:.2f} s" if value >= 1 else f"{value * 1e3:.1f} ms"


def share(part: float, whole: float = 1.0) -> str:
    return f"{100 * part / whole:.1f} %" if whole else ""


def step_notes(plan: Plan, moved: str = "") -> Iterator[str]:
    """Yield sentences about an RL or preference step to read before the first start; nothing for other jobs. For
    preferences only the size of a reference on the GPU, if there is one, with `moved`, how it could be taken off. For
    RL: no KL term, the reward model, and a generation rate that is predicted.
    """
    if (rl := plan.job.rl) is None:
        if plan.tuned and (copy := plan.tuned[0].phases[-1].holds.get("reference")):
            yield f"The reference is on the GPU in every phase, {gib(copy)} GiB" + (f"; {moved}" if moved else "")
        return
    if not rl.reference:
        yield "There is no KL term, and so no reference model"
    yield from (sentence.removesuffix(".") for sentence in rewards(plan))
    if plan.rl and plan.rl[0].generated_per_s_per_gpu and rl.rollout.tokens_per_s_per_gpu is None:
        yield (
            f"Generation is predicted by a model, at {plan.rl[0].generated_per_s_per_gpu:,.0f} tokens/s on each GPU; "
            "plan again with rl.rollout.tokens_per_s_per_gpu of your first steps' log"
        )


def rewards(plan: Plan) -> Iterator[str]:
    """Yield a sentence on where the reward model runs; nothing without one. Without a planned one it is the URL's
    server.
    """
    named, own = plan.job.rl.reward_model if plan.job.rl else None, plan.rl[0].reward if plan.rl else None
    if named is None:
        return
    if own is None:
        yield f"Rewards come from {named.url}, for which nothing is counted."
        return
    name = "a network of the actor's size" if named.model is None else named.model.removesuffix(".yaml")
    where = f"{several(own.gpus, 'GPU')} of its own" if own.gpus else "the GPUs that train"
    engines = f"engines on {several(own.tp, 'GPU')} each, with {own.memory_share:g} of the memory"
    yield f"Rewards: {name} on {where}, by {engines if own.tp else 'workers'}."
