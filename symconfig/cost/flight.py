"""Microbatches in flight: how many a stage's activations are of at its peak, chunk by chunk where chunks differ."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from symconfig.cost import compiled
from symconfig.cost.lattice import Array
from symconfig.cost.stages import Points, Setting, StageShape


def in_flight(points: Points, setting: Setting) -> Array:
    """[s, n]: microbatches of the whole stage whose activations it holds at its peak.

    Where a stage's chunks have different numbers of layers, the early ones hold more microbatches than the late ones.
    """
    group = float(setting.microbatch_group)
    m = points.num_microbatches
    index = np.array([[float(stage.index)] for stage in setting.stages])
    result: Array = compiled.in_flight(index, float(setting.pp), float(setting.vpp), m[None], group)
    for row, stage in enumerate(setting.stages):
        if len(set(stage.layers)) > 1:
            sizes, which = np.unique(m, return_inverse=True)
            result[row] = np.array([_uneven(stage, setting.pp, int(group), int(size)) for size in sizes])[which]
    return result


@lru_cache(maxsize=65536)
def _uneven(stage: StageShape, pp: int, group: int, microbatches: int) -> float:
    """The same for one stage: the moment of the steady state in which most layers' activations are held.

    Megatron runs `group` microbatches through a chunk, then through the next one; forward from the first chunk,
    backward from the last. On the last stage the moment is the loss's, whose buffers are then on top.
    """
    vpp = len(stage.layers)
    chunk = np.arange(float(vpp))
    total = microbatches * vpp
    ahead = min(total, 2 * (pp - stage.index - 1) + (vpp - 1) * group + 1)
    moments = 1 if stage.index == pp - 1 else min(group * vpp, total - ahead + 1)
    steps = np.arange(float(moments))[:, None]

    def done(passes: Array, place: Array) -> Array:
        """Passes of the chunk that is `place`-th in order, of so many passes of all."""
        whole, rest = np.divmod(passes, group * vpp)
        result: Array = np.minimum(whole * group + np.clip(rest - place * group, 0, group), microbatches)
        return result

    held = done(ahead + steps, chunk) - done(steps, vpp - 1 - chunk)
    return float((held @ np.array(stage.layers)).max()) / sum(stage.layers)
