"""Times of pipelines for the tests."""

from __future__ import annotations

from typing import Any

import numpy as np

from symconfig.schedule.timeline import Timeline, Times


def uniform(
    pp: int, vpp: int = 1, forward: float = 1.0, backward: float = 1.0, weight: float = 1.0, **more: Any
) -> Times:
    """Every chunk alike; messages are free unless `more` says otherwise."""
    one = np.ones((pp, vpp))
    return Times(forward * one, 0.0 * one, backward * one, weight * one, **more)


def most_held(timeline: Timeline, stage: int) -> int:
    """Microbatches (slices) of all its chunks that a stage holds at its peak."""
    return int(timeline.held(stage)[1].sum(axis=1).max())
