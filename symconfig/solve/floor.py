"""Floors: what no layout of a candidate's layers over its stages can be faster than, and whether any can fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from symconfig.cost.flight import held
from symconfig.cost.lattice import Array
from symconfig.cost.pipeline import messages
from symconfig.cost.stages import Pipeline, Pipelines, Setting, Stages, StageShape, stages
from symconfig.cost.step import apart_s
from symconfig.cost.table import Choice
from symconfig.graph.model import sequence
from symconfig.graph.operator import Place
from symconfig.graph.parts import place_of
from symconfig.plans.columns import Columns
from symconfig.schedule.bounds import even_bound_s
from symconfig.solve.kinds import ROUNDING, Bools, Kinds, kinds_alone
from symconfig.solve.pieces import WHOLE, Piece, settings, ways
from symconfig.solve.slowest import least_slowest_s
from symconfig.solve.space import Refused, priced


@dataclass(frozen=True, slots=True)
class Floors:
    """Candidates of one pipeline degree, interleaving and ZeRO stage whose layers no stage holds yet.

    step_s [r, o, n]: no layout is faster; infinite where none fits in memory. The last row is full recompute of the
    first layers of every chunk. places [n]: of the points in the piece. message_s [n]: for which a stage waits for a
    message. rest_s [o, n]: of the step, what no layout changes. slowest_s [r, n]: no layout's slowest stage takes less
    for a microbatch. even_s [r, o, n]: the step by the formula if one took no more; what is worth trying first.
    """

    piece: Piece
    setting: Setting
    places: NDArray[np.intp]
    points: Columns
    kinds: Kinds
    message_s: Array
    rest_s: Array
    slowest_s: Array
    step_s: Array
    even_s: Array

    @property
    def choices(self) -> tuple[Choice, ...]:
        return self.piece.whole().policies

    @property
    def least_s(self) -> float:
        return float(self.step_s.min())

    @property
    def hope_s(self) -> float:
        """The least of `even_s` that may fit."""
        return float(np.where(np.isfinite(self.step_s), self.even_s, np.inf).min())


@dataclass(frozen=True, slots=True)
class Degree:
    """The points of a piece at one pipeline degree. several: those for each number of chunks a stage.

    step_s: no candidate among them is faster.
    """

    step_s: float
    piece: Piece
    pp: int
    several: dict[int, NDArray[np.intp]]

    def floors(self, below_s: float) -> Iterator[Floors]:
        """Those below a step time, in several stages."""
        piece, every = self.piece, _all(self.several)
        where = priced(piece.request, piece.candidates, self.pp, every)
        whole = Pipelines.of([Pipeline(self.pp, 1, (StageShape(0, tuple(_totals(piece)), self.pp),))])
        for setting, runs in settings(piece, whole, where):
            some = {vpp: np.intersect1d(chosen, every[runs]) for vpp, chosen in self.several.items()}
            yield from _at_stage(piece, setting, some, below_s)


def degrees(piece: Piece, below_s: float) -> Iterator[Degree]:
    """The pipelines of a piece that may be below a step time."""
    for pp, group in groupby(ways(piece, Refused()), key=lambda way: way[0]):
        if pp == 1:
            continue
        least, several = below_s, {}
        for _, vpp, chosen in group:
            step = _least_s(piece, pp, vpp, chosen)
            if (step < below_s).any():
                several[vpp] = chosen[step < below_s]
                least = min(least, float(step.min()))
        if several:
            yield Degree(least, piece, pp, several)


def _totals(piece: Piece) -> Array:
    """[kinds]: how many blocks of each the model has."""
    kinds = sequence(piece.request.model)
    return np.array([kinds.count(kind) for kind in piece.low.kinds], dtype=np.float64)


def _all(several: dict[int, NDArray[np.intp]]) -> NDArray[np.intp]:
    return np.unique(np.concatenate(list(several.values())))


def _least_s(piece: Piece, pp: int, vpp: int, chosen: NDArray[np.intp]) -> Array:
    """[n]: no policy, ZeRO stage or layout is faster."""
    m = priced(piece.request, piece.candidates, pp, chosen).num_microbatches
    return even_bound_s(m, pp, vpp, _totals(piece) @ piece.low.seconds[0][:, chosen])


def _at_stage(piece: Piece, setting: Setting, several: dict[int, NDArray[np.intp]], below_s: float) -> Iterator[Floors]:
    """Of one ZeRO stage."""
    pp, table = setting.pp, piece.whole()
    least = {vpp: _least_s(piece, pp, vpp, chosen) for vpp, chosen in several.items()}
    several = {vpp: chosen[least[vpp] < below_s] for vpp, chosen in several.items()}
    every = _all(several)
    if not every.size:
        return
    where = priced(piece.request, piece.candidates, pp, every)
    # Neither weights nor a forward depend on what runs again.
    even = stages(table.only(0), setting.pipelines, every, setting.tied).shared(pp)
    rest = apart_s(even, where, setting)
    leanest = rest.min(axis=0)
    near = np.zeros(every.size, dtype=bool)
    for vpp, chosen in several.items():
        place = np.searchsorted(every, chosen)
        below = least[vpp][least[vpp] < below_s] + leanest[place] < below_s
        several[vpp] = chosen[below]
        near[place[below]] = True
    if not near.any():
        return
    every, where, even, rest = every[near], where.at(near), even.at(near), rest[:, near]
    kinds = kinds_alone(table, _totals(piece), every, where, setting)
    fewest = np.min([_fewest_held(where, _chunked(setting, vpp))[0] for vpp in several], axis=0)
    room = np.asarray(_may_fit(kinds, table.policies, fewest, np.zeros_like(fewest), piece.budget).any(axis=(0, 1)))
    if not room.any():
        return
    for vpp, chosen in several.items():
        place = np.searchsorted(every, chosen)
        place = place[room[place]]
        if not place.size:
            continue
        found = _floors(
            piece,
            _chunked(setting, vpp),
            places=every[place],
            points=where.at(place),
            kinds=kinds.at(place),
            even=even.at(place),
            rest=rest[:, place],
            below_s=below_s,
        )
        if found is not None:
            yield found


def _chunked(setting: Setting, vpp: int) -> Setting:
    """Return the same with so many chunks a stage."""
    return replace(setting, pipelines=Pipelines.of([replace(setting.pipelines.only, vpp=vpp)]))


def _floors(
    piece: Piece,
    setting: Setting,
    places: NDArray[np.intp],
    points: Columns,
    kinds: Kinds,
    even: Stages,
    rest: Array,
    below_s: float,
) -> Floors | None:
    """even: a stage's equal share of the model; rest: [o, n]. None: no candidate is below a step time."""
    pp, policies, layouts = setting.pp, piece.whole().policies, piece.request.limits.layouts
    # What all stages do for a microbatch, and wait for.
    between = messages(even, points, setting)
    seconds = _whole_model_s(kinds, policies, 1 if layouts.empty else setting.vpp * pp) + pp * between.received_s[0]
    slowest = least_slowest_s(kinds, setting, between.busy_s, layouts)
    m, each = points.num_microbatches, np.concatenate((slowest, slowest[:1]))
    if Choice() in policies:
        each[-1] = slowest[policies.index(Choice())]
    least = np.maximum(even_bound_s(m, pp, setting.vpp, seconds), m * each)
    fewest, forced = _fewest_held(points, setting)
    if layouts.empty:
        forced = np.zeros_like(forced)
    fits = _may_fit(kinds, policies, fewest, forced, piece.budget)
    step = np.where(fits, least[:, None] + rest, np.inf)
    near = np.flatnonzero((step < below_s).any(axis=(0, 1)))
    if not near.size:
        return None
    hope = np.full_like(least, np.inf)
    known = np.isfinite(least)
    hope[known] = (m * each + (1 - 1 / pp) * np.where(known, seconds, 0.0) / setting.vpp)[known]
    return Floors(
        piece=piece,
        setting=setting,
        places=places[near],
        points=points.at(near),
        kinds=kinds.at(near),
        message_s=between.busy_s[near],
        rest_s=rest[:, near],
        slowest_s=slowest[:, near],
        step_s=step[..., near],
        even_s=(hope[:, None] + rest)[..., near],
    )


