"""Gradients that a rank keeps beside its share, since parameters that the share's ends cut are there whole.

Parameters lie one after the other in a flat group, of which each rank has an equal share; only two of those that the
share touches can reach out of it.
"""

from __future__ import annotations

import numpy as np

from symconfig.cost.lattice import Array
from symconfig.cost.stages import Offload, Setting, Stages
from symconfig.cost.tape import maximum, minimum
from symconfig.plans.columns import Columns

ALIGNMENT = 2  # elements: flat groups are padded to a multiple of this and of the ranks (nccl_start_alignment_factor)


def whole_gradient_bytes(sums: Stages, points: Columns, setting: Setting, offload: Offload) -> Array | float:
    """Return the bytes of whole gradients of the rank that keeps most: [s, n]. Sums wider than weights are of the share
    alone, or beside the gradients that were added last; host memory takes all others.
    """
    sizes, framework = setting.bytes, setting.framework
    if sizes.gradient > sizes.weight:
        keeps_added = setting.zero in framework.added_gradients_at and not offload.optimizer
        return sizes.weight * (sums.dense + sums.expert) if keeps_added else 0.0
    if setting.zero not in framework.whole_gradients_at or offload.optimizer:
        return 0.0
    apart = points.ep > 1  # experts are then in groups of their own
    among = np.where(apart, 0.0, sums.expert)
    result: Array = sizes.gradient * (
        _beside_share(sums, points, among, np.where(apart, 0.0, sums.widest_expert))
        + _beside_expert_shares(sums.expert - among, sums.widest_expert, points, framework.expert_group)
    )
    return result


def queued_gradient_bytes(sums: Stages, setting: Setting) -> Array:
    """Return the bytes of gradients that wait whole to be reduced, at the end of a backward: [s, n]."""
    every, queue = sums.dense + sums.expert, setting.framework.queued_elements
    if not queue or not setting.sharding.gradient:
        return np.zeros_like(every)
    most = maximum(queue, 2 * sums.largest) if setting.sharding.weight else every
    result: Array = setting.bytes.gradient * minimum(every, most)
    return result


def _beside_share(sums: Stages, points: Columns, expert: Array, widest_expert: Array) -> Array:
    """Return what of the tables lies outside a rank's share. The tables are first and last: a share that holds an end
    of one holds it whole, and what lies outside is as many whole shares as it fills.

    Both tables reach out of one share only where all layers are in it: otherwise a layer's parameter is at one end.
    """
    trained = sums.dense + expert
    vectors = sums.vectors / points.shards
    share = sums.dense / points.shards + expert / points.edp - vectors  # of the matrices
    layers = maximum(sums.widest, widest_expert)
    filled = (sums.widest_table + ALIGNMENT * points.shards) // maximum(share, 1.0)
    table = minimum(sums.widest_table, filled * share)
    largest = maximum(table, layers)
    other = np.where(trained - sums.vectors - sums.vocabulary <= share, largest, layers)
    result: Array = minimum(trained - sums.vectors - share, largest + other)
    whole: Array = result + minimum(sums.vectors - vectors, 2 * sums.widest_vector)
    return whole


def _beside_expert_shares(expert: Array, largest: Array, points: Columns, group: int) -> Array:
    """Return what of the experts' matrices lies outside a rank's share. All are as large: so many of them fill a group,
    at least one, but for the last group.
    """
    size = maximum(largest, 1.0)
    count, each = np.ceil(expert / size), maximum(group // size, 1.0)
    rest = count % each
    touched = count // each * _touched(each, size, points.edp) + _touched(rest, size, points.edp)
    result: Array = largest * touched - expert / points.edp
    return result


def _touched(count: Array, size: Array, ranks: Array) -> Array:
    """Return the most of so many parameters of one size that one of the ranks' equal shares of them touches.

    Shares begin at all multiples of 1 / q of a parameter and are p / q of one long, p / q being count / ranks in lowest
    terms; with padding they begin anywhere.
    """
    common = np.gcd(count.astype(np.int64), ranks.astype(np.int64))
    p, q = count / common, ranks / common
    exact = np.ceil((p - 1) / q) + 1
    padded = count * size % (ALIGNMENT * ranks) > 0
    result: Array = np.where(count > 0, minimum(np.where(padded, np.ceil(p / q) + 1, exact), count), 0.0)
    return result
