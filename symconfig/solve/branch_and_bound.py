"""The degree search: branch and bound over the lattice of one job, best bound first.

Problem: of every configuration that no constraint refuses, that the pins allow and whose peak is within the budget
(`space.peak_budget`), find those with the least score, which is the seconds of a step times a premium of 1 or more
for unusual choices (`choice.scored`): the best of each family of degrees (`choice.Family`). Nothing is sampled.

The levels, in the order in which their choices are fixed. A lower bound holds for all that lies below its level:

1. Scheme (`space.schemes`): sequence parallelism, how context parallelism exchanges.
2. Points (`space.points`): tp, cp, ep, etp, micro-batch. `pieces.computed_s` bounds the step by what all blocks
   compute: no option makes that less. Constraints that ask for degrees alone remove points.
3. Options (`extras.requests`): overlaps, kernels, dispatcher, graphs. Points are dominated where an earlier request has
   the same price (`pieces._dominated`) and where graphs save no time (`pieces._waits_for_host`). `Piece.least_s` bounds
   the step by all blocks under `table.bound_table` (nothing recomputed, kept is what all policies keep), spread evenly
   over all GPUs: bubble, messages, gradients and optimizer only add to it.
4. Pipeline (`pieces.pipelines_of`, `split.splits`): pp, vpp, layers to stages. `_even_s` bounds the step by the same
   pipeline with stages that are all alike: the slowest of any others takes that or more.
5. ZeRO stage and offload (`pieces.settings`): `step.bound_s` takes the stages as they are under `table.bound_table`.
   Relaxations of the memory, by the same table: `step.bound_bytes` on the GPU, `step.host_bytes` in host memory.
6. Recompute policy (`pieces.recompute_choices`): every one is evaluated (`step.evaluate`). Of full recompute of the
   first layers of each chunk only the fewest that fit: memory falls and time grows with their number.

A branch is pruned when its bound is above the cutoff, the score of the worst incumbent that would still be shown
(`Incumbents.worst_s`), or when its relaxation does not fit: in `NEARLY` of the budget where there are several stages,
which `refine` may lay out in another way. `Incumbents.refused` counts what constraints and memory removed.
tests/solve/test_bounds.py holds each bound against the exact costs of all that lies below it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from symconfig.cost.formulas import pipeline_s
from symconfig.cost.framework import device_bytes
from symconfig.cost.lattice import Array
from symconfig.cost.machine import Machine
from symconfig.cost.stages import Pipeline, Pipelines, Setting, Stages, distinct, stages
from symconfig.cost.step import (
    HOST_SHARE,
    Extremes,
    bound_bytes,
    bound_s,
    evaluate,
    evaluate_block,
    host_bytes,
    prefixed,
)
from symconfig.cost.table import Table
from symconfig.format import picked
from symconfig.graph.model import sequence
from symconfig.plans.configuration_set import ConfigurationSet
from symconfig.solve.choice import NEARLY, Incumbents, recomputed_and_offloaded
from symconfig.solve.pieces import PLAIN, WHOLE, Piece, computed_s, pieces, pipelines_of, settings
from symconfig.solve.prospect import Prospect, effective, recomputing
from symconfig.solve.space import Request, points, priced, schemes
from symconfig.solve.split import SAID_BY, Split, splits
from symconfig.solve.stages import ROUNDING
from symconfig.solve.usual import premium

BATCH = 2**16  # candidates that are evaluated at once
LAID = 2**13  # points with a pipeline whose bounds are computed at once


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """Points of a piece at one ZeRO stage, each with a pipeline, [n].

    splits: one per pipeline of the setting. chosen, rows: indices of the points in the piece and in the table.
    """

    piece: Piece
    splits: Sequence[Split]
    setting: Setting
    table: Table
    chosen: NDArray[np.intp]
    rows: NDArray[np.intp]
    points: ConfigurationSet
    sums: Stages


@dataclass(frozen=True, slots=True)
class Result:
    """The costs of a batch under each policy and offload, [r, o, n].

    layers: where > 0, full recompute of that many first layers of every virtual stage. nearly: fits, or may fit with
    other layers per stage.
    """

    batch: Batch
    step_s: Array
    peak_bytes: Array
    layers: NDArray[np.intp]
    fits: NDArray[np.bool_]
    nearly: NDArray[np.bool_]

    def best(self, able: NDArray[np.bool_]) -> Iterator[tuple[Array, NDArray[np.intp]]]:
        """Yield (scores, rows), [n] each, of every point's best candidate, per number of parts recomputed or offloaded.

        Parts: recompute, activations, optimizer states, weights; one pair of arrays for each number that occurs,
        rising. Score: step in seconds times the premium for unusual degrees, switches and recompute; infinite if no
        candidate of the point is in `able` [r, o, n]. Row: index into the flattened [r, o]. With fewer r than policies,
        each r counts as full recompute of the first layers.
        """
        batch, request = self.batch, self.batch.piece.request
        by_block = len(self.step_s) < len(batch.table.policies)
        policies = (WHOLE,) * len(self.step_s) if by_block else batch.table.policies
        kinds = [str(recomputing(policy)["recompute"]) for policy in policies]
        points, rare = batch.points.having(vpp=batch.setting.pipelines.vpp), dict[str, Any]()
        if request.usual is not None:
            rare = request.usual.rare_choices(points, request.configuration, np.array(kinds)[:, None, None])
        count = sum((each * np.intp(1) for each in rare.values()), np.intp(0))
        score = np.where(able, self.step_s * premium(count), np.inf).reshape(-1, self.step_s.shape[-1])
        less = np.add.outer(
            [recomputed_and_offloaded(policy) for policy in policies],
            [bool(offload.optimizer) + bool(offload.weights) for offload in batch.setting.offload],
        ).ravel()
        for level in sorted(set(less.tolist())):  # np.unique would import numpy.ma
            mine = np.flatnonzero(less == level)
            rows = score[mine].argmin(axis=0)
            yield score[mine][rows, np.arange(score.shape[1])], mine[rows]

    def prospect(self, row: int, n: int, score: float) -> Prospect:
        """Return the candidate at a row (an index into the flattened [r, o]) and a point n, with the given score.

        Its policy is that of r, or full recompute of the first layers if `layers` is above 0 there, which is then its
        `block_layers`; its offload is that of o. Options are made `effective`.
        """
        piece, batch = self.batch.piece, self.batch
        r, o = np.unravel_index(row, self.step_s.shape[:2])
        count, split = int(self.layers[r, o, n]), batch.splits[int(batch.setting.pipelines.which[n])]
        request, offload = piece.request, batch.setting.offload[int(o)]
        configuration = replace(
            request.configuration,
            **batch.points.degrees_at(n) | {"vpp": split.vpp},
            **recomputing(batch.table.policies[int(r)], count),
            **picked(split, *SAID_BY),
            micro=int(batch.points.micro[n]),
            sequence_parallel=piece.scheme.sequence_parallel,
            cp_comm=piece.scheme.cp_comm,
            zero_stage=batch.setting.zero,
            optimizer_offload=offload.optimizer,
            param_offload=offload.weights,
        )
        return Prospect(
            request=request,
            machine=piece.machine,
            scheme=piece.scheme,
            split=split,
            configuration=effective(configuration, request),
            step_s=float(self.step_s[r, o, n]),
            device_bytes=device_bytes(float(self.peak_bytes[r, o, n]), piece.machine, piece.request.framework),
            score=score,
        )


def branch_and_bound(
    requests: Sequence[Request], machine: Machine, found: Incumbents, progress: Callable[[str, float], None] | None
) -> None:
    """Search the lattice of the requests and add the best candidates, refusals and counts to `found`, which is mutated.

    The first request is searched first, then all others at once. Before each, if there is a cutoff, points whose
    computation takes longer are dropped. Pieces are searched by ascending lower bound, until one is above the cutoff.
    Returns at the first batch with a feasible plan if `found.any_will_do`. progress: called before each piece, once a
    candidate was evaluated, with a message and the fraction of pieces done.
    """
    grids = [(scheme, points(requests[0], scheme, found.refused)) for scheme in schemes(requests[0])]
    for some in (requests[:1], requests[1:]):
        if found.worst_s < np.inf:
            grids = [(scheme, grid) for scheme, grid in grids if grid.size]
            bounds = [computed_s(requests[0], machine, *each) for each in grids]
            grids = [(scheme, grid.at(s <= found.worst_s)) for (scheme, grid), s in zip(grids, bounds, strict=True)]
        every = [
            piece
            for scheme, grid in grids
            for piece in pieces(some, machine, scheme, grid, found.refused, found.worst_s)
        ]
        every.sort(key=lambda piece: float(piece.least_s[0]))
        for number, piece in enumerate(every):
            if progress and found.candidates:
                progress(f"{found.candidates:,} candidates weighed", number / len(every))
            if piece.least_s[0] > found.worst_s:
                break
            for batch in _batches(piece, found):
                _evaluate(batch, found)
                if found.any_will_do and found.families:
                    return


def _batches(piece: Piece, found: Incumbents) -> Iterator[Batch]:
    """Yield batches of the piece's points in every pipeline and split whose lower bound is within `found.worst_s`.

    Grouped by kind of pipeline (one stage, several stages, several chunks a stage), the kind with the lowest bound
    first, and in each by ascending bound; a kind ends where its bound exceeds the cutoff of that moment. Degrees that
    constraints refuse are counted in `found.refused`.
    """
    request, kinds, laid = piece.request, sequence(piece.request.model), []
    every = list(pipelines_of(piece, found.refused))
    for several, interleaved in ((False, False), (True, False), (True, True)):
        each = [
            (split, chosen)
            for pp, vpp, chosen in every
            if (pp > 1, vpp > 1) == (several, interleaved)
            for split in splits(kinds, pp, vpp, piece.balance, request.limits.layouts, request.pins.layout)
        ]
        if not each:
            continue
        which = np.repeat(np.arange(len(each)), [chosen.size for _, chosen in each])
        chosen = np.concatenate([chosen for _, chosen in each])
        pp, vpp = (np.array([getattr(split, name) for split, _ in each])[which] for name in ("pp", "vpp"))
        least = _even_s(piece, pp, vpp, chosen)
        order = np.argsort(least, kind="stable")
        order = order[least[order] <= found.worst_s]
        if order.size:
            laid.append((least[order], [split for split, _ in each], which[order], chosen[order]))
    for least, some, which, chosen in sorted(laid, key=lambda one: float(one[0][0])):
        for start in range(0, which.size, LAID):
            if least[start] > found.worst_s:
                break
            part = slice(start, start + LAID)
            yield from _sharded(piece, some, which[part], chosen[part], found)


def _even_s(piece: Piece, pp: NDArray[np.intp], vpp: NDArray[np.intp], chosen: NDArray[np.intp]) -> Array:
    """Return a lower bound of the step for any split, in seconds, [n]: stages with equal shares and no messages.

    It is at least the piece's own bound `least_s`. pp, vpp: of each point, [n]; chosen: indices of the points in the
    piece.
    """
    where = priced(piece.request, piece.candidates, pp, chosen)
    whole = piece.whole_s[chosen]
    result: Array = pipeline_s(where.num_microbatches, whole / pp, whole, vpp) * (1 - ROUNDING)
    return np.maximum(result, piece.least_s[chosen])


@lru_cache(maxsize=4096)
def pipeline(split: Split, kinds: tuple[str, ...]) -> Pipeline:
    """Return the pipeline of a split with only those stages that can be the bottleneck (`distinct`). Cached.

    kinds: the block kinds by which `split.counts` counts.
    """
    shapes = distinct(split.counts(kinds), [split.stage(index) for index in range(split.pp)])
    return Pipeline(split.pp, split.vpp, shapes)


def _sharded(
    piece: Piece, every: Sequence[Split], which: NDArray[np.intp], chosen: NDArray[np.intp], found: Incumbents
) -> Iterator[Batch]:
    """Yield batches of points with pipelines under each ZeRO stage, by ascending lower bound on the step.

    every, which, chosen: the splits, the split of each point, and its index in the piece. A batch has up to BATCH
    candidates, of points that may fit in memory under some policy and offload and whose bound is within the cutoff;
    none if all bounds exceed it. If no point of a stage may fit and `found` has no candidate, the one with the least
    memory is yielded if it is below that of `found.leanest` (not with `any_will_do`). Points that cannot fit are
    counted in `found.refused`.
    """
    request = piece.request
    pipelines = Pipelines.of([pipeline(split, piece.low.kinds) for split in every], which)
    where = priced(request, piece.candidates, pipelines.pp, chosen)
    low = stages(piece.low, pipelines, chosen, request.model.tie_word_embeddings)
    runnable = list(settings(piece, pipelines, where))
    bound = bound_s(low, where, runnable[0][0]) if runnable else np.full(chosen.size, np.inf)
    order = np.argsort(bound, kind="stable")
    for setting, runs in runnable if bound.min() <= found.worst_s else ():
        floor = bound_bytes(low, where, setting)  # [offloads, points]
        may = runs & (floor <= piece.budget * np.where(pipelines.pp > 1, NEARLY, 1.0))
        if may.any():
            may &= host_bytes(low, where, setting)[0] <= piece.machine.host_memory_bytes_per_gpu * HOST_SHARE
        fits = np.asarray(may.any(axis=0))
        no_room = int((~fits & runs).sum())
        found.refused.add("memory", "even full recompute and offload leave too little memory", no_room)
        least, alive = bound * (1 - ROUNDING), order[fits[order]]
        if not found.any_will_do and runs.any() and not fits.any() and not found.families:
            # to report by how much nothing fits
            lean = int(np.where(runs, floor[-1], np.inf).argmin())
            least_bytes = device_bytes(float(floor[-1, lean]), piece.machine, request.framework)
            if found.leanest is None or least_bytes < found.leanest.device_bytes:
                alive, least[lean] = np.array([lean]), 0.0
        width = max(1, BATCH // (len(piece.choices) * len(setting.offload)))
        for start in range(0, alive.size, width):
            part = alive[start : start + width]
            part = part[least[part] <= found.worst_s]
            if not part.size:
                continue
            mine = replace(setting, pipelines=setting.pipelines.at(part))
            table, rows = piece.table(chosen[part])
            yield Batch(
                piece=piece,
                splits=every,
                setting=mine,
                table=table,
                chosen=chosen[part],
                rows=rows,
                points=where.at(part),
                sums=stages(table, mine.pipelines, rows, setting.tied),
            )


def _evaluate(batch: Batch, found: Incumbents) -> None:
    """Evaluate all policies and offloads of a batch and add candidates and counts to `found`, which is mutated.

    Where no and full recompute are allowed, the target can recompute the first layers only, and a chunk has several
    layers, also the fewest recomputed layers that fit. Of each point the candidates of `Result.best` that score within
    `found.worst_s` are added: as incumbents if they fit, by `add_nearly` if they nearly do. While none fits (and not
    with `any_will_do`) `found.leanest` becomes the one of least peak memory.
    """
    piece, setting, limits = batch.piece, batch.setting, batch.piece.request.limits
    cost = evaluate(batch.sums, batch.points, setting)
    shape = (len(batch.table.policies), len(setting.offload), batch.points.dp.size)
    step, peak = (np.broadcast_to(each, shape) for each in (cost.step_s, cost.peak_bytes))
    results = [_result(batch, batch.sums, step, peak, np.zeros(shape, dtype=np.intp))]
    several = np.array([split.longest_chunk > 1 for split in batch.splits])[setting.pipelines.which]
    if {PLAIN, WHOLE} <= {*piece.choices} and limits.block_recompute and several.any():
        keep, repeated = piece.choices.index(PLAIN), piece.choices.index(WHOLE)
        extremes = Extremes(keep, repeated, batch.table, batch.rows, batch.sums, cost.policy(keep))
        # The blocks of each kind among the first layers of every stage's chunks, for each pipeline that there is.
        present, which = np.unique(setting.pipelines.which, return_inverse=True)
        first_layers = [
            [
                _first_layers(batch.splits[place], stage.index, batch.table.kinds, limits.every_nth)
                for stage in setting.pipelines.each[place].stages
            ]
            for place in present
        ]
        prefixes = prefixed(first_layers, which, len(setting.pipelines.index))
        block = evaluate_block(extremes, batch.points, setting, prefixes, piece.budget)
        step = np.where(block.layers > 0, block.cost.step_s, np.inf)
        peak = np.broadcast_to(block.cost.peak_bytes, step.shape)
        tried = [split.repeated(every_nth=limits.every_nth) for split in batch.splits]
        longest = max(map(len, tried))
        numbers = np.array([[*each, *[0] * (longest - len(each))] for each in tried])
        layers = numbers[setting.pipelines.which, block.layers]
        results.append(_result(batch, batch.sums.policy(keep), step, peak, layers))
        found.candidates += step[..., several].size
    found.candidates += results[0].step_s.size
    found.feasible += sum(int(result.fits.sum()) for result in results)
    for result in results:
        for able, add in ((result.fits, found.add), (result.nearly & ~result.fits, found.add_nearly)):
            for scores, rows in result.best(able):
                for n in np.argsort(scores, kind="stable"):
                    if not scores[n] <= found.worst_s or scores[n] == np.inf:
                        break
                    add(result.prospect(int(rows[n]), int(n), float(scores[n])))
        if not found.any_will_do and not found.families:
            lean = np.where(np.isfinite(result.step_s), result.peak_bytes, np.inf).reshape(-1, shape[-1])
            row, n = np.unravel_index(int(lean.argmin()), lean.shape)
            if np.isfinite(lean[row, n]):
                leanest = result.prospect(int(row), int(n), float("inf"))
                if found.leanest is None or leanest.device_bytes < found.leanest.device_bytes:
                    found.leanest = leanest


def _result(batch: Batch, sums: Stages, step_s: Array, peak_bytes: Array, layers: NDArray[np.intp]) -> Result:
    """Return a batch's results with two masks, [r, o, n]: candidates that fit, and those that fit or nearly do.

    Both need a finite step and host memory within HOST_SHARE. `nearly` allows NEARLY times the budget with several
    stages, if no layout is pinned and the target can cut layers anywhere or set the first and last stage's; else it
    equals `fits`. sums: of the policies along r.
    """
    piece, layouts, pins = batch.piece, batch.piece.request.limits.layouts, batch.piece.request.pins
    pinned = host_bytes(sums, batch.points, batch.setting) <= piece.machine.host_memory_bytes_per_gpu * HOST_SHARE
    runs = np.isfinite(step_s) & pinned
    # The target can distribute layers over stages in many ways.
    free = pins.layout is None and (layouts.any_cut or layouts.first_last)
    budget = piece.budget * np.where(free & (batch.setting.pipelines.pp > 1), NEARLY, 1.0)
    fits = (peak_bytes <= piece.budget) & runs
    return Result(batch, step_s, peak_bytes, layers, fits, (peak_bytes <= budget) & runs)


@lru_cache(maxsize=4096)
def _first_layers(split: Split, stage: int, kinds: tuple[str, ...], every_nth: bool) -> tuple[tuple[int, ...], ...]:
    """Return the blocks of each kind among the first n layers of a stage's chunks, for each n that is tried. Cached."""
    return tuple(split.first_layers_of(stage, kinds, n) for n in split.repeated(every_nth=every_nth))
