"""What a pipeline's tasks and messages take."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Start(Enum):
    """When a stage's data-parallel collectives run; those of one stage follow one another.

    APART: all gathers before the stage's first task, all reductions after its last one.
    AHEAD: gathers from time 0 on; a reduction when the chunk's gradients are complete on all stages.
    ON_DEMAND: a gather when the chunk's first input has arrived; a reduction as for AHEAD.
    """

    APART = "apart"
    AHEAD = "ahead"
    ON_DEMAND = "on demand"


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of one microbatch in each chunk: arrays [pp, vpp]; [i, k] is chunk i + k pp of the model.

    That is Megatron's order. A schedule that places chunks otherwise (ZB-V, DualPipe) reads the same arrays
    by number of the chunk in the model.

    recompute: the forward again, before the backward. backward: gradients of the inputs. weight: gradients of the
    weights; a schedule that does not split the backward runs them with it.
    busy_s: for which a message (an activation or a gradient from another stage) occupies its receiver.
    lag_s: further time that a message is under way, while nobody needs to wait.
    gather: all-gather of a chunk's new weights before its first forward. reduce: the reduction of a chunk's gradients
    after its last backward. gathers, reduces: when they run, on a channel of the stage's own.
    paired: what a microbatch's forward and backward in a chunk save, half each, where a schedule runs them beside a
    backward and a forward of other microbatches (expert all-to-alls under the other one's products).
    hide: the share of a chunk's own first forward (last backward) beside which its gather (reduction) runs, unless
    apart; [pp, vpp], or one for all.
    contention: the share of a collective's time beside work that the work is slowed by; below 1.
    slow: [pp], how many times longer each stage's GPUs take for any work, or one for all.
    """

    forward: Array
    recompute: Array
    backward: Array
    weight: Array
    busy_s: float = 0.0
    lag_s: float = 0.0
    gather: Array | None = None
    reduce: Array | None = None
    gathers: Start = Start.AHEAD
    reduces: Start = Start.AHEAD
    hide: Array | float = 0.0
    contention: float = 0.0
    paired: Array | None = None
    slow: Array | float = 1.0

    @property
    def pp(self) -> int:
        return int(self.forward.shape[0])

    @property
    def vpp(self) -> int:
        return int(self.forward.shape[1])


def by_chunk(times: Array) -> Array:
    """Return an array [pp, vpp] of Times flattened in model order: [pp * vpp]."""
    return times.T.reshape(-1)
