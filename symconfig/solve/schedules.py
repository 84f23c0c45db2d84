"""One candidate under every schedule that is known, also those that its framework does not have."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from symconfig.errors import InputError, Problem
from symconfig.frameworks.known import alone
from symconfig.graph.model import sequence
from symconfig.schedule.interleaved import PAIRED_INTERLEAVED
from symconfig.schedule.schedule import Schedule
from symconfig.schedule.schedules import SCHEDULES
from symconfig.schedule.timeline import Timeline
from symconfig.solve.budget import peak_budget
from symconfig.solve.costed import Costed, costed
from symconfig.solve.memory import stage_memory
from symconfig.solve.prospect import Prospect
from symconfig.solve.split import splits
from symconfig.solve.stages import ROUNDING, Layouts
from symconfig.solve.timeline import own_schedule, refined_time, shape, timeline

_ANY_CUT = Layouts(any_cut=True, empty_ends=True, account=True)
_CHUNKS = (1, 2)  # of a stage, where a schedule cannot have as many as the candidate has


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A candidate under a schedule. own: as it is planned. idle: mean share of the pipeline's time. fits: within the
    job's margin and risk."""

    schedule: Schedule
    own: bool
    vpp: int
    step_s: float
    idle: float
    peak_bytes: float
    fits: bool


@dataclass(frozen=True, slots=True)
class Refused:
    """A schedule that cannot run the candidate, and what it lacks."""

    schedule: Schedule
    why: str


@dataclass(frozen=True, slots=True)
class Compared:
    """A candidate under every schedule, the fastest first; none for a single stage."""

    able: tuple[Scheduled, ...] = ()
    refused: tuple[Refused, ...] = ()


def compare(prospect: Prospect, parts: Costed) -> Compared:
    """Return the candidate under each schedule."""
    if prospect.split.pp == 1:
        return Compared()
    own = timeline(prospect, parts)
    rest_s = sum(refined_time(prospect, parts).values()) - own.step_s
    # What pairs passes to hide the experts' all-to-alls has times of its own: those of a candidate that is planned so.
    known = (each for each in SCHEDULES.values() if each is not PAIRED_INTERLEAVED or each is own_schedule(prospect))
    other = (prospect, parts)
    if prospect.beside_another:
        plain = replace(prospect, request=replace(prospect.request, framework=alone(prospect.request.framework)))
        other = (plain, costed(plain))
    able, refused = [], []
    for schedule in known:
        try:
            cut, remade = suited(*((prospect, parts) if schedule is own_schedule(prospect) else other), schedule)
        except InputError as error:
            refused.append(Refused(schedule, "; ".join(problem.what for problem in error.problems)))
        else:
            line = timeline(cut, remade, schedule)
            able.append(_scheduled(cut, remade, line, schedule is own_schedule(prospect), rest_s))
    return Compared(tuple(sorted(able, key=lambda row: (row.step_s, row.schedule.name))), tuple(refused))


def _scheduled(cut: Prospect, parts: Costed, line: Timeline, own: bool, rest_s: float) -> Scheduled:
    """Return a schedule's result. rest_s: of the step, outside of the pipeline."""
    schedule = line.schedule
    peaks = np.array([held.max() for _, held in stage_memory(cut, parts, line)])
    needed = max(parts.peaks) if own else float((peaks + parts.sums.registered[:, 0]).max())
    return Scheduled(
        schedule=schedule,
        own=own,
        vpp=cut.split.vpp,
        step_s=line.step_s + rest_s,
        idle=idle(line),
        peak_bytes=float(peaks.max()),
        fits=needed <= peak_budget(cut.request, cut.machine) * (1 + ROUNDING),
    )


def idle(line: Timeline) -> float:
    """Share of the pipeline's time in which a stage does no work of a microbatch, on average."""
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
    """Yield the candidate's layers on other chunks, any cut that there is: no framework need be able to say it."""
    seconds = dict(zip(parts.table.kinds, parts.table.seconds[0, :, 0].tolist(), strict=True))
    every = splits(sequence(prospect.request.model), prospect.split.pp, vpp, seconds, _ANY_CUT)
    # As many layers of a stage are recomputed as before, at least.
    repeated = -(-prospect.block_layers * prospect.split.vpp // vpp)
    degrees = replace(prospect.degrees, vpp=vpp)
    return [replace(prospect, degrees=degrees, split=split, block_layers=repeated) for split in every]
