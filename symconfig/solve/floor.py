"""Floors: what no layout of a candidate's layers over its stages can be faster than, and whether any can fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from symconfig.cost.chunks import starts
from symconfig.cost.contention import CONTENTION
from symconfig.cost.exchange import exchange
from symconfig.cost.framework import Together
from symconfig.cost.lattice import Array, pairs
from symconfig.cost.pipeline import messages
from symconfig.cost.shapes import Pipelines
from symconfig.cost.stages import Setting, Stages, stages
from symconfig.cost.step import apart_s
from symconfig.cost.table import Choice
from symconfig.plans.columns import Columns
from symconfig.schedule.bounds import Sums, even_bound_s, even_exchanged_s
from symconfig.solve.choice import unusual_degrees, unusual_recompute
from symconfig.solve.kinds import Bools, Kinds, kinds_alone
from symconfig.solve.pieces import PLAIN, WHOLE, Piece, settings, ways
from symconfig.solve.room import can_pin, has_room, held_at_least, may_fit, states_fit, totals, whole_model
from symconfig.solve.slowest import least_slowest_s
from symconfig.solve.space import Refused, priced
from symconfig.solve.usual import premium

CELLS = 2**15  # blocks under a policy at points that are worked out at once
TOGETHER = 2**13  # points with a pipeline of which it is asked at once whether they may fit


@dataclass(frozen=True, slots=True)
class Floors:
    """Candidates of one pipeline degree, interleaving and ZeRO stage whose layers no stage holds yet.

    step_s [r, o, n]: no layout has a lower score; infinite where none fits in memory. The last row is full recompute of
    the first layers of every chunk. premium [r, n]: factor from seconds to scores.
    places [n]: of the points in the piece. message_s [n]: for which a stage waits for a
    message. rest_s [o, n]: of the step, what no layout changes; infinite where no policy fits. slowest_s [r, n]: no
    layout's slowest stage takes less for a microbatch. even_s [r, o, n]: the score by the formula if one took no more;
    what is worth trying first. exchanged: seconds of gathering a chunk's weights, of reducing its gradients, and that
    another microbatch hides of its passes, [3, n], of chunks met so far.
    """

    piece: Piece
    setting: Setting
    places: NDArray[np.intp]
    points: Columns
    kinds: Kinds
    message_s: Array
    rest_s: Array
    slowest_s: Array
    premium: Array
    step_s: Array
    even_s: Array
    exchanged: dict[tuple[str, ...], Array] = field(default_factory=dict, repr=False, compare=False)

    @property
    def choices(self) -> Sequence[Choice]:
        return self.piece.choices

    @property
    def least_s(self) -> float:
        return float(self.step_s.min())

    @property
    def hope_s(self) -> float:
        """Return the least of `even_s` that may fit."""
        return float(np.where(np.isfinite(self.step_s), self.even_s, np.inf).min())


@dataclass(frozen=True, slots=True)
class Waiting:
    """Points of a piece, each with a pipeline of several stages, whose floors are not worked out yet.

    pp, vpp, places [t]: of the points in the piece; those with equal pp and place stand together. step_s [t]: no
    candidate there is faster; of the first ones of such groups it is rising.
    """

    piece: Piece
    pp: NDArray[np.intp]
    vpp: NDArray[np.intp]
    places: NDArray[np.intp]
    step_s: Array

    @property
    def least_s(self) -> float:
        return float(self.step_s.min())

    def at(self, chosen: NDArray[Any] | slice) -> Waiting:
        """Take some of them."""
        return Waiting(self.piece, self.pp[chosen], self.vpp[chosen], self.places[chosen], self.step_s[chosen])

    def floors(self, below_s: float) -> tuple[list[Floors], Waiting | None]:
        """Work out the floors of the most hopeful ones that are below a step time; what is left, if anything is."""
        left = self.at(self.step_s < below_s)
        if not left.pp.size:
            return [], None
        starts = _starts(left)
        width = max(1, CELLS // (len(self.piece.choices) * len(self.piece.low.kinds)))
        end = starts[width] if starts.size > width else left.pp.size
        rest = left.at(slice(end, None)) if end < left.pp.size else None
        return list(_worked_out(left.at(slice(end)), below_s)), rest


def waiting(piece: Piece, below_s: float) -> Waiting | None:
    """Lay out the pipelines of a piece that may be below a step time; None: there is none."""
    each = [way for way in ways(piece, Refused()) if way[0] > 1]
    if not each:
        return None
    sizes = [chosen.size for _, _, chosen in each]
    pp, vpp = (np.repeat([way[index] for way in each], sizes) for index in (0, 1))
    places = np.concatenate([chosen for _, _, chosen in each])
    # Seconds that no policy, ZeRO stage or layout is below: [t].
    m = priced(piece.request, piece.candidates, pp, places).num_microbatches
    step = even_bound_s(m, pp, vpp, totals(piece) @ piece.low.seconds[0][:, places])
    below = np.flatnonzero(step < below_s)
    below = below[states_fit(piece, pp[below], places[below])]
    below = below[_with_room(Waiting(piece, pp[below], vpp[below], places[below], step[below]))]
    if not below.size:
        return None
    every = Waiting(piece, pp[below], vpp[below], places[below], step[below])
    different, group = pairs(every.pp, every.places)
    least = np.full(different.shape[1], np.inf)
    np.minimum.at(least, group, every.step_s)
    return every.at(np.lexsort((every.step_s, group, least[group])))


def _with_room(every: Waiting) -> Bools:
    """Tell where any ZeRO stage, offload and policy may fit, if each had of everything the least: [t]."""
    piece, fits = every.piece, np.zeros(every.pp.size, dtype=bool)
    for start in range(0, every.pp.size, TOGETHER):
        some = every.at(slice(start, start + TOGETHER))
        order = np.argsort(-some.pp, kind="stable")
        some = some.at(order)
        where = priced(piece.request, piece.candidates, some.pp, some.places)
        pipelines = whole_model(piece, some.pp, some.vpp)
        even = stages(piece.low, pipelines, some.places, piece.request.model.tie_word_embeddings).shared(pipelines.pp)
        for setting, runs in settings(piece, pipelines, where):
            kinds = kinds_alone(piece.low, totals(piece), some.places, where, setting)
            held = held_at_least(piece, where, setting)
            pinned = can_pin(piece, even, where, setting)
            room = has_room(kinds.leanest(), piece, setting, *held, pinned=pinned)
            fits[start + order] |= runs & room.any(axis=0)
    return fits


def _starts(some: Waiting) -> NDArray[np.intp]:
    """Return where each group of equal pp and place begins."""
    new = (np.diff(some.pp) != 0) | (np.diff(some.places) != 0)
    return np.concatenate(([0], np.flatnonzero(new) + 1))


def _worked_out(some: Waiting, below_s: float) -> Iterator[Floors]:
    """Work out the floors of all of them that are below a step time."""
    piece, starts = some.piece, _starts(some)
    pp, places = some.pp[starts], some.places[starts]
    table, rows = piece.table(places)
    group = np.repeat(np.arange(starts.size), np.diff(np.append(starts, some.pp.size)))
    where = priced(piece.request, piece.candidates, pp, places)
    pipelines = whole_model(piece, pp, np.ones_like(pp))
    for setting, runs in settings(piece, pipelines, where):
        # Neither weights nor a forward depend on what runs again.
        whole = stages(table.only(0), pipelines, rows, setting.tied)
        even = whole.shared(pipelines.pp)
        moved = _exchanged(whole, where, setting)
        rest = apart_s(even, where, setting)
        rest = np.where(can_pin(piece, even, where, setting), rest, np.inf)
        hopeful = np.flatnonzero(runs[group] & (some.step_s + rest.min(axis=0)[group] < below_s))
        if not hopeful.size:
            continue
        mine, back = np.unique(group[hopeful], return_inverse=True)
        kinds = kinds_alone(table, totals(piece), rows[mine], where.at(mine), setting)
        lean = kinds.leanest()
        for interleaved in (False, True):
            chosen = np.flatnonzero((some.vpp[hopeful] > 1) == interleaved)
            if not chosen.size:
                continue
            chosen = chosen[np.argsort(-some.pp[hopeful[chosen]], kind="stable")]
            laid = replace(setting, pipelines=whole_model(piece, some.pp[hopeful[chosen]], some.vpp[hopeful[chosen]]))
            fewest, forced = held_at_least(piece, where.at(mine[back[chosen]]), laid)
            apart = rest[:, mine[back[chosen]]]
            room = has_room(lean.at(back[chosen]), piece, laid, fewest, forced, np.isfinite(apart))
            alive = np.flatnonzero(room.any(axis=0))
            if not alive.size:
                continue
            t, n = hopeful[chosen[alive]], back[chosen[alive]]
            yield from _floors(
                piece,
                laid.at(alive),
                places=some.places[t],
                points=where.at(mine[n]),
                kinds=kinds,
                of=n,
                even=even.at(mine[n]),
                moved=None if moved is None else moved[:, mine[n]],
                rest=np.where(room, apart, np.inf)[:, alive],
                held=(fewest[:, alive], forced[:, alive]),
                below_s=below_s,
            )


def _floors(
    piece: Piece,
    setting: Setting,
    places: NDArray[np.intp],
    points: Columns,
    kinds: Kinds,
    of: NDArray[np.intp],
    even: Stages,
    moved: Array | None,
    rest: Array,
    held: tuple[Array, Array],
    below_s: float,
) -> Iterator[Floors]:
    """Yield the floors of each pipeline that are below a step time; those of most stages come first in the arrays.

    of: [n], places in the kinds; even: a stage's equal share of the model; moved: as of `_exchanged`; rest: [o, n];
    held: as of `held_at_least`.
    """
    rows, layouts = piece.rows, piece.request.limits.layouts
    pp, vpp, m = setting.pipelines.pp, setting.pipelines.vpp, points.num_microbatches
    # What all stages do for a microbatch, and wait for.
    between = messages(even, points, setting)
    chunks = np.ones_like(pp) if layouts.empty else pp * vpp
    seconds = _whole_model_s(kinds, rows, of, chunks) + pp * between.received_s[0]
    least, most_s = even_bound_s(m, pp, vpp, seconds), below_s - rest.min(axis=0)
    if moved is not None:
        sums = Sums(moved[0], moved[1], *starts(setting.framework, bool(vpp[0] > 1)))
        least = np.maximum(least, even_exchanged_s(m, pp, vpp, seconds, sums, setting.groups, CONTENTION))
    keep = rows.get(PLAIN, 0)
    slowest = np.full((len(rows), pp.size), np.inf)
    n, r = _below(least < most_s, keep)
    if n.size:
        slowest[r, n] = least_slowest_s(kinds.under(r, of[n]), setting.at(n), between.busy_s[n], layouts)[0]
    each = np.concatenate((slowest, slowest[keep : keep + 1]))
    least = np.maximum(least, m * each)
    n, r = _below(least < most_s, rows.get(WHOLE, keep))
    if not n.size:
        return
    fewest, forced = held
    fits = np.zeros((len(least), *rest.shape), dtype=bool)
    fits[r, :, n] = may_fit(kinds.under(r, of[n]), fewest[:, n], forced[:, n], pp[n], piece.budget)[0].T
    if WHOLE in rows:  # recomputing the first layers of every chunk frees no more than recomputing all
        fits[-1] = fits[rows[WHOLE]]
    recomputed = unusual_recompute(piece.request, (*piece.choices, WHOLE))
    factor = premium(recomputed[:, None] + unusual_degrees(piece.request, points, pp, vpp))
    step = np.where(fits, (least[:, None] + rest) * factor[:, None], np.inf)
    hope = np.full_like(least, np.inf)
    known = np.isfinite(least)
    hope[known] = (m * each + (1 - 1 / pp) * np.where(known, seconds, 0.0) / vpp)[known]
    below = (step < below_s).any(axis=(0, 1))
    for place, pipeline in enumerate(setting.pipelines.each):
        mine = np.flatnonzero(below & (setting.pipelines.which == place))
        if mine.size:
            yield Floors(
                piece=piece,
                setting=replace(setting, pipelines=Pipelines.of([pipeline])),
                places=places[mine],
                points=points.at(mine),
                kinds=kinds.at(of[mine]),
                message_s=between.busy_s[mine],
                rest_s=rest[:, mine],
                slowest_s=slowest[:, mine],
                premium=factor[:, mine],
                step_s=step[..., mine],
                even_s=(hope[:, None, mine] + rest[:, mine]) * factor[:, None, mine],
            )


def _exchanged(whole: Stages, where: Columns, setting: Setting) -> Array | None:
    """Return the seconds that all chunks together gather and reduce at least, [2, n]; None: nobody knows.

    whole: a stage that holds the model. A collective of all that they move is no slower than one for each of them: its
    seconds are concave in the bytes, and 0 for none. Of one for each block or matrix that is not so.
    """
    if setting.sharding.each_microbatch or setting.framework.together is Together.BLOCK:
        return None
    moved = exchange(whole.divisible(), where, setting)
    return np.stack((moved.gather[0], moved.reduce[0]))


def _below(below: Bools, other: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return points and policies that are below, points in order; another one where the last row is."""
    below[other] |= below[-1]
    points, policies = below[:-1].T.nonzero()
    return points, policies


def _whole_model_s(kinds: Kinds, rows: Mapping[Choice, int], of: NDArray[np.intp], chunks: Array) -> Array:
    """Return the seconds of a microbatch through the whole model under each policy: [r, n]. of, chunks: [n].

    The last row: only the first layers of each chunk are recomputed, at least one where a chunk has any; all but two
    must have one.
    """
    seconds = kinds.seconds
    whole: Array = np.tensordot(kinds.counts, seconds, axes=1)[:, of]
    repeated = np.full_like(whole[0], np.inf)
    if PLAIN in rows and WHOLE in rows:
        each = (seconds[:, rows[WHOLE]] - seconds[:, rows[PLAIN]])[kinds.layers].min(axis=0)[of]
        repeated = whole[rows[PLAIN]] + each * np.minimum(np.maximum(chunks - 2, 1), kinds.counts[kinds.layers].sum())
    return np.concatenate((whole, repeated[None]))
