"""Weighing: every candidate's step time and every stage's peak, best points first, in batches that fit the cache.

Nothing is sampled. A point is left out only when a lower bound proves that no policy, ZeRO stage or pipeline makes it
faster than the plans that are already shown, or fits it in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import compress, groupby

import numpy as np
from numpy.typing import NDArray

from symconfig.cost.block_recompute import Extremes, Prefix, evaluate_block, prefixed
from symconfig.cost.device import device_bytes
from symconfig.cost.formulas import pipeline_s
from symconfig.cost.lattice import Array
from symconfig.cost.machine import Machine
from symconfig.cost.shapes import Pipeline, Pipelines, distinct
from symconfig.cost.stages import Setting, Stages, stages
from symconfig.cost.step import HOST_SHARE, apart_s, bound_bytes, bound_s, evaluate, host_bytes
from symconfig.cost.symtensor import costs
from symconfig.cost.table import Table
from symconfig.graph.model import sequence
from symconfig.graph.parts import is_layer
from symconfig.plans.columns import Columns
from symconfig.solve.choice import recomputed_and_offloaded, unusual_degrees, unusual_recompute
from symconfig.solve.gamma import Gammas
from symconfig.solve.grid import Grid, pieces
from symconfig.solve.keeping import keep_floors, keep_points
from symconfig.solve.pieces import PLAIN, WHOLE, Piece, Way, settings, ways
from symconfig.solve.prospect import Prospect
from symconfig.solve.room import roomy
from symconfig.solve.space import Request, priced, schemes
from symconfig.solve.split import Split, splits
from symconfig.solve.stages import ROUNDING
from symconfig.solve.usual import premium
from symconfig.solve.weighed import NEARLY, Weighed

BATCH = 2**16  # candidates at once
LAID = 2**13  # points with a pipeline that are bounded at once


@dataclass(frozen=True, slots=True)
class _Batch:
    """Points of a piece at one ZeRO stage, each with a pipeline.

    splits: those of the setting's pipelines. chosen, rows [n]: places of the points in the piece, and in the table.
    """

    piece: Piece
    splits: Sequence[Split]
    setting: Setting
    table: Table
    chosen: NDArray[np.intp]
    rows: NDArray[np.intp]
    points: Columns
    sums: Stages

    def split(self, n: int) -> Split:
        """Return the split of a point."""
        return self.splits[int(self.setting.pipelines.which[n])]

    @property
    def of_several_layers(self) -> NDArray[np.bool_]:
        """Tell where some chunk has more than one layer: [n]."""
        return np.array([split.longest_chunk > 1 for split in self.splits])[self.setting.pipelines.which]


def weigh(
    requests: Sequence[Request],
    machine: Machine,
    weighed: Weighed,
    progress: Callable[[str, float], None] | None,
) -> None:
    """Weigh every candidate of the requests and add the best to `weighed`.

    requests: the first one by itself; the others, which go no further, where they may be faster than what it has found.
    """
    grids = [Grid.of(requests[0], scheme, weighed.refused) for scheme in schemes(requests[0])]
    for some in (requests[:1], requests[1:]):
        below_s = float("inf") if weighed.exhaustive else weighed.worst_s
        every = [piece for grid in grids for piece in pieces(some, machine, grid, weighed.refused, below_s)]
        _weigh(every, weighed, progress)
        if weighed.any_will_do and weighed.families:
            return


def _weigh(every: list[Piece], weighed: Weighed, progress: Callable[[str, float], None] | None) -> None:
    """Weigh the candidates of pieces, the most hopeful first."""
    every.sort(key=lambda piece: float(piece.least_s[0]))
    weighed.pieces += every
    for number, piece in enumerate(every):
        if progress and weighed.candidates:
            progress(f"{weighed.candidates:,} candidates weighed", number / len(every))
        if piece.least_s[0] > weighed.worst_s and not weighed.exhaustive:
            break
        for batch in _batches(piece, weighed):
            _one(batch, weighed)
            if weighed.any_will_do and weighed.families:
                return
        piece.forget()


@dataclass(frozen=True, slots=True)
class _Laid:
    """Points of a piece, each with one of some splits. least_s: rising; none is faster.

    Either all have several stages or none has, and either all have several chunks a stage or none has.
    """

    splits: Sequence[Split]
    which: NDArray[np.intp]
    chosen: NDArray[np.intp]
    least_s: Array


def _batches(piece: Piece, weighed: Weighed) -> Iterator[_Batch]:
    """Yield what may be shown, the most hopeful first."""
    for laid in sorted(_laid(piece, weighed), key=lambda one: float(one.least_s[0])):
        for start in range(0, laid.which.size, LAID):
            if laid.least_s[start] > weighed.worst_s and not weighed.exhaustive:
                break
            part = slice(start, start + LAID)
            yield from _slices(piece, laid.splits, laid.which[part], laid.chosen[part], weighed)


def _laid(piece: Piece, weighed: Weighed) -> Iterator[_Laid]:
    """Lay out the piece's points over pipelines in every split that is weighed."""
    request = piece.request
    kinds = sequence(request.model)
    every = ways(piece, weighed.refused) if weighed.counted else roomy(piece, weighed.refused)
    for _, alike in groupby(sorted(every, key=_kind), key=_kind):
        laid: list[tuple[Split, NDArray[np.intp]]] = []
        for pp, vpp, chosen in alike:
            some = splits(kinds, pp, vpp, piece.balance, request.limits.layouts, request.pins.layout)
            laid += [(split, chosen) for split in some]
        if not laid:
            continue
        which = np.repeat(np.arange(len(laid)), [chosen.size for _, chosen in laid])
        chosen = np.concatenate([each for _, each in laid])
        stages_of, chunks_of = (np.array([getattr(split, name) for split, _ in laid]) for name in ("pp", "vpp"))
        least = _least_s(piece, stages_of[which], chunks_of[which], chosen)
        order = np.argsort(least, kind="stable")
        if not weighed.exhaustive:
            order = order[least[order] <= weighed.worst_s]
        if order.size:
            yield _Laid([split for split, _ in laid], which[order], chosen[order], least[order])


