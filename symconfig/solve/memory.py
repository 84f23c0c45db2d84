"""What a simulated schedule lets every stage hold over time."""

from __future__ import annotations

import numpy as np

from symconfig.cost.flight import in_flight
from symconfig.cost.lattice import Array
from symconfig.cost.stages import ENDS
from symconfig.schedule.timeline import Timeline
from symconfig.solve.detail import Detail
from symconfig.solve.found import Found

_ACTIVATIONS, _WORKING, _LOSS = "activations", "working set", "logits and loss"


def stage_memory(found: Found, parts: Detail, line: Timeline) -> tuple[tuple[Array, Array], ...]:
    """For each stage the seconds, from 0 on, at which its allocated bytes change, and the bytes from then on.

    Of a chunk's activations it holds as many microbatches as the simulation says. What it works with, and what the
    loss keeps, count while it holds any. parts: of the same stages as those that the timeline has.
    """
    bytes_of = {name: np.broadcast_to(part, parts.cost.stage_bytes.shape)[:, 0, 0, 0]
                for name, part in parts.cost.memory.items()}
    working = bytes_of[_WORKING] + bytes_of[_LOSS]
    at_rest = parts.cost.stage_bytes[:, 0, 0, 0] - working - bytes_of[_ACTIVATIONS]
    kept = _kept(found, bytes_of[_ACTIVATIONS] / in_flight(parts.points, parts.setting)[:, 0])
    result = []
    for stage in range(line.pp):
        seconds, held = line.held(stage)
        activations = held @ kept[list(line.placed[stage])]
        change = at_rest[stage] + activations + np.where(held.any(axis=1), working[stage], 0.0)
        result.append((np.append(0.0, seconds), np.append(at_rest[stage], change)))
    return tuple(result)


def _kept(found: Found, of_stage: Array) -> Array:
    """[pp vpp]: bytes that one microbatch keeps in each chunk of the model: its stage's, by the layers that it has."""
    layers = np.array([sum(kind not in ENDS for kind in chunk) for chunk in found.split.chunks], dtype=np.float64)
    stage = np.arange(len(layers)) % found.split.pp
    result: Array = of_stage[stage] * layers / np.maximum(np.bincount(stage, layers), 1.0)[stage]
    return result
