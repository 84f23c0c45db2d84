"""Whether any layout of a candidate's layers over its stages fits in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from symconfig.cost.flight import clamp_microbatches, held
from symconfig.cost.lattice import Array, pairs
from symconfig.cost.shapes import Pipeline, Pipelines, StageShape
from symconfig.cost.stages import Setting, Stages, stages
from symconfig.cost.step import HOST_SHARE, host_bytes, states
from symconfig.graph.model import sequence
from symconfig.graph.parts import place_of
from symconfig.plans.columns import Columns
from symconfig.solve.kinds import ROUNDING, Bools, Kinds
from symconfig.solve.pieces import Piece, Way, settings, ways
from symconfig.solve.space import Refused, priced


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


def held_at_least(piece: Piece, where: Columns, setting: Setting) -> tuple[Array, Array]:
    """Count the microbatches that a stage holds at least, [pp, n] each: of the chunk of which it holds fewest, and of
    its other chunks with one layer each how many more in all, where none may be empty. Of stages that a pipeline does
    not have, 0."""
    fewest, forced = _fewest_held(where, setting)
    return fewest, np.zeros_like(forced) if piece.request.limits.layouts.empty else forced


def has_room(lean: Kinds, piece: Piece, setting: Setting, fewest: Array, forced: Array, pinned: Bools) -> Bools:
    """Tell under which offloads blocks of one policy may fit, [o, n]. Those of most stages come first.

    pinned: [o, n], whether the host may hold what an offload moves there.
    """
    return np.asarray(may_fit(lean, fewest, forced, setting.pipelines.pp, piece.budget)[0] & pinned)


def can_pin(piece: Piece, even: Stages, where: Columns, setting: Setting) -> Bools:
    """Tell whether the host may hold what an offload moves there, [o, n]: an even share of what is pinned is the least
    that some stage pins. even: that share of the model. Activations are left out: each policy moves others."""
    room = piece.machine.host_memory_bytes_per_gpu * HOST_SHARE
    still = replace(even, away=np.zeros_like(even.away))
    return np.asarray(host_bytes(still, where, setting)[0] * (1 - ROUNDING) <= room)


def may_fit(kinds: Kinds, fewest: Array, forced: Array, pp: Array, limit_bytes: float) -> Bools:
    """Tell where a layout may fit: no layout does where this is false, [r, o, n]. fewest, forced: as of
    `held_at_least`. pp: [n], falling.

    Layers of several kinds are shared out in parts as small as one likes. A stage that keeps them for f microbatches
    has place for room / (w + f a) of the model's average layer (w: its state, a: what it keeps); a layer of another
    kind takes at least the smaller of its ratios to the average one at the fewest and at the most microbatches.
    """
    layers = kinds.layers
    share = (kinds.counts * layers / (kinds.counts * layers).sum())[:, None, None, None]
    state, kept = kinds.states[:, None, :, :], kinds.kept[:, :, None, :]
    mean_state, mean_kept = (share * state).sum(axis=0), (share * kept).sum(axis=0)
    smallest = kept[layers].min(axis=0)
    working = (kinds.transient + (kinds.buffers + kinds.workspaces)[:, None])[layers].min(axis=0)[:, None, :]
    ends = [
        sum((kinds.counts[k] * (state[k] + kinds.once[k][:, None, :]) for k in kinds_at_end), np.zeros(()))
        for kinds_at_end in _ends(kinds.names)
    ]
    room: Array = np.zeros(np.broadcast_shapes(state.shape[1:], kept.shape[1:]))
    for stage in range(len(fewest)):
        n = int((pp > stage).sum())
        held_by_all = working[..., :n] + forced[stage, :n] * smallest[..., :n]
        if stage == 0:
            held_by_all = held_by_all + ends[0]
        last = pp[:n] == stage + 1
        if last.any():
            held_by_all = held_by_all + np.where(last, ends[1][..., :n] if np.ndim(ends[1]) else ends[1], 0.0)
        place = np.maximum(limit_bytes - held_by_all, 0.0) / (
            mean_state[..., :n] + fewest[stage, :n] * mean_kept[..., :n]
        )
        room[..., :n] += place if layers.sum() > 1 else np.floor(place + ROUNDING)
    need = np.asarray(kinds.counts[layers].sum())
    if layers.sum() > 1:
        inside = np.arange(len(fewest))[:, None] < pp
        lowest, highest = (np.where(inside, fewest, np.inf).min(axis=0), np.where(inside, fewest, 0.0).max(axis=0))
        ratios = [(state + f * kept)[layers] / (mean_state + f * mean_kept) for f in (lowest, highest)]
        need = (kinds.counts[layers][:, None, None, None] * np.minimum(*ratios)).sum(axis=0)
    fits: Bools = room >= need * (1 - ROUNDING)
    return fits


def _ends(names: tuple[str, ...]) -> tuple[list[int], list[int]]:
    """Return the places of the kinds that are sure to lie on the first, and on the last of several stages."""
    places = [place_of(name) for name in names]
    first = [k for k, place in enumerate(places) if place.begins]
    return first, [k for k, place in enumerate(places) if place.closes]


def _fewest_held(where: Columns, setting: Setting) -> tuple[Array, Array]:
    """Count them where no chunk may be empty."""
    pipelines = setting.pipelines
    different, back = pairs(pipelines.which, clamp_microbatches(where.num_microbatches, setting))
    least = np.zeros((2, int(pipelines.pp.max()), different.shape[1]))
    for column, (place, count) in enumerate(different.T.tolist()):
        one = pipelines.each[place]
        least[:, : one.pp, column] = _fewest_of(one.pp, one.vpp, int(setting.group_of(one)), count)
    fewest, more = least[..., back]
    return fewest, more


@lru_cache(maxsize=4096)
def _fewest_of(pp: int, vpp: int, group: int, microbatches: int) -> tuple[Array, Array]:
    """Return the fewest held of one number of microbatches: [pp] each."""
    moment = np.array([held(stage, pp, vpp, group, microbatches)[0] for stage in range(pp)])  # [pp, vpp]
    fewest = moment.min(axis=1)
    more = moment - fewest[:, None]
    more[0, 0] = more[-1, -1] = 0.0  # chunks that may hold an end and no layer
    return fewest, more.sum(axis=1)
