"""A candidate under another schedule than its own, also one that its framework does not have."""

from __future__ import annotations

from dataclasses import replace

from symconfig.errors import InputError, Problem
from symconfig.graph.model import sequence
from symconfig.schedule.schedule import Schedule
from symconfig.schedule.timeline import Timeline
from symconfig.solve.costed import Costed, costed
from symconfig.solve.prospect import Prospect
from symconfig.solve.split import splits
from symconfig.solve.stages import Layouts
from symconfig.solve.timeline import shape, timeline

_ANY_CUT = Layouts(any_cut=True, empty_ends=True, account=True)
_CHUNKS = (1, 2)  # of a stage, where a schedule cannot have as many as the candidate has


def idle(line: Timeline) -> float:
    """Return the share of the pipeline's time in which a stage does no work of a microbatch, on average."""
    return max(0.0, 1.0 - float(line.busy_s.mean()) / line.step_s)


def suited(prospect: Prospect, parts: Costed, schedule: Schedule) -> tuple[Prospect, Costed]:
    """Return the candidate in a shape that the schedule runs: its own, or its stages cut into other chunks.

    Raises InputError with what the schedule lacks in each shape that there is.
    """
    if prospect.split.pp == 1:
        raise InputError("a single stage has no schedule to choose")
    (m, group), problems = shape(parts), []
    for vpp in dict.fromkeys((prospect.split.vpp, *_CHUNKS)):
        problem = schedule.problem(prospect.split.pp, vpp, m, group)
        cuts = [] if problem else [prospect] if vpp == prospect.split.vpp else _cuts(prospect, parts, vpp)
        if cuts:
            able = ((cut, parts if cut is prospect else costed(cut)) for cut in cuts)
            return min(able, key=lambda each: timeline(each[0], each[1], schedule).step_s)
        chunks = f"with {vpp} chunk{'s' if vpp > 1 else ''} on each stage"
        problems.append(Problem(f"{chunks}, {problem or 'the model has too few layers'}"))
    raise InputError(problems)


def _cuts(prospect: Prospect, parts: Costed, vpp: int) -> list[Prospect]:
    """Return the candidate with its layers on other chunks, in every cut: no framework need be able to express it."""
    seconds = dict(zip(parts.table.kinds, parts.table.seconds[0, :, 0].tolist(), strict=True))
    every = splits(sequence(prospect.request.model), prospect.split.pp, vpp, seconds, _ANY_CUT)
    # As many layers of a stage are recomputed as before, at least.
    repeated = -(-prospect.block_layers * prospect.split.vpp // vpp)
    degrees = replace(prospect.degrees, vpp=vpp)
    return [replace(prospect, degrees=degrees, split=split, block_layers=repeated) for split in every]
