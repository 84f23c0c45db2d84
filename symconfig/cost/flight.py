"""Microbatches in flight: how many a stage's activations are of at its peak, chunk by chunk where chunks differ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from symconfig.cost import compiled
from symconfig.cost.lattice import Array, pairs
from symconfig.cost.stages import Setting
from symconfig.plans.columns import Columns


def at_peak(kept: Array, ends: Array, points: Columns, setting: Setting) -> Array:
    """[s, x, n]: bytes of activations at each stage's peak, `ends` aside.

    kept: [s, x, n], for each microbatch in flight. ends: [s, x, n], what the loss keeps, once. On the last stage the
    peak is the loss's moment, or another one at which that is not there but more activations are.
    """
    result: Array = kept * in_flight(points, setting)[:, None]
    at_loss = _of_uneven(points, setting, lambda held: held.at_loss)
    if at_loss is None:
        return result
    beside = np.maximum(kept * at_loss[:, None], result - ends)
    return np.where(np.isnan(at_loss)[:, None], result, beside)


def in_flight(points: Columns, setting: Setting) -> Array:
    """[s, n]: microbatches of the whole stage whose activations it holds when it holds most of them.

    Where a stage's chunks have different numbers of layers, the early ones hold more microbatches than the late ones.
    """
    pipelines = setting.pipelines
    result: Array = compiled.in_flight(
        pipelines.index, pipelines.pp, pipelines.vpp, points.num_microbatches[None], setting.groups
    )
    most = _of_uneven(points, setting, lambda held: held.most)
    return result if most is None else np.where(np.isnan(most), result, most)


def heads_in_flight(heads: Array, points: Columns, setting: Setting) -> Array:
    """[s, x, n]: microbatches in flight of the layers at the head of each chunk that keep less than the others.

    heads: [s, x, n], how many those are on the stage, the first so many of each chunk. The most that is held is convex
    in what each of them keeps: no higher than in between those that keep all and those that keep nothing.
    """
    result = np.repeat(in_flight(points, setting)[:, None], heads.shape[1], axis=1)
    most = max((max(stage.layers, default=0) for one in setting.pipelines.each for stage in one.stages), default=0)
    each = _of_uneven(points, setting, lambda held: np.pad(held.of_heads, (0, most + 1 - held.of_heads.size), "edge"))
    if each is None:
        return result
    count = _of_uneven(points, setting, lambda held: np.pad(held.heads, (0, most + 1 - held.heads.size), "edge"))
    assert count is not None
    # Of the numbers of first layers the smallest one that has so many.
    first = (count[:, None] < heads[..., None, :]).sum(axis=2)
    found = np.take_along_axis(each, np.minimum(first, most), axis=1)
    return np.where((heads > 0) & ~np.isnan(found), found, result)


@dataclass(frozen=True, slots=True)
class _Held:
    """Microbatches that a stage of unlike chunks holds, each as a share of the stage's layers.

    most: at the moment when it holds most; at_loss: at that of its first backward, on the last stage only, else NaN.
    heads, of_heads: of the first 0, 1, … layers of each chunk, how many they are, and their own microbatches in flight:
    by how many fewer the peak has without them, on the last stage at the loss's moment if that are fewer.
    """

    most: float
    at_loss: float
    heads: Array
    of_heads: Array


def _of_uneven(points: Columns, setting: Setting, of: Callable[[_Held], float | Array]) -> Array | None:
    """[s, *x, n]: a figure of each point's stages whose chunks are unlike, NaN of the others; None where none is."""
    pipelines, found = setting.pipelines, dict[tuple[int, int], float | Array]()
    unlike = [[len(set(stage.layers)) > 1 for stage in one.stages] for one in pipelines.each]
    if not any(map(any, unlike)):
        return None
    different, back = pairs(pipelines.which, points.num_microbatches)
    for column, (place, count) in enumerate(different.T.tolist()):
        one = pipelines.each[place]
        for row in range(len(pipelines.index)):
            stage = one.stages[min(row, len(one.stages) - 1)]
            if unlike[place][min(row, len(one.stages) - 1)]:
                group = setting.group_of(one)
                found[row, column] = of(_held_of(stage.index, stage.layers, one.pp, group, count))
    if not found:
        return None
    size = np.shape(next(iter(found.values())))
    result = np.full((len(pipelines.index), *size, different.shape[1]), np.nan)
    for (row, column), value in found.items():
        result[row, ..., column] = value
    return result[..., back]


@lru_cache(maxsize=65536)
def _held_of(stage: int, layers: tuple[int, ...], pp: int, group: int, microbatches: int) -> _Held:
    """Return what a stage of such chunks holds."""
    chunks = np.array(layers, dtype=np.float64)[:, None]
    rest = np.maximum(chunks - np.arange(max(layers) + 1.0), 0.0)  # [vpp, first]: layers without the first ones
    moments = held(stage, pp, len(layers), group, microbatches) @ rest
    every, last = moments[:, 0], stage == pp - 1
    less = every.max() - moments.max(axis=0)
    if last:
        less = np.minimum(less, every[0] - moments[0])
    total, heads = float(chunks.sum()), chunks.sum() - rest.sum(axis=0)
    return _Held(
        most=float(every.max()) / total,
        at_loss=float(every[0]) / total if last else float("nan"),
        heads=heads,
        of_heads=less / np.maximum(heads, 1.0),
    )


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
