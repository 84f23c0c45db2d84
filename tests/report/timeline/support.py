"""Charts of made-up pipelines, whose numbers are easy to know."""

from __future__ import annotations

from typing import Any

import numpy as np

from symconfig.report.timeline.chart import Chart, chart
from symconfig.schedule.simulate import simulate
from symconfig.schedule.timeline import Times

FORWARD_S, BACKWARD_S, WEIGHT_S, OPTIMIZER_S = 1.0, 1.0, 1.0, 0.5
STATES, KEPT = 20e9, 3e9  # bytes of a stage, and of each microbatch that one of its chunks holds


def made(pp: int = 4, vpp: int = 1, m: int = 8, paired: bool = False, **others: Any) -> Chart:
    """Even stages: a forward of a chunk takes 1 s / vpp, a backward twice that. `others`: further times."""
    each = np.full((pp, vpp), 1.0 / vpp)
    times = Times(FORWARD_S * each, 0.0 * each, BACKWARD_S * each, WEIGHT_S * each, **others)
    line = simulate(times, m, paired=paired)
    memory = []
    for stage in range(pp):
        when, held = line.held(stage)
        memory.append((np.append(0.0, when), np.append(STATES, STATES + KEPT * held.sum(axis=1))))
    return chart("A pipeline", ("A note.",), line, memory, OPTIMIZER_S)
