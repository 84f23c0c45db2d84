"""Another batch that more replicas could share, where the batch that is wanted keeps them few."""

from __future__ import annotations

import math

from symconfig.plans.plan import Plan

MOST_CHANGE = 0.05  # the most that a batch may change to be worth a word


def near_batch(plan: Plan) -> str | None:
    """Return a sentence that names a batch close by which at least twice as many replicas could share.

    None where there is no such batch, and where the plan has fewer than half the replicas that its own batch allows.
    """
    degrees, batch = plan.best.parallel, plan.best.batch.global_
    gpus = degrees.tp * degrees.pp * degrees.cp * degrees.dp
    room = int(MOST_CHANGE * batch)
    close = range(max(1, batch - room), batch + room + 1)
    better = max(close, key=lambda size: (math.gcd(gpus, size), -abs(size - batch), size))
    most, more = math.gcd(gpus, batch), math.gcd(gpus, better)
    if 2 * degrees.dp < most or more < 2 * most:
        return None
    return (
        f"{batch:,} sequences can be shared by at most {most} replicas of {gpus} GPUs, {better:,} by up to {more}. "
        f"Try: --global-batch-size {better}"
    )
