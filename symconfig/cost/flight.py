"""Microbatches in flight: how many a stage's activations are of at its peak, chunk by chunk where chunks differ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from symconfig.cost import compiled
from symconfig.cost.lattice import Array
from symconfig.cost.stages import Pipeline, Setting, StageShape
from symconfig.plans.columns import Columns


def at_peak(kept: Array, ends: Array, points: Columns, setting: Setting) -> Array:
    """[s, x, n]: bytes of activations at each stage's peak, `ends` aside.

    kept: [s, x, n], for each microbatch in flight. ends: [s, x, n], what the loss keeps, once. On the last stage the
    peak is the loss's moment, or another one at which that is not there but more activations are.
    """
    result: Array = kept * in_flight(points, setting)[:, None]
    for row, stage, pipeline, mine in setting.pipelines.shapes():
        if stage.index == pipeline.pp - 1 and _uneven(stage):
            at_loss = _each_size(points, mine, partial(_first_moment, _Held(stage, pipeline, setting)))
            beside = np.maximum(kept[row] * at_loss / sum(stage.layers), result[row] - ends[row])
            result[row] = np.where(mine, beside, result[row])
    return result


def in_flight(points: Columns, setting: Setting) -> Array:
    """[s, n]: microbatches of the whole stage whose activations it holds when it holds most of them.

    Where a stage's chunks have different numbers of layers, the early ones hold more microbatches than the late ones.
    """
    pipelines = setting.pipelines
    result: Array = compiled.in_flight(
        pipelines.index, pipelines.pp, pipelines.vpp, points.num_microbatches[None], setting.groups
    )
    for row, stage, pipeline, mine in pipelines.shapes():
        if _uneven(stage):
            most = _each_size(points, mine, partial(_most, _Held(stage, pipeline, setting)))
            result[row] = np.where(mine, most / sum(stage.layers), result[row])
    return result


def heads_in_flight(heads: Array, points: Columns, setting: Setting) -> Array:
    """[s, x, n]: microbatches in flight of the layers at the head of each chunk that keep less than the others.

    heads: [s, x, n], how many those are on the stage, the first so many of each chunk. The most that is held is convex
    in what each of them keeps: no higher than in between those that keep all and those that keep nothing.
    """
    result = np.repeat(in_flight(points, setting)[:, None], heads.shape[1], axis=1)
    for row, stage, pipeline, mine in setting.pipelines.shapes():
        if not _uneven(stage):
            continue
        own = heads[row][:, np.flatnonzero(np.broadcast_to(mine, heads.shape[-1:]))[0]]
        held = _Held(stage, pipeline, setting)
        for column in np.flatnonzero(own):
            first = next(n for n in range(1, max(stage.layers) + 1) if _heads(stage, n) >= own[column])
            less = _each_size(points, mine, partial(_less, held, first)) / _heads(stage, first)
            result[row, column] = np.where(mine, less, result[row, column])
    return result


@dataclass(frozen=True, slots=True)
class _Held:
    """What a stage of a pipeline holds at its moments."""

    stage: StageShape
    pipeline: Pipeline
    setting: Setting

    @property
    def last(self) -> bool:
        return self.stage.index == self.pipeline.pp - 1

    def layers(self, first: int, m: int) -> Array:
        """[moments]: layers held, without the first ones of each chunk."""
        group = self.setting.group_of(self.pipeline)
        return _layers_held(self.stage.index, self.stage.layers, first, self.pipeline.pp, group, m)


def _heads(stage: StageShape, first: int) -> int:
    return sum(min(first, layers) for layers in stage.layers)


def _first_moment(held: _Held, m: int) -> float:
    return float(held.layers(0, m)[0])


def _most(held: _Held, m: int) -> float:
    return float(held.layers(0, m).max())


def _less(held: _Held, first: int, m: int) -> float:
    """Layers that are held the fewer at the peak, without the first ones of each chunk; on the last stage at the loss's
    moment if that are fewer."""
    every, rest = held.layers(0, m), held.layers(first, m)
    less = float(every.max() - rest.max())
    return min(less, float(every[0] - rest[0])) if held.last else less


def _uneven(stage: StageShape) -> bool:
    return len(set(stage.layers)) > 1


def _each_size(points: Columns, mine: NDArray[np.bool_], of: Callable[[int], float]) -> Array:
    """[n]: of each point's number of microbatches, once for each that there is. mine: of which points; else 0."""
    m = np.where(mine, points.num_microbatches, 0)
    sizes, which = np.unique(m, return_inverse=True)
    result: Array = np.array([of(int(size)) if size else 0.0 for size in sizes])[which]
    return result


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
