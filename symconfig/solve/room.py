"""Whether any layout of a candidate's layers over its stages fits in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from symconfig.cost.lattice import Array, pairs
from symconfig.cost.shapes import Pipeline, Pipelines, StageShape
from symconfig.cost.stages import Setting, Stages, stages
from symconfig.cost.step import HOST_SHARE, host_bytes, states
from symconfig.graph.model import sequence
from symconfig.plans.columns import Columns
from symconfig.solve.pieces import Piece, Way, settings, ways
from symconfig.solve.space import Refused, priced
from symconfig.solve.stages import ROUNDING, Bools


def totals(piece: Piece) -> Array:
    """Count the blocks of each kind that the model has, [kinds]."""
    kinds = sequence(piece.request.model)
    return np.array([kinds.count(kind) for kind in piece.low.kinds], dtype=np.float64)


def whole_model(piece: Piece, pp: NDArray[np.intp], vpp: NDArray[np.intp]) -> Pipelines:
    """Return pipelines with one stage shape, which holds the whole model and stands for all stages."""
    blocks = tuple(totals(piece).astype(np.int64).tolist())
    different, which = pairs(pp, vpp)
    each = [Pipeline(count, chunks, (StageShape(0, blocks, count),)) for count, chunks in different.T.tolist()]
    return Pipelines.of(each, which)


def states_fit(piece: Piece, pp: NDArray[np.intp], places: NDArray[np.intp]) -> Bools:
    """Tell whether an even share of weights, gradients and optimizer state may fit at some of the piece's points with
    so many stages, [t], under any ZeRO stage and offload: some stage holds as much."""
    if not places.size:
        return np.zeros(0, dtype=bool)
    different, which = pairs(pp, places)
    stages_of, points = different
    where = priced(piece.request, piece.candidates, stages_of, points)
    pipelines = whole_model(piece, stages_of, np.ones_like(stages_of))
    even = stages(piece.low, pipelines, points, piece.request.model.tie_word_embeddings).shared(pipelines.pp)
    may = np.zeros(points.size, dtype=bool)
    for setting, runs in settings(piece, pipelines, where):
        held: Array = sum(states(even, where, setting).values(), np.zeros(1))[0]
        fits = (held * (1 - ROUNDING) <= piece.budget) & can_pin(piece, even, where, setting)
        may |= runs & fits.any(axis=0)
    return np.asarray(may[which])


def roomy(piece: Piece, refused: Refused) -> Sequence[Way]:
    """Return the piece's ways at the points where `states_fit`, and let it have no others."""
    every = ways(piece, refused)
    if every:
        sizes = [chosen.size for _, _, chosen in every]
        pp, places = np.repeat([way[0] for way in every], sizes), np.concatenate([way[2] for way in every])
        fits = np.split(states_fit(piece, pp, places), np.cumsum(sizes)[:-1])
        piece.laid = [(*way[:2], way[2][fit]) for way, fit in zip(every, fits, strict=True) if fit.any()]
    return ways(piece, refused)


def can_pin(piece: Piece, even: Stages, where: Columns, setting: Setting) -> Bools:
    """Tell whether the host may hold what an offload moves there, [o, n]: an even share of what is pinned is the least
    that some stage pins. even: that share of the model. Activations are left out: each policy moves others."""
    room = piece.machine.host_memory_bytes_per_gpu * HOST_SHARE
    still = replace(even, away=np.zeros_like(even.away))
    return np.asarray(host_bytes(still, where, setting)[0] * (1 - ROUNDING) <= room)
