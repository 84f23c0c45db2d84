"""A found candidate's own stages, held against all layouts: what the stage solver proves of them, and what it finds."""

from __future__ import annotations

import numpy as np

from symconfig.cost.lattice import Array
from symconfig.cost.pipeline import messages
from symconfig.graph.model import sequence
from symconfig.solve.budget import peak_budget
from symconfig.solve.costed import Costed, costed
from symconfig.solve.kinds import Kinds, kinds_alone
from symconfig.solve.prospect import Prospect
from symconfig.solve.question import question
from symconfig.solve.stages.judge import CLOSE
from symconfig.solve.stages.problem import StageProblem
from symconfig.solve.stages.solve import proved_s
from symconfig.solve.timeline import stage_seconds, times


def stage_gap(prospect: Prospect) -> float | None:
    """Return by what share the slowest stage of another layout could be faster than this one's; 0: proved that none is.

    A layout has the same pp x vpp and policy, but its own number of recomputed first layers, and fits in memory.
    None: no pipeline, or its layout is pinned.
    """
    if prospect.degrees.pp == 1 or prospect.request.pins.layout is not None:
        return None
    parts = costed(prospect)
    ours = float(stage_seconds(parts, times(prospect, parts)).max())
    kinds = _kinds(prospect, parts)
    alike = 2 * prospect.split.vpp * (_message_s(parts) + parts.setting.framework.handover_s)  # of every stage
    # A block with its own buffers only: what a stage needs is no less, so that the bound holds.
    lean = _question(prospect, parts, kinds, kinds.transient[..., 0] + _buffers(kinds)[:, None])
    gap = 1.0 - (proved_s(lean, ours - alike) + alike) / ours
    return gap if gap > CLOSE else 0.0


def whole_question(prospect: Prospect, parts: Costed) -> StageProblem:
    """Return the question whose answers fit: as if every block had the largest buffers of the model's."""
    kinds = _kinds(prospect, parts)
    shared = float(kinds.buffers.max() + kinds.workspaces.max())
    return _question(prospect, parts, kinds, kinds.transient[..., 0] + shared)


def _question(prospect: Prospect, parts: Costed, kinds: Kinds, working: Array) -> StageProblem:
    request = prospect.request
    return question(
        kinds,
        range(working.shape[1]),
        offload=0,
        working=working,
        message_s=_message_s(parts),
        num_microbatches=int(parts.points.num_microbatches[0]),
        setting=parts.setting,
        request=request,
        limit_bytes=peak_budget(request, prospect.machine),
    )


def _kinds(prospect: Prospect, parts: Costed) -> Kinds:
    every = sequence(prospect.request.model)
    totals = np.array([every.count(kind) for kind in parts.table.kinds], dtype=np.float64)
    return kinds_alone(parts.table, totals, np.arange(1), parts.points, parts.setting)


def _buffers(kinds: Kinds) -> Array:
    """Return the largest buffer of each kind: [kinds]."""
    return (kinds.buffers + kinds.workspaces)[:, 0]


def _message_s(parts: Costed) -> float:
    return float(messages(parts.sums, parts.points, parts.setting).busy_s[0])
