"""A candidate's blocks one by one: what the stage solver is asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from symconfig.cost.blocks import TRANSIENT
from symconfig.cost.pipeline import messages
from symconfig.cost.shapes import Pipeline, Pipelines, StageShape
from symconfig.cost.stages import GRADIENT_BUFFER_BYTES, stages
from symconfig.cost.step import states
from symconfig.cost.table import WEIGHTS
from symconfig.graph.model import sequence
from symconfig.schedule.interleaved import held
from symconfig.solve.budget import peak_budget
from symconfig.solve.costed import Costed
from symconfig.solve.prospect import Prospect
from symconfig.solve.stages import Array, Blocks, StageProblem


def stage_problem(prospect: Prospect, parts: Costed) -> StageProblem:
    """Return a candidate's degrees and policy as a question to the stage solver, whatever its own stages are."""
    pp, vpp = prospect.split.pp, prospect.split.vpp
    received = np.full(pp, 2.0 * vpp)
    received[[0, -1]] -= 1
    message_s = float(messages(parts.sums, parts.points, parts.setting).busy_s[0])
    return stages_of([prospect], [parts], (0,) * pp, received * message_s)


def stages_of(
    prospects: Sequence[Prospect], parts: Sequence[Costed], on: tuple[int, ...], wait_s: Array
) -> StageProblem:
    """Return the question for a candidate that is priced on several kinds of GPUs. on: the kind of each stage; wait_s:
    each stage's waits for messages, [pp]."""
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
        # The last stage's first moment is the loss's, and only then what the loss keeps is there.
        held=(*moments[:-1], moments[-1][:1]),
        first=one.block_layers,
    )


def _blocks(prospect: Prospect, parts: Costed) -> Blocks:
    """Return the blocks of a candidate on its machine, as if every one had the largest buffers of the model's."""
    table, setting, alone = parts.table, parts.setting, np.eye(len(parts.table.kinds), dtype=np.int64)
    shapes = tuple(StageShape(0, tuple(row), 1) for row in alone)
    pipelines = replace(Pipelines.of([Pipeline(1, 1, shapes)]), pp=np.broadcast_to(parts.points.pp, 1))
    sums = stages(table, pipelines, np.arange(1), setting.tied)
    state: Array = sum(states(sums.divisible(), parts.points, setting).values(), np.zeros(1))[:, 0]
    buffers, workspaces = (float(table.weights[WEIGHTS.index(name)].max()) for name in ("buffers", "workspaces"))
    working = table.passes[TRANSIENT][..., 0].T + GRADIENT_BUFFER_BYTES * buffers + workspaces
    places = [table.kinds.index(kind) for kind in sequence(prospect.request.model)]

    def each(of_kinds: Array) -> Array:
        """Return values of kinds, [kinds, policies], as those of blocks, [2, blocks]."""
        return of_kinds[places][:, [0, -1]].T

    return Blocks(
        seconds=each((sums.ahead + sums.back)[..., 0]),
        fixed_bytes=each(state + sums.ends[..., 0]),
        kept_bytes=each(sums.kept[..., 0]),
        working_bytes=each(working),
        limit_bytes=peak_budget(prospect.request, prospect.machine),
    )
