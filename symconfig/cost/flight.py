"""Microbatches in flight: how many a stage's activations are of at its peak, chunk by chunk where chunks differ."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from operator import itemgetter

import numpy as np

from symconfig.cost import compiled
from symconfig.cost.lattice import Array
from symconfig.cost.stages import Points, Setting, StageShape


def at_peak(kept: Array, ends: Array, points: Points, setting: Setting) -> Array:
    """[s, x, n]: bytes of activations at each stage's peak, `ends` aside.

    kept: [s, x, n], for each microbatch in flight. ends: [s, x, n], what the loss keeps, once. On the last stage the
    peak is the loss's moment, or another one at which that is not there but more activations are.
    """
    result: Array = kept * in_flight(points, setting)[:, None]
    row = next((row for row, stage in enumerate(setting.stages) if stage.index == setting.pp - 1), None)
    if row is not None and len(set(setting.stages[row].layers)) > 1:
        at_loss = _of_stages(points, setting, itemgetter(0))[row]
        result[row] = np.maximum(kept[row] * at_loss, result[row] - ends[row])
    return result


def in_flight(points: Points, setting: Setting) -> Array:
    """[s, n]: microbatches of the whole stage whose activations it holds when it holds most of them.

    Where a stage's chunks have different numbers of layers, the early ones hold more microbatches than the late ones.
    """
    return _of_stages(points, setting, np.max)


def _of_stages(points: Points, setting: Setting, pick: Callable[[Array], float]) -> Array:
    """[s, n]: pick: of the moments of a stage whose chunks differ."""
    group = float(setting.microbatch_group)
    m = points.num_microbatches
    index = np.array([[float(stage.index)] for stage in setting.stages])
    result: Array = compiled.in_flight(index, float(setting.pp), float(setting.vpp), m[None], group)
    for row, stage in enumerate(setting.stages):
        if len(set(stage.layers)) > 1:
            sizes, which = np.unique(m, return_inverse=True)
            moments = [_uneven(stage, setting.pp, int(group), int(size)) for size in sizes]
            result[row] = np.array([pick(each) for each in moments])[which]
    return result


@lru_cache(maxsize=65536)
def _uneven(stage: StageShape, pp: int, group: int, microbatches: int) -> Array:
    """[moments]: the same for one stage, at every moment of the steady state; the first one is that of its first
    backward, on the last stage the loss's.

    Megatron runs `group` microbatches through a chunk, then through the next one; forward from the first chunk,
    backward from the last.
    """
    vpp = len(stage.layers)
    chunk = np.arange(float(vpp))
    total = microbatches * vpp
    ahead = min(total, 2 * (pp - stage.index - 1) + (vpp - 1) * group + 1)
    steps = np.arange(float(min(group * vpp, total - ahead + 1)))[:, None]

    def done(passes: Array, place: Array) -> Array:
        """Passes of the chunk that is `place`-th in order, of so many passes of all."""
        whole, rest = np.divmod(passes, group * vpp)
        result: Array = np.minimum(whole * group + np.clip(rest - place * group, 0, group), microbatches)
        return result

    held = done(ahead + steps, chunk) - done(steps, vpp - 1 - chunk)
    result: Array = (held @ np.array(stage.layers)) / sum(stage.layers)
    return result
