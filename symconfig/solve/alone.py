"""One pipeline stage's own work: what a GPU does in a step when no message takes any time."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from symconfig.cost.blocks import SECONDS
from symconfig.cost.lattice import Array, Lattice
from symconfig.cost.machine import without_network
from symconfig.cost.step import evaluate
from symconfig.solve.costed import costed
from symconfig.solve.prospect import Prospect


@dataclass(frozen=True, slots=True)
class Alone:
    """Seconds [n]: a microbatch's passes through all chunks of the stage, what runs again with the backward one; the
    optimizer over the stage's share of the parameters. No collective is in them, and what the host's link adds is.

    memory: bytes of the stage at its peak, by part.
    """

    forward_s: Array
    backward_s: Array
    optimizer_s: Array
    num_microbatches: Array
    memory: dict[str, float]

    @property
    def step_s(self) -> Array:
        """Return all that the stage's GPUs do in a step, without waiting for anything."""
        result: Array = self.num_microbatches * (self.forward_s + self.backward_s) + self.optimizer_s
        return result


def alone(prospect: Prospect, stage: int, known: Lattice | None = None) -> Alone:
    """Return the stage of a candidate. known: as for `detail`."""
    parts = costed(replace(prospect, machine=without_network(prospect.machine)), known)
    sums, setting = parts.sums.part(slice(stage, stage + 1)), parts.setting.having((parts.setting.stages[stage],))
    forward = sums.ahead[0, 0]
    backward = sums.back[0, 0]
    if prospect.block_layers:
        # What full recompute of the first layers of every chunk adds to no recompute: [n].
        repeated = np.array(
            prospect.split.first_layers_of(stage, parts.table.kinds, prospect.block_layers), dtype=np.float64
        )
        change = parts.table.passes[SECONDS].sum(axis=0)
        backward = backward + repeated @ (change[1] - change[0])
    return Alone(
        forward,
        backward,
        np.broadcast_to(evaluate(sums, parts.points, setting).time["optimizer"], (1, 1, forward.size))[0, 0],
        parts.points.num_microbatches,
        {name: float(part[stage, 0, 0, 0]) for name, part in parts.cost.memory.items()},
    )
