"""Another batch that more replicas could share, where the batch that is wanted keeps them few."""

from __future__ import annotations

import math

from symconfig.plans.plan import Plan
from symconfig.solve.space import divisors

MOST_CHANGE = 0.05  # largest relative change of a batch that is suggested


def near_batch(plan: Plan) -> int | None:
    """Return a global batch within MOST_CHANGE of the plan's that at least twice as many replicas could share.

    None if there is none, or if the plan's dp is below half of the gcd of GPUs and batch, the most replicas of its own
    batch. The batch with the most replicas wins, then the nearest, of equally near ones the larger.
    """
    gpus, batch = plan.best.configuration.world_size, plan.best.configuration.global_batch
    most = math.gcd(gpus, batch)
    if 2 * plan.best.configuration.dp < most:
        return None
    for replicas in reversed(divisors(gpus)):
        if replicas < 2 * most:
            return None
        below = batch // replicas * replicas
        nearest = min((below, below + replicas), key=lambda size: (abs(size - batch), -size))
        if nearest and abs(nearest - batch) <= int(MOST_CHANGE * batch):
            return nearest
    return None


def batch_nearby(plan: Plan) -> str | None:
    """Return a sentence that suggests `near_batch` as --global-batch-size; None if there is none.

    None for reinforcement learning, too.
    """
    if plan.rl or (better := near_batch(plan)) is None:
        return None
    gpus, batch = plan.best.configuration.world_size, plan.best.configuration.global_batch
    most, more = math.gcd(gpus, batch), math.gcd(gpus, better)
    return (
        f"{batch:,} sequences can be shared by at most {most} replica{'s' * (most > 1)} of {gpus} GPUs, {better:,} by "
        f"up to {more}. Try: --global-batch-size {better}"
    )
