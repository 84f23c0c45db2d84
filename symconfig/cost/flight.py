"""Microbatches in flight: how many a stage's activations are of at its peak, chunk by chunk where chunks differ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from symconfig.cost import formulas
from symconfig.cost.lattice import Array, pairs
from symconfig.cost.stages import Setting
from symconfig.cost.tape import maximum, minimum
from symconfig.plans.columns import Columns


def at_peak(kept: Array, ends: Array, points: Columns, setting: Setting) -> Array:
    """Return the bytes of activations at each stage's peak, `ends` aside: [s, x, n].

    kept: [s, x, n], for each microbatch in flight. ends: [s, x, n], what the loss keeps, once. On the last stage the
    peak is the loss's moment, or another one at which that is not there but more activations are.
    """
    unlike = _UnevenStages.of(points, setting)
    result: Array = kept * _in_flight(points, setting, unlike)[:, None]
    if unlike is None:
        return result
    at_loss = unlike.each(lambda held: held.at_loss)[:, None]
    never = np.isnan(at_loss)  # left out of the product, too: NumPy 2.5 warns of it where terms are multiplied
    return np.where(never, result, maximum(kept * np.where(never, 0.0, at_loss), result - ends))


def in_flight(points: Columns, setting: Setting) -> Array:
    """Return [s, n]: microbatches of the whole stage whose activations it holds when it holds most of them.

    Where a stage's chunks have different numbers of layers, the early ones hold more microbatches than the late ones.
    """
    return _in_flight(points, setting, _UnevenStages.of(points, setting))


def _in_flight(points: Columns, setting: Setting, unlike: _UnevenStages | None) -> Array:
    pipelines = setting.pipelines
    result: Array = formulas.in_flight(
        pipelines.index, pipelines.pp, pipelines.vpp, points.num_microbatches[None], setting.groups
    )
    if unlike is None:
        return result
    most = unlike.each(lambda held: held.most)
    return np.where(np.isnan(most), result, most)


def heads_in_flight(heads: Array, points: Columns, setting: Setting) -> Array:
    """Return [s, x, n]: microbatches in flight of the layers at the head of each chunk that keep less than the others.

    heads: [s, x, n], how many those are on the stage, the first so many of each chunk. The most that is held is convex
    in what each of them keeps: no higher than in between those that keep all and those that keep nothing.
    """
    unlike = _UnevenStages.of(points, setting)
    result = np.repeat(_in_flight(points, setting, unlike)[:, None], heads.shape[1], axis=1)
    if unlike is None:
        return result
    most = max(held.heads.size for held in unlike.held_by.values()) - 1
    # Of the numbers of first layers the smallest one that has so many. A stage that has fewer repeats its last one.
    every = np.arange(most + 1)
    count = unlike.each(lambda held: held.heads[minimum(every, held.heads.size - 1)])
    each = unlike.each(lambda held: held.of_heads[minimum(every, held.heads.size - 1)])
    first = (count[:, None] < heads[..., None, :]).sum(axis=2)
    in_heads = np.take_along_axis(each, minimum(first, most), axis=1)
    return np.where((heads > 0) & ~np.isnan(in_heads), in_heads, result)


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


@dataclass(frozen=True, slots=True)
class _UnevenStages:
    """The stages of an evaluation whose chunks are unlike.

    held_by: by row of the stage shapes, and by place among different pairs of a pipeline and a number of microbatches;
    which [n]: each point's place among them, of so many.
    """

    held_by: dict[tuple[int, int], _Held]
    which: NDArray[np.intp]
    shape: tuple[int, int]

    @staticmethod
    def of(points: Columns, setting: Setting) -> _UnevenStages | None:
        """Return those of some points; None: there are none. Costs ask several times for the same points."""
        memo, m = setting.pipelines.memo, points.num_microbatches
        if "unlike" not in memo or memo["unlike"][0] is not m:
            memo["unlike"] = m, _UnevenStages._of(m, setting)
        unlike: _UnevenStages | None = memo["unlike"][1]
        return unlike

    @staticmethod
    def _of(num_microbatches: Array, setting: Setting) -> _UnevenStages | None:
        pipelines, by_shape = setting.pipelines, dict[tuple[int, int], _Held]()
        mixed = [[len(set(stage.layers)) > 1 for stage in one.stages] for one in pipelines.each]
        if not any(map(any, mixed)):
            return None
        rows = len(pipelines.index)
        different, which = pairs(pipelines.which, clamp_microbatches(num_microbatches, setting))
        for column, (place, count) in enumerate(different.T.tolist()):
            one, group = pipelines.each[place], setting.group_of(pipelines.each[place])
            last = len(one.stages) - 1
            for row in range(rows):
                stage = one.stages[min(row, last)]
                if mixed[place][min(row, last)]:
                    by_shape[row, column] = _held_of(stage.index, stage.layers, one.pp, group, count)
        return _UnevenStages(by_shape, which, (rows, different.shape[1])) if by_shape else None

    def each(self, of: Callable[[_Held], Any]) -> Array:
        """Return [s, *x, n]: a figure of each point's stages, NaN of those whose chunks are alike."""
        values = [of(held) for held in self.held_by.values()]
        result = np.full((*self.shape, *np.shape(values[0])), np.nan)
        result[tuple(np.array(list(self.held_by)).T)] = values
        return np.moveaxis(result, 1, -1)[..., self.which]


def clamp_microbatches(num_microbatches: Array, setting: Setting) -> Array:
    """Return the numbers of microbatches, [n], without those of which stages hold no more than of fewer: `held` has no
    moment later than (2 vpp + 1) groups' passes of a chunk, which are of no more than three groups."""
    enough: Array = np.minimum(num_microbatches, 3 * np.maximum(setting.groups, setting.pipelines.pp))
    return enough


@lru_cache(maxsize=65536)
def _held_of(stage: int, layers: tuple[int, ...], pp: int, group: int, microbatches: int) -> _Held:
    """Return what a stage of such chunks holds."""
    chunks = np.array(layers, dtype=np.float64)[:, None]
    rest = maximum(chunks - np.arange(max(layers) + 1.0), 0.0)  # [vpp, first]: layers without the first ones
    moments = held(stage, pp, len(layers), group, microbatches) @ rest
    every, last = moments[:, 0], stage == pp - 1
    less = every.max() - moments.max(axis=0)
    if last:
        less = minimum(less, every[0] - moments[0])
    total, heads = float(chunks.sum()), chunks.sum() - rest.sum(axis=0)
    return _Held(
        most=float(every.max()) / total,
        at_loss=float(every[0]) / total if last else float("nan"),
        heads=heads,
        of_heads=less / maximum(heads, 1.0),
    )


@lru_cache(maxsize=4096)
def held(stage: int, pp: int, vpp: int, group: int, microbatches: int) -> Array:
    """Return the microbatches of each chunk whose activations a stage holds, at every moment that may be its peak:
    [moments, vpp]; the first moment is that of its first backward, on the last stage the loss's.

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
        """Count the passes of the chunk that is `place`-th in order, of so many passes of all."""
        whole, rest = np.divmod(passes, group * vpp)
        begun = np.minimum(np.maximum(rest - place * group, 0), group)
        result: Array = np.minimum(whole * group + begun, microbatches)
        return result

    result: Array = done(ahead + steps, chunk) - done(steps, vpp - 1 - chunk)
    return result
