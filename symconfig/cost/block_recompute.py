"""Recomputing the first n layers of every virtual stage: the fewest that fit, for every point at once.

Memory falls and time grows with n, so the smallest n that fits is the best one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from symconfig.cost import formulas
from symconfig.cost.blocks import SECONDS
from symconfig.cost.lattice import Array
from symconfig.cost.pipeline import pipelined
from symconfig.cost.stages import Setting, Stages, summed
from symconfig.cost.step import Cost, total
from symconfig.cost.table import Table
from symconfig.cost.tape import maximum
from symconfig.plans.columns import Columns

Prefix = tuple[tuple[int, ...], ...]  # [n]: blocks of each kind among the first n layers of the stage's chunks


@dataclass(frozen=True, slots=True)
class BlockCost:
    """layers: the number of recomputed layers of each candidate, 0 where none fits, [1, o, n]. cost: with that
    number.
    """

    layers: NDArray[np.intp]
    cost: Cost


@dataclass(frozen=True, slots=True)
class Extremes:
    """The policies without recompute (keep) and with full recompute (rerun), as rows of the table.

    sums: of all policies at the `chosen` points of the table. plain: the cost without recompute at these points.
    """

    keep: int
    rerun: int
    table: Table
    chosen: NDArray[np.intp]
    sums: Stages
    plain: Cost


def evaluate_block(
    extremes: Extremes, points: Columns, setting: Setting, prefix: Array, budget_bytes: float
) -> BlockCost:
    """Return the fewest first layers of every chunk to recompute, at least one, so that memory fits.

    The cost is that with this number. Where no number fits, layers is 0 and the cost is that without recompute.

    prefix: as of `prefixed`. budget_bytes: of peak allocated bytes.
    """
    plain, passes = extremes.plain, extremes.table.passes
    plain_sums, full_sums = extremes.sums.policy(extremes.keep), extremes.sums.policy(extremes.rerun)
    repeated, keep = (passes[:, row][..., extremes.chosen] for row in (extremes.rerun, extremes.keep))
    change = repeated - keep  # [PASSES, kinds, n]
    kept = extremes.table.kept(extremes.chosen, setting.pipelines.pp)
    heads = prefix.sum(axis=2)
    # The heads of all chunks are as long, so that they are in flight as a stage of even chunks is. [s, layers, n]
    pipelines, m = setting.pipelines, points.num_microbatches[None]
    even = formulas.in_flight(pipelines.index, pipelines.pp, pipelines.vpp, m, setting.groups)
    less = summed(prefix, kept[extremes.rerun] - kept[extremes.keep]) * even[:, None]
    activations = plain.memory["activations"][:, 0] + less
    touched = heads > 0
    working = np.where(touched, maximum(plain_sums.transient, full_sums.transient), plain_sums.transient)
    fixed = total({name: part for name, part in plain.memory.items() if name not in ("activations", "working set")})
    movable = activations + working
    fits = np.asarray((movable[:, :, None, :] + fixed[:, 0][:, None]).max(axis=0) <= budget_bytes)  # [layers, o, n]
    fits &= touched.any(axis=0)[:, None]
    layers = np.where(fits.any(axis=0), fits.argmax(axis=0), 0)[None]
    memory = {**plain.memory, "activations": _pick(activations, layers), "working set": _pick(working, layers)}
    extra = _pick(summed(prefix, change[SECONDS].sum(axis=0)), layers)
    return BlockCost(layers, Cost(plain.time | _pipeline(plain_sums, extra, points, setting), memory))


def prefixed(each: Sequence[Sequence[Prefix]], which: NDArray[np.intp] | None, shapes: int) -> Array:
    """Return the prefixes of every pipeline's stage shapes as one array: [s, layers, kinds, n].

    which: as of `Pipelines.of`. shapes: the number of stage shapes. Where a pipeline has fewer shapes or layers, its
    last ones are repeated, which cost the same.
    """
    most = max(len(prefix) for one in each for prefix in one)
    rows = [
        [[*prefix, *[prefix[-1]] * (most - len(prefix))] for prefix in (*one, *[one[-1]] * (shapes - len(one)))]
        for one in each
    ]
    sums = np.moveaxis(np.array(rows, dtype=np.float64), 0, -1)
    return sums if which is None else sums[..., which]


def _pick(table: Array, layers: NDArray[np.intp]) -> Array:
    """Return table[s, layers, n] at the chosen number of layers of every candidate: [s, 1, o, n]."""
    result: Array = table[:, layers, np.arange(layers.shape[-1])]
    return result


def _pipeline(sums: Stages, extra: Array, points: Columns, setting: Setting) -> dict[str, Array]:
    """Return the seconds of a step's passes by part: [1, o, n] each.

    sums: without recompute. extra: the recomputed seconds of one microbatch, [s, 1, o, n].
    """
    seconds, communication = sums.seconds[:, :1, None], sums.communication[:, :1, None]
    return pipelined(seconds + extra, extra, communication, sums=sums, points=points, setting=setting)
