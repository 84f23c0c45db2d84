"""What a schedule needs to know of a plan: seconds of every chunk's passes, messages and data-parallel collectives."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from symconfig.cost.blocks import SECONDS
from symconfig.cost.exchange import exchange
from symconfig.cost.formulas import CONTENTION
from symconfig.cost.lattice import Array
from symconfig.cost.pipeline import messages
from symconfig.cost.shapes import StageShape
from symconfig.cost.stages import Setting, Stages, stages
from symconfig.cost.table import Table
from symconfig.graph.derived import Phase
from symconfig.graph.parts import is_layer
from symconfig.plans.columns import Columns
from symconfig.schedule.timeline import Times

Chunk = Sequence[str]  # kinds of its blocks, in model order


def chunk_times(
    table: Table, sums: Stages, points: Columns, setting: Setting, chunks: Sequence[Chunk], repeated: int
) -> Times:
    """Return every chunk's seconds for the schedule simulator, at the first point and under the first recompute policy.

    sums: of the stages. chunks: all of the model, in model order. repeated: how many first layers of each chunk are
    recomputed as by the table's second policy, 0 for none. Gathers and reductions are those of once a step (ZeRO 0 and
    1).
    """
    alike = list(dict.fromkeys(tuple(chunk) for chunk in chunks))
    shapes = tuple(_shape(index, chunk, table.kinds) for index, chunk in enumerate(alike))
    own = setting.having(shapes)
    of = stages(table, own.pipelines, np.arange(points.dp.size), setting.tied)
    moved = exchange(of, points, own)
    counts = np.array([shape.counts for shape in shapes], dtype=np.float64)
    weight = counts @ _weight_gradients_s(table)
    hidden = table.hidden[:, :, 0] @ counts.T  # [2, chunks]: a schedule that hides it takes it off again
    repeated_s = of.rerun[:, 0, 0]
    backward = of.back[:, 0, 0] - repeated_s - weight
    if repeated:
        repeated_s = repeated_s + _recomputed_s(table, alike, repeated)
    where = np.array([alike.index(tuple(chunk)) for chunk in chunks]).reshape(setting.vpp, setting.pp).T
    between = messages(sums, points, setting)
    gathers_apart, reduces_apart, hide = overlap(setting)
    return Times(
        forward=(of.ahead[:, 0, 0] + hidden[0])[where],
        recompute=repeated_s[where],
        backward=(backward + hidden[1])[where],
        weight=weight[where],
        busy_s=float(between.busy_s[0]),
        lag_s=float(between.lag_s[0]),
        gather=moved.gather[where, 0],
        reduce=moved.reduce[where, 0],
        gathers_apart=gathers_apart,
        reduces_apart=reduces_apart,
        hide=hide,
        contention=CONTENTION,
        paired=hidden.sum(axis=0)[where],
    )


def overlap(setting: Setting) -> tuple[bool, bool, Array]:
    """Return (whether gathers run apart, whether reductions do, share of own backwards that reductions overlap with).

    Without overlap both run apart, and without interleaving the gathers do. The shares, [pp, vpp], are above 0 only on
    the first stage without interleaving, which alone has several buckets. Megatron-LM (core_v0.19) with
    --overlap-grad-reduce (distributed_data_parallel.py, `bucket_size`). Interleaved, collectives of all stages are
    aligned, one a chunk, launched before the chunk's first forward and after its last backward (schedules.py,
    `param_sync_func` and `grad_sync_func`).
    """
    framework, hide = setting.framework, np.zeros((setting.pp, setting.vpp))
    if framework.hide.data and setting.vpp == 1:
        hide[0] = framework.hide.data
    alone = not framework.hide.data
    return alone or setting.vpp == 1 or framework.gathers_apart, alone, hide


def _shape(index: int, chunk: Chunk, kinds: tuple[str, ...]) -> StageShape:
    layers = sum(is_layer(kind) for kind in chunk)
    return StageShape(index, tuple(chunk.count(kind) for kind in kinds), 1, (layers,))


def _weight_gradients_s(table: Table) -> Array:
    """Return the seconds of each kind's products for its weight gradients, at the first point: [kinds]."""
    return np.array(
        [sum(float(t[0]) for (_, phase), t in block.work_s.items() if phase is Phase.WEIGHT) for block in table.blocks]
    )


def _recomputed_s(table: Table, chunks: Sequence[Chunk], layers: int) -> Array:
    """Return the seconds that recomputing the first layers of each chunk adds: [chunks].

    layers: of each chunk. At the first point of the table.
    """
    change = np.subtract(*table.passes[SECONDS, ::-1, :, 0].sum(axis=0))
    heads = [[kind for kind in chunk if is_layer(kind)][:layers] for chunk in chunks]
    counts = np.array([[head.count(kind) for kind in table.kinds] for head in heads], dtype=np.float64)
    result: Array = counts @ change
    return result
