"""Refinement: the best candidates simulated, in the stages that were weighed and in those that the stage solver finds.

The degrees were weighed under a few layouts of stages and a formula for the schedule. The best candidates of each
family, and those that may fit in a better layout, are laid out by seconds and bytes of their own blocks; each layout's
schedule is simulated, and takes the formula's place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from symconfig.cost.blocks import TRANSIENT
from symconfig.cost.framework import device_bytes
from symconfig.cost.pipeline import messages
from symconfig.cost.stages import GRADIENT_BUFFER_BYTES, Pipeline, Pipelines, StageShape, stages
from symconfig.cost.step import HOST_SHARE, host_bytes, states
from symconfig.cost.table import WEIGHTS
from symconfig.graph.model import sequence
from symconfig.schedule.timeline import held
from symconfig.solve.choice import Incumbents, scored
from symconfig.solve.costed import Costed, costed, refined_s
from symconfig.solve.interval import peak_budget
from symconfig.solve.pieces import PLAIN, WHOLE, recompute_choices
from symconfig.solve.prospect import Prospect, recomputing
from symconfig.solve.split import plainest
from symconfig.solve.stages import Array, Blocks, StageProblem, fastest_cut


def refine(weighed: Incumbents) -> int:
    """Replace the formula's step times in `weighed` by simulated ones; return the number of simulations.

    Incumbents and `worst_s` are reset; those incumbents and nearly fitting candidates that fit are added again, as is
    each with the layers per stage that the stage solver finds (`_with_fastest_layers`), even if it did not fit before.
    """
    simulated, every = 0, [*weighed.best, *weighed.nearly]
    weighed.families.clear()
    weighed.worst_s = np.inf
    for prospect in every:
        parts = costed(prospect)
        own = [(prospect, parts)] if _fits(prospect, parts) else []
        for each, its in (*own, *_with_fastest_layers(prospect, parts)):
            device = device_bytes(max(its.peaks), each.machine, each.request.framework)
            weighed.add(scored(each, refined_s(each, its), device))
            simulated += 1
    return simulated


def _with_fastest_layers(prospect: Prospect, parts: Costed) -> Iterator[tuple[Prospect, Costed]]:
    """Yield the candidate with the layers per stage that the stage solver finds, and its costs, if these fit.

    Nothing for one stage, a pinned layout, or if the solver has none, the target cannot express it, or all is as
    before. If the target can recompute first layers only, full recompute may become that of the fewest that fit, or
    none if allowed.
    """
    request, pp = prospect.request, prospect.split.pp
    if pp == 1 or request.pins.layout is not None:
        return
    if prospect.choice == WHOLE and not prospect.block_layers and request.limits.block_recompute:
        prospect = prospect.having(**recomputing(WHOLE, prospect.split.longest_chunk))
        parts = costed(prospect)
    least = int(PLAIN not in recompute_choices(request))
    received = np.full(pp, 2.0 * prospect.split.vpp)  # messages: two per chunk, of the first and the last one less
    received[[0, -1]] -= 1
    message_s = float(messages(parts.sums, parts.points, parts.setting).busy_s[0])
    problem = fewest_recomputed(stages_of([prospect], [parts], (0,) * pp, received * message_s), least)
    chunks = fastest_cut(problem)
    split = None if chunks is None else plainest(pp, chunks, request.limits.layouts)
    if split is None or (split == prospect.split and problem.first == prospect.block_layers):
        return
    first = problem.first if problem.first < split.longest_chunk else 0
    choice = PLAIN if prospect.block_layers and not problem.first else prospect.choice
    laid = prospect.having(split=split, **recomputing(choice, first))
    its = costed(laid)
    if _fits(laid, its):
        yield laid, its


def fewest_recomputed(problem: StageProblem, least: int = 0) -> StageProblem:
    """Return the problem with `first` lowered to the fewest recomputed layers of every chunk with which a cut fits.

    By bisection from `least`; `problem.first` is the upper limit and is returned untested if no fewer fit.
    """
    low, high = min(least, problem.first), problem.first
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fastest_cut(replace(problem, first=middle)) else (middle + 1, high)
    return replace(problem, first=low)


def _fits(prospect: Prospect, parts: Costed) -> bool:
    room = prospect.machine.host_memory_bytes_per_gpu * HOST_SHARE
    on_host = host_bytes(parts.sums, parts.points, parts.setting).max()
    return max(parts.peaks) <= peak_budget(prospect.request, prospect.machine) and bool(on_host <= room)


def stages_of(
    prospects: Sequence[Prospect], parts: Sequence[Costed], on: tuple[int, ...], wait_s: Array
) -> StageProblem:
    """Return the problem of distributing layers over stages on several kinds of GPUs.

    prospects, parts: the same candidate priced on each kind. on: index of each stage's kind; wait_s: seconds that each
    stage waits for a microbatch's messages, [pp]. Layouts, model and recomputed first layers are those of the first.
    """
    one, setting = prospects[0], parts[0].setting
    m, pp, vpp = int(parts[0].points.num_microbatches[0]), one.split.pp, one.split.vpp
    moments = [held(stage, pp, vpp, int(setting.microbatch_group), m) for stage in range(pp)]
    return StageProblem(
        sequence=sequence(one.request.model),
        pp=pp,
        vpp=vpp,
        layouts=one.request.limits.layouts,
        blocks=tuple(map(_blocks, prospects, parts)),
        on=on,
        wait_s=wait_s,
        # On the last stage only the first moment counts: only then is the loss's memory in use.
        held=(*moments[:-1], moments[-1][:1]),
        first=one.block_layers,
    )


def _blocks(prospect: Prospect, parts: Costed) -> Blocks:
    """Return seconds and bytes of a candidate's blocks on its machine, with its memory budget as limit.

    The first row is of the table's first policy, the second of its last: full recompute if there are `block_layers`,
    else the same. Buffers and workspaces, in the working bytes, are the largest of any block.
    """
    table, setting, alone = parts.table, parts.setting, np.eye(len(parts.table.kinds), dtype=np.int64)
    shapes = tuple(StageShape(0, tuple(row), 1) for row in alone)
    pipelines = replace(Pipelines.of([Pipeline(1, 1, shapes)]), pp=np.broadcast_to(parts.points.pp, 1))
    sums = stages(table, pipelines, np.arange(1), setting.tied)
    state: Array = sum(states(sums.divisible(), parts.points, setting).values(), np.zeros(1))[:, 0]
    buffers, workspaces = (float(table.weights[WEIGHTS.index(name)].max()) for name in ("buffers", "workspaces"))
    working = table.passes[TRANSIENT][..., 0].T + GRADIENT_BUFFER_BYTES * buffers + workspaces
    places = [table.kinds.index(kind) for kind in sequence(prospect.request.model)]

    def each(of_kinds: Array) -> Array:
        """Return values by kind, [kinds, policies], as [2, blocks] of the model: first and last policy."""
        return of_kinds[places][:, [0, -1]].T

    return Blocks(
        seconds=each((sums.ahead + sums.back)[..., 0]),
        fixed_bytes=each(state + sums.ends[..., 0]),
        kept_bytes=each(sums.kept[..., 0]),
        working_bytes=each(working),
        limit_bytes=peak_budget(prospect.request, prospect.machine),
    )
