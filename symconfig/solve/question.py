"""Blocks alone, as a question to the stage solver: what it needs of any candidate with a pipeline."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from symconfig.cost.flight import held
from symconfig.cost.lattice import Array
from symconfig.cost.pipeline import messages
from symconfig.cost.stages import Setting
from symconfig.graph.model import sequence
from symconfig.graph.parts import place_of
from symconfig.solve.budget import peak_budget
from symconfig.solve.costed import Costed
from symconfig.solve.kinds import Kinds, kinds_alone
from symconfig.solve.prospect import Prospect
from symconfig.solve.space import Request
from symconfig.solve.stages.problem import Scope, StageProblem


def question(
    kinds: Kinds,
    rows: Sequence[int],
    offload: int,
    working: Array,
    message_s: float,
    num_microbatches: int,
    setting: Setting,
    request: Request,
    limit_bytes: float,
) -> StageProblem:
    """Put the question to the stage solver. kinds: of one point. rows: its recompute choice; or two: none, and the one
    of the first layers of every chunk.

    offload: its place among the setting's. working [kinds, r]: bytes that a block counts for while it runs. message_s:
    for which a stage waits for one. A stage waits for as many as any other, but one less at either end of the model.
    What all stages have alike of messages and handovers is left out.
    """
    moments = held_by_stages(setting, num_microbatches)

    def each(array: Array) -> dict[str, tuple[float, ...]]:
        return {name: tuple(values) for name, values in zip(kinds.names, array[:, list(rows)].tolist(), strict=True)}

    return StageProblem(
        pp=setting.pp,
        vpp=setting.vpp,
        sequence=sequence(request.model),
        seconds={
            name: tuple(value - message_s * place_of(name).outermost for value in values)
            for name, values in each(kinds.seconds[..., 0]).items()
        },
        kept_bytes=each(kinds.kept[..., 0]),
        once_bytes=each(kinds.once[..., 0]),
        state_bytes=dict(zip(kinds.names, kinds.states[:, offload, 0].tolist(), strict=True)),
        transient_bytes=each(working),
        stage_bytes=(0.0,) * setting.pp,
        held=(*moments[:-1], moments[-1][:1]),
        limit_bytes=limit_bytes,
        scope=Scope.MODEL if len(rows) == 1 else Scope.FIRST,
        layouts=request.limits.layouts,
    )


def held_by_stages(setting: Setting, m: int) -> tuple[Array, ...]:
    """Return, for each of pp stages, the microbatches of each chunk that it holds at every moment that may be its peak,
    [moments, vpp]; the first one is on the last stage the loss's, and only then what the loss keeps is there.
    """
    group = int(setting.microbatch_group)
    return tuple(held(stage, setting.pp, setting.vpp, group, m) for stage in range(setting.pp))


def whole_question(prospect: Prospect, parts: Costed) -> StageProblem:
    """Return the question whose answers fit: as if every block had the largest buffers of the model's."""
    request, setting, points = prospect.request, parts.setting, parts.points
    every = sequence(request.model)
    totals = np.array([every.count(kind) for kind in parts.table.kinds], dtype=np.float64)
    kinds = kinds_alone(parts.table, totals, np.arange(1), points, setting)
    working = kinds.transient[..., 0] + float(kinds.buffers.max() + kinds.workspaces.max())
    return question(
        kinds,
        range(working.shape[1]),
        offload=0,
        working=working,
        message_s=float(messages(parts.sums, points, setting).busy_s[0]),
        num_microbatches=int(points.num_microbatches[0]),
        setting=setting,
        request=request,
        limit_bytes=peak_budget(request, prospect.machine),
    )