def _kind(way: Way) -> tuple[bool, bool]:
    """Tell pipelines of several stages, and of several chunks a stage, from others."""
    return way[0] > 1, way[1] > 1


def _least_s(piece: Piece, pp: NDArray[np.intp], vpp: NDArray[np.intp], chosen: NDArray[np.intp]) -> Array:
    """Return seconds that no split is below by the formula: its slowest stage takes an even share or more, without any
    message, [n].
    """
    where = priced(piece.request, piece.candidates, pp, chosen)
    whole = piece.whole_s[chosen]
    result: Array = pipeline_s(where.num_microbatches, whole / pp, whole, vpp) * (1 - ROUNDING)
    return np.maximum(result, piece.least_s[chosen])


@lru_cache(maxsize=4096)
def pipeline(split: Split, kinds: tuple[str, ...]) -> Pipeline:
    """Return a split's pipeline: the stages that can bind."""
    shapes = distinct(split.counts(kinds), [split.stage(index) for index in range(split.pp)])
    return Pipeline(split.pp, split.vpp, shapes)


def _slices(
    space: Piece, every: Sequence[Split], which: NDArray[np.intp], chosen: NDArray[np.intp], weighed: Weighed
) -> Iterator[_Batch]:
    """Yield the points that can fit at all, a cacheful at a time: no policy or offload brings any other under the
    limit.
    """
    request = space.request
    pipelines = Pipelines.of([pipeline(split, space.low.kinds) for split in every], which)
    where = priced(request, space.candidates, pipelines.pp, chosen)
    runnable = settings(space, pipelines, where)
    if not runnable:
        return
    first, _ = runnable[0]
    low = stages(space.low, pipelines, chosen, first.tied)
    bound = bound_s(low, where, first)
    order = np.argsort(bound, kind="stable")
    if weighed.families and not weighed.exhaustive and not bound[order[0]] <= weighed.worst_s:
        return
    for setting, runs in runnable:
        may, floor = _may_fit(space, low, where, setting, runs)
        fits = np.asarray(may.any(axis=0))
        weighed.refused.add("memory", "even full recompute and offload leave too little memory", where, ~fits & runs)
        if weighed.tally is not None:
            keep_floors(weighed.tally, space, setting, where, ~fits & runs, floor)
        alive = order[fits[order]]
        if weighed.counted and runs.any() and not fits.any() and not weighed.families:
            # the leanest of all that the target can run, so that a refusal can say how much is missing
            lean = int(np.where(runs, floor, np.inf).argmin())
            least = device_bytes(float(floor[lean]), space.machine, request.framework)
            alive = np.array([lean] if weighed.leanest is None or least < weighed.leanest.device_bytes else [], int)
        if not alive.size:
            continue
        least_s = None if weighed.counted else np.where(may, bound + apart_s(low, where, setting), np.inf)
        width = max(1, BATCH // (len(space.choices) * len(setting.offload)))
        for start in range(0, alive.size, width):
            part, mine = _hopeful(alive[start : start + width], setting, bound, least_s, weighed)
            if not part.size:
                continue
            table, rows = space.table(chosen[part])
            yield _Batch(
                piece=space,
                splits=every,
                setting=mine,
                table=table,
                chosen=chosen[part],
                rows=rows,
                points=where.at(part),
                sums=stages(table, mine.pipelines, rows, setting.tied),
            )


def _may_fit(
    space: Piece, low: Stages, where: Columns, setting: Setting, runs: NDArray[np.bool_]
) -> tuple[NDArray[np.bool_], Array]:
    """Tell under which offloads points that the target can run may fit on the GPU and in the host's memory, [o, n], and
    return the bytes that no offload brings them below, [n].
    """
    floor = bound_bytes(low, where, setting)
    may: NDArray[np.bool_] = runs & (floor <= space.budget * np.where(setting.pipelines.pp > 1, NEARLY, 1.0))
    if may.any():
        may &= host_bytes(low, where, setting)[0] <= space.machine.host_memory_bytes_per_gpu * HOST_SHARE
    return may, floor[-1]


def _may_be_laid(batch: _Batch) -> NDArray[np.bool_]:
    """Return which points have stages that the target can lay out in many ways, [n]."""
    layouts, pipelines = batch.piece.request.limits.layouts, batch.setting.pipelines
    free = batch.piece.request.pins.layout is None and (layouts.any_cut or layouts.first_last)
    return np.asarray(free & (np.broadcast_to(pipelines.pp, batch.points.dp.shape) > 1))


def _hopeful(
    part: NDArray[np.intp], setting: Setting, bound: Array, least_s: Array | None, weighed: Weighed
) -> tuple[NDArray[np.intp], Setting]:
    """Return those of some points that may be shown, and their setting. bound: [n]; least_s: [o, n], under each offload
    where it may fit; None: candidates are counted, all that may be shown by their bound are.
    """
    if least_s is None:
        if not weighed.exhaustive:
            part = part[(bound[part] <= weighed.worst_s) | (not weighed.families)]
        return part, setting.at(part)
    least = least_s[:, part]
    hopeful: NDArray[np.bool_] = np.isfinite(least) & (least * (1 - ROUNDING) <= weighed.worst_s)
    some = tuple(compress(setting.offload, np.asarray(hopeful.any(axis=1))))
    part = part[hopeful.any(axis=0)]
    return part, replace(setting.at(part), offload=some)


def _prefixes(batch: _Batch) -> Array:
    """Count the blocks of each kind among the first layers, as of `prefixed`: [s, layers, kinds, n]."""
    pipelines, every_nth = batch.setting.pipelines, batch.piece.request.limits.every_nth
    present, which = np.unique(pipelines.which, return_inverse=True)
    each = [
        [
            prefix(batch.splits[place], stage.index, batch.table.kinds, every_nth)
            for stage in pipelines.each[place].stages
        ]
        for place in present
    ]
    return prefixed(each, which, len(pipelines.index))


@lru_cache(maxsize=4096)
def prefix(split: Split, stage: int, kinds: tuple[str, ...], every_nth: bool) -> Prefix:
    """Count, for each number n that is tried, the blocks of each kind among the first n layers of every chunk of the
    stage.
    """
    return tuple(first(split, stage, kinds, n) for n in split.repeated(every_nth=every_nth))


def first(split: Split, stage: int, kinds: tuple[str, ...], layers: int) -> tuple[int, ...]:
    """Count the blocks of each kind among the first layers of every chunk of the stage: all of a chunk that has
    fewer.
    """
    chunks = [list(filter(is_layer, chunk)) for chunk in split.stage(stage)]
    return tuple(sum(chunk[:layers].count(kind) for chunk in chunks) for kind in kinds)


@dataclass(frozen=True, slots=True)
class _Result:
    """The results of a batch, [r, o, n] each. `layers` > 0: full recompute of the first layers of every virtual
    stage.
    """

    batch: _Batch
    step_s: Array
    peak_bytes: Array
    layers: NDArray[np.intp]
    fits: NDArray[np.bool_]
    nearly: NDArray[np.bool_]  # fits, or may in another layout of its stages

    @staticmethod
    def of(batch: _Batch, sums: Stages, step_s: Array, peak_bytes: Array, layers: NDArray[np.intp]) -> _Result:
        """Make the results of a batch. sums: of the policies that the rows stand for."""
        room = batch.piece.machine.host_memory_bytes_per_gpu * HOST_SHARE
        pinned = host_bytes(sums, batch.points, batch.setting) <= room
        runs = np.isfinite(step_s) & pinned
        budget = batch.piece.budget * np.where(_may_be_laid(batch), NEARLY, 1.0)
        fits = (peak_bytes <= batch.piece.budget) & runs
        return _Result(batch, step_s, peak_bytes, layers, fits, (peak_bytes <= budget) & runs)

    def fastest(self) -> tuple[Array, NDArray[np.intp]]:
        """Return, per point, the step time of the fastest candidate that fits (infinite if none does), and its row."""
        flat = np.where(self.fits, self.step_s, np.inf).reshape(-1, self.step_s.shape[-1])
        rows = flat.argmin(axis=0)
        return flat[rows, np.arange(flat.shape[1])], rows

    def best(self, able: NDArray[np.bool_]) -> Iterator[tuple[Array, NDArray[np.intp]]]:
        """Yield for each number of recomputes and offloads, per point, the least score of a candidate that is able
        (infinite if none is), and its row."""
        batch, request = self.batch, self.batch.piece.request
        of_points = unusual_degrees(request, batch.points, batch.points.pp, batch.setting.pipelines.vpp)
        by_block = len(self.step_s) < len(batch.table.policies)
        policies = (WHOLE,) * len(self.step_s) if by_block else batch.table.policies
        count = unusual_recompute(request, policies)[:, None, None] + of_points
        score = np.where(able, self.step_s * premium(count), np.inf).reshape(-1, self.step_s.shape[-1])
        less = np.add.outer(
            [recomputed_and_offloaded(policy) for policy in policies],
            [bool(offload.optimizer) + bool(offload.weights) for offload in batch.setting.offload],
        ).ravel()
        for level in np.unique(less):
            mine = np.flatnonzero(less == level)
            rows = score[mine].argmin(axis=0)
            yield score[mine][rows, np.arange(score.shape[1])], mine[rows]

    def prospect(self, row: int, n: int, score: float) -> Prospect:
        """Return one candidate of the batch."""
        piece, batch, p = self.batch.piece, self.batch, self.batch.points
        r, o = np.unravel_index(row, self.step_s.shape[:2])
        count = int(self.layers[r, o, n])
        return Prospect(
            request=piece.request,
            machine=piece.machine,
            scheme=piece.scheme,
            split=batch.split(n),
            choice=WHOLE if count else batch.table.policies[int(r)],
            zero=batch.setting.zero,
            offload=batch.setting.offload[int(o)],
            block_layers=count,
            degrees=p.row(n, batch.split(n).vpp),
            micro=int(p.micro[n]),
            step_s=float(self.step_s[r, o, n]),
            device_bytes=device_bytes(float(self.peak_bytes[r, o, n]), piece.machine, piece.request.framework),
            score=score,
        )


def _one(batch: _Batch, weighed: Weighed) -> None:
    """Weigh a batch: every policy as it is, then the fewest recomputed layers that fit."""
    cost = evaluate(batch.sums, batch.points, batch.setting)
    shape = (len(batch.table.policies), len(batch.setting.offload), batch.points.dp.size)
    none = np.zeros(shape, dtype=np.intp)
    step, peak = (np.broadcast_to(each, shape) for each in (cost.step_s, cost.peak_bytes))
    results = [_Result.of(batch, batch.sums, step, peak, none)]
    piece = batch.piece
    keep, repeated = piece.rows.get(PLAIN), piece.rows.get(WHOLE)
    if (
        keep is not None
        and repeated is not None
        and piece.request.limits.block_recompute
        and (several := batch.of_several_layers).any()
    ):
        extremes = Extremes(keep, repeated, batch.table, batch.rows, batch.sums, cost.policy(keep))
        block = evaluate_block(extremes, batch.points, batch.setting, _prefixes(batch), piece.budget)
        step = np.where(block.layers > 0, block.cost.step_s, np.inf)
        peak = np.broadcast_to(block.cost.peak_bytes, step.shape)
        tried = [split.repeated(every_nth=piece.request.limits.every_nth) for split in batch.splits]
        longest = max(map(len, tried))
        numbers = np.array([[*each, *[0] * (longest - len(each))] for each in tried])
        layers = numbers[batch.setting.pipelines.which, block.layers]
        results.append(_Result.of(batch, batch.sums.policy(keep), step, peak, layers))
        weighed.candidates += step[..., several].size
    weighed.candidates += results[0].step_s.size
    for result in results:
        weighed.feasible += int(result.fits.sum())
    if weighed.gammas is not None:
        _by_relative_cost(batch, results, weighed.gammas)
    for result in results:
        for able, add in ((result.fits, weighed.add), (result.nearly & ~result.fits, weighed.add_nearly)):
            for scores, rows in result.best(able):
                for n in np.argsort(scores, kind="stable"):
                    if not scores[n] <= weighed.worst_s or scores[n] == np.inf:
                        break
                    add(result.prospect(int(rows[n]), int(n), float(scores[n])))
        if weighed.counted and not weighed.families:
            lean = np.where(np.isfinite(result.step_s), result.peak_bytes, np.inf).reshape(-1, result.step_s.shape[-1])
            row, column = np.unravel_index(int(lean.argmin()), lean.shape)
            if np.isfinite(lean[row, column]):
                weighed.lean(result.prospect(int(row), int(column), float("inf")))
        if weighed.tally is not None:
            keep_points(weighed.tally, piece, batch.setting, batch.points, batch.table.policies, result)


def _by_relative_cost(batch: _Batch, results: list[_Result], gammas: Gammas) -> None:
    """Rank by relative cost, which knows partitions only; of their policies and offloads the fastest that fits is
    taken.
    """
    piece = batch.piece
    chosen = [part.at(batch.chosen) for part in piece.relative()]
    kinds = sequence(piece.request.model)
    counts = np.array([kinds.count(kind) for kind in piece.low.kinds], dtype=np.float64)
    memory, communication = costs(chosen, counts, piece.low.boundary[batch.chosen], batch.points, batch.setting)
    fastest = [(result, *result.fastest()) for result in results]
    fits = np.isfinite(np.min([seconds for _, seconds, _ in fastest], axis=0))
    for index, n, cost in gammas.wanted(memory, communication, fits):
        result, _, rows = min(fastest, key=lambda item: float(item[1][n]))
        gammas.add(index, cost, result.prospect(int(rows[n]), n, cost))
