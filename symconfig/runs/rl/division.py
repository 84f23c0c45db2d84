"""Who has which GPUs in a step: those that train, and those that only generate or only reward."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.rl import Rl
from symconfig.errors import Problem


@dataclass(frozen=True, slots=True)
class Division:
    """Numbers of GPUs by role. rollout, reward, critic: GPUs that only generate, score or train the critic; 0 if the
    role shares the actor's GPUs.
    """

    trained: int
    rollout: int = 0
    reward: int = 0
    critic: int = 0


def divisions(rl: Rl, cluster: ClusterDescriptor, gpus: int, rewarded: bool) -> Iterator[Division]:
    """Yield the divisions of a job's GPUs that leave at least one to the actor, more GPUs for rewards and rollout
    first.

    rewarded: whether a reward model runs on the job's GPUs. A reward part of several nodes must be whole nodes. Yields
    nothing if no division leaves training GPUs.
    """
    apart = rewarded and rl.reward_model is not None and rl.reward_model.placement == "apart"
    stated = rl.reward_model.gpus if rl.reward_model is not None else None
    node = cluster.gpus_per_node
    for reward in _parts(gpus, node, stated, (1, 2)) if apart else (0,):
        left = gpus - (rl.critic_gpus or 0) - reward if reward <= node or reward % node == 0 else 0
        for rollout in _parts(left, node, rl.rollout_gpus, (1, 2, 3)) if rl.placement == "split" else (0,):
            if left - rollout > 0:
                yield Division(left - rollout, rollout, reward, rl.critic_gpus or 0)


def _parts(gpus: int, node: int, stated: int | None, quarters: tuple[int, ...]) -> list[int]:
    """Return the numbers of GPUs that a role may get, descending: only `stated` if given, else the quarters of `gpus`.

    Quarters are rounded down to whole nodes if `gpus` exceeds a node (at least one node, else at least one GPU).
    """
    if stated is not None:
        return [stated]
    step = node if gpus > node else 1
    return sorted({max(step, gpus * part // 4 // step * step) for part in quarters}, reverse=True)


def undivided(rl: Rl, gpus: int, node: int) -> Problem:
    """Return the problem why a job's GPUs have no division: reward GPUs are no whole nodes, or no GPU is left to
    train on.
    """
    reward = rl.reward_model
    if reward is not None and (reward.gpus or 0) > node and (reward.gpus or 0) % node:
        what, need = "are whole nodes where they are more than one has", f"a multiple of {node}"
        return Problem(what, field="rl.reward_model.gpus", got=str(reward.gpus), need=need)
    field, count = "rl.rollout_gpus", rl.rollout_gpus
    if rl.critic_gpus is not None:
        field, count = "rl.critic_gpus", rl.critic_gpus
    if reward is not None and (reward.gpus or 0) >= gpus:
        field, count = "rl.reward_model.gpus", reward.gpus
    return Problem("leaves no GPU to train on", field=field, got=str(count or 1), need=f"fewer than {gpus}")