def _whole_model_s(kinds: Kinds, choices: tuple[Choice, ...], chunks: int) -> Array:
    """[r, n]: seconds of a microbatch through the whole model under each policy.

    The last row: only the first layers of each chunk are recomputed, at least one where a chunk has any; all but two
    must have one.
    """
    rows: Array = np.tensordot(kinds.counts, kinds.seconds, axes=1)
    again = np.full_like(rows[0], np.inf)
    if Choice() in choices and WHOLE in choices:
        keep, whole = choices.index(Choice()), choices.index(WHOLE)
        each = (kinds.seconds[:, whole] - kinds.seconds[:, keep])[kinds.layers].min(axis=0)
        again = rows[keep] + each * min(max(chunks - 2, 1), kinds.counts[kinds.layers].sum())
    return np.concatenate((rows, again[None]))


def _may_fit(kinds: Kinds, choices: tuple[Choice, ...], fewest: Array, forced: Array, limit_bytes: float) -> Bools:
    """[r, o, n]: no layout fits where this is false. fewest, forced: as of `_fewest_held`.

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
    pp = len(fewest)
    room: Array = np.zeros(())
    for stage in range(pp):
        held_by_all = working + forced[stage] * smallest
        for k in _ends_on(stage, kinds.names, pp):
            held_by_all = held_by_all + kinds.counts[k] * (state[k] + kinds.once[k][:, None, :])
        place = np.maximum(limit_bytes - held_by_all, 0.0) / (mean_state + fewest[stage] * mean_kept)
        room = room + (place if layers.sum() > 1 else np.floor(place + ROUNDING))
    ratios = [(state + f * kept) / (mean_state + f * mean_kept) for f in (fewest.min(axis=0), fewest.max(axis=0))]
    need = (kinds.counts[:, None, None, None] * np.minimum(*ratios))[layers].sum(axis=0)
    fits: Bools = room >= need * (1 - ROUNDING)
    # Recomputing the first layers of every chunk frees no more than recomputing all.
    last = fits[choices.index(WHOLE)] if WHOLE in choices else np.zeros_like(fits[0])
    return np.concatenate((fits, last[None]))


def _ends_on(stage: int, names: tuple[str, ...], pp: int) -> list[int]:
    """Places of the kinds that are sure to lie on a stage: the model's ends."""
    first, last = stage == 0, stage == pp - 1
    places = [place_of(name) for name in names]
    return [k for k, place in enumerate(places) if (first and place is Place.FIRST) or (last and place.closes)]


def _fewest_held(where: Columns, setting: Setting) -> tuple[Array, Array]:
    """[pp, n] each: of the chunk that a stage holds fewest microbatches of, how many; of its other chunks with one
    layer each, how many more in all."""
    group = int(setting.microbatch_group)
    sizes, which = np.unique(where.num_microbatches, return_inverse=True)
    each = [_fewest_of(setting.pp, setting.vpp, group, int(m)) for m in sizes]
    fewest, more = (np.stack(arrays, axis=1)[:, which] for arrays in zip(*each, strict=True))
    return fewest, more


@lru_cache(maxsize=4096)
def _fewest_of(pp: int, vpp: int, group: int, microbatches: int) -> tuple[Array, Array]:
    """[pp] each: the same of one number of microbatches."""
    moment = np.array([held(stage, pp, vpp, group, microbatches)[0] for stage in range(pp)])  # [pp, vpp]
    fewest = moment.min(axis=1)
    more = moment - fewest[:, None]
    more[0, 0] = more[-1, -1] = 0.0  # chunks that may hold an end and no layer
    return fewest, more.sum(axis=1)
