"""Microbatches in flight: how many a stage's activations are of at its peak, chunk by chunk where chunks differ."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial

import numpy as np

from symconfig.cost import compiled
from symconfig.cost.lattice import Array
from symconfig.cost.stages import Setting, StageShape
from symconfig.plans.columns import Columns


def at_peak(kept: Array, ends: Array, points: Columns, setting: Setting) -> Array:
    """[s, x, n]: bytes of activations at each stage's peak, `ends` aside.

    kept: [s, x, n], for each microbatch in flight. ends: [s, x, n], what the loss keeps, once. On the last stage the
    peak is the loss's moment, or another one at which that is not there but more activations are.
    """
    result: Array = kept * in_flight(points, setting)[:, None]
    for row, stage in enumerate(setting.stages):
        if stage.index == setting.pp - 1 and _uneven(stage):
            at_loss = _each_size(points, partial(_first_moment, stage, setting))
            result[row] = np.maximum(kept[row] * at_loss / sum(stage.layers), result[row] - ends[row])
    return result


def in_flight(points: Columns, setting: Setting) -> Array:
    """[s, n]: microbatches of the whole stage whose activations it holds when it holds most of them.

    Where a stage's chunks have different numbers of layers, the early ones hold more microbatches than the late ones.
    """
    index = np.array([[float(stage.index)] for stage in setting.stages])
    m, group = points.num_microbatches[None], float(setting.microbatch_group)
    result: Array = compiled.in_flight(index, float(setting.pp), float(setting.vpp), m, group)
    for row, stage in enumerate(setting.stages):
        if _uneven(stage):
            most = _each_size(points, partial(_most, stage, setting))
            result[row] = most / sum(stage.layers)
    return result


def heads_in_flight(heads: Array, points: Columns, setting: Setting) -> Array:
    """[s, x, n]: microbatches in flight of the layers at the head of each chunk that keep less than the others.

    heads: [s, x], how many those are on the stage, the first so many of each chunk. The most that is held is convex in
    what each of them keeps: no higher than in between those that keep all and those that keep nothing.
    """
    result = np.repeat(in_flight(points, setting)[:, None], heads.shape[1], axis=1)
    for row, stage in enumerate(setting.stages):
        for column in np.flatnonzero(heads[row]) if _uneven(stage) else ():
            first = next(n for n in range(1, max(stage.layers) + 1) if _heads(stage, n) >= heads[row, column])
            result[row, column] = _each_size(points, partial(_less, stage, setting, first)) / _heads(stage, first)
    return result


def _heads(stage: StageShape, first: int) -> int:
    return sum(min(first, layers) for layers in stage.layers)


def _first_moment(stage: StageShape, setting: Setting, m: int) -> float:
    return float(_layers(stage, setting, 0, m)[0])


def _most(stage: StageShape, setting: Setting, m: int) -> float:
    return float(_layers(stage, setting, 0, m).max())


def _less(stage: StageShape, setting: Setting, first: int, m: int) -> float:
    """Layers that are held the fewer at the peak, without the first ones of each chunk; on the last stage at the loss's
    moment if that are fewer."""
    every, rest = _layers(stage, setting, 0, m), _layers(stage, setting, first, m)
    less = float(every.max() - rest.max())
    return min(less, float(every[0] - rest[0])) if stage.index == setting.pp - 1 else less


def _uneven(stage: StageShape) -> bool:
    return len(set(stage.layers)) > 1


def _each_size(points: Columns, of: Callable[[int], float]) -> Array:
    """[n]: of each point's number of microbatches, once for each that there is."""
    sizes, which = np.unique(points.num_microbatches, return_inverse=True)
    result: Array = np.array([of(int(size)) for size in sizes])[which]
    return result


def _layers(stage: StageShape, setting: Setting, first: int, m: int) -> Array:
    """[moments]: layers held, without the first ones of each chunk."""
    return _layers_held(stage.index, stage.layers, first, setting.pp, setting.microbatch_group, m)


@lru_cache(maxsize=65536)
def _layers_held(stage: int, layers: tuple[int, ...], first: int, pp: int, group: int, microbatches: int) -> Array:
    """The same."""
    chunks = np.maximum(np.array(layers, dtype=np.float64) - first, 0.0)
    result: Array = held(stage, pp, len(layers), group, microbatches) @ chunks
    return result


@lru_cache(maxsize=4096)
def held(stage: int, pp: int, vpp: int, group: int, microbatches: int) -> Array:
    """[moments, vpp]: microbatches of each chunk whose activations a stage holds, at every moment that may be its peak;
    the first one is that of its first backward, on the last stage the loss's.

    Megatron runs `group` microbatches through a chunk, then through the next one; forward from the first chunk,
    backward from the last.
    """
    if vpp == 1:
        return np.array([[float(min(microbatches, pp - stage))]])
    chunk = np.arange(float(vpp))
    total = microbatches * vpp
    ahead = min(total, 2 * (pp - stage - 1) + (vpp - 1) * group + 1)
    steps = np.arange(float(min(group * vpp, total - ahead + 1)))[:, None]

    def done(passes: Array, place: Array) -> Array:
        """Passes of the chunk that is `place`-th in order, of so many passes of all."""
        whole, rest = np.divmod(passes, group * vpp)
        result: Array = np.minimum(whole * group + np.clip(rest - place * group, 0, group), microbatches)
        return result

    result: Array = done(ahead + steps, chunk) - done(steps, vpp - 1 - chunk)
    return result
