"""The network that rewards responses in a step: how a program runs it, and what its files say of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from symconfig.descriptor.load import load_model
from symconfig.format import several
from symconfig.plans.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewarding:
    """How a program runs a reward model.

    by: an inference engine, workers laid out like the trained model, workers that shard it over all their GPUs, or an
    external service. overlaps: what it runs in parallel with, if it has GPUs of its own. together: one forward pass has
    all responses of a data-parallel rank.
    """

    by: Literal["engine", "workers", "shards", "service"]
    overlaps: Literal["", "generation", "training"] = ""
    together: bool = False


def published(plan: Plan) -> str | None:
    """Return the published name of the reward model.

    It is "" if the user has to name one, None if none runs on the job's GPUs.
    """
    named = plan.job.rl.reward_model if plan.job.rl else None
    if named is None or named.placement == "server":
        return None
    return "" if named.model is None else load_model(named.model).huggingface_id or named.model


def address(plan: Plan) -> str:
    """Return the URL of a reward service; empty if there is none."""
    named = plan.job.rl.reward_model if plan.job.rl else None
    return (named and named.url) or ""


def nodes(plan: Plan) -> tuple[int, int]:
    """Return the reward model's own nodes and the GPUs of each; (0, 0) if it has none of its own."""
    own, most = plan.rl[0].reward if plan.rl else None, plan.cluster.gpus_per_node
    gpus = own.gpus if own is not None else 0
    return (-(-gpus // most), min(gpus, most)) if gpus else (0, 0)


def sentences(plan: Plan) -> Iterator[str]:
    """Yield a sentence on where the reward model runs; nothing without one."""
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
