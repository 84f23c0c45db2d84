"""Exact for one chunk a stage, whatever the blocks: dynamic programming over where each stage ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise

from symconfig.solve.stages.content import Content, Mode, Scale, Staffed, content, modes, stage_of
from symconfig.solve.stages.cuts import allowed, every, longest_chunk
from symconfig.solve.stages.judge import CLOSE, fits, stage_peaks, without_collinear
from symconfig.solve.stages.problem import Assignment, Choices, StageProblem

Value = tuple[float, ...]  # what is made least; compared place by place
Pick = Callable[[int, Content], Staffed | None]  # how a stage runs what it holds; None where it cannot


def fastest_chain(
    scales: Sequence[Scale], mode: Mode, bound_s: float, most_s: float, wait_s: Sequence[float] = ()
) -> Assignment | None:
    """Return the cut with the least slowest stage, at most most_s; of those cuts the one with the least work, then with
    the least peak.

    scales: of each stage, whose blocks may cost other than another's. bound_s: no cut is faster; spans far slower than
    it are looked at only when nothing else fits. wait_s: of each stage, beside its blocks; none where it is empty.
    """

    def fitting(stage: int, chunk: Content) -> Staffed | None:
        one = stage_of(scales[stage], stage, (chunk,), mode)
        if not fits(scales[stage].problem, one.peak_bytes):
            return None
        return one._replace(seconds=one.seconds + wait_s[stage]) if wait_s else one

    pick = _remembered(fitting)
    for slack in (1.02, 1.1, 1.5, float("inf")):
        cap = min(bound_s * slack, most_s)
        value, chain = _chain(scales, pick, cap, lambda value, one: (max(value[0], one.seconds),))
        if chain is not None:
            return _least_work(scales, pick, value[0])
        if cap >= most_s:
            return None
    return None


def _least_work(scales: Sequence[Scale], pick: Pick, slowest_s: float) -> Assignment | None:
    """Return the cut with least work of those with no slower stage; seconds in whole units, so that what is equal but
    for rounding stays equal.
    """
    unit = slowest_s * CLOSE or 1.0
    return _chain(
        scales,
        pick,
        slowest_s * (1 + CLOSE),
        lambda value, one: (value[0] + round(one.seconds / unit), max(value[1], one.peak_bytes)),
    )[1]


def leanest_peaks(problem: StageProblem) -> tuple[float, ...] | None:
    """Return the bytes of every stage where the largest of them are the least. None: no cut at all that the target can
    say.
    """
    problem = without_collinear(problem)
    scale = Scale(problem)
    assignments = [one for mode in _lean_modes(problem) for one in _leanest(scale, mode)]
    if not assignments:
        return None
    peaks = {one: stage_peaks(problem, one) for one in assignments}
    return peaks[min(assignments, key=lambda one: (max(peaks[one]), one.chunks, one.choices))]


def _lean_modes(problem: StageProblem) -> tuple[Mode, ...]:
    """Return all modes, but of recomputed first layers only the most where recomputing never takes more bytes."""
    known = modes(problem, longest_chunk(problem))
    per_block = (problem.kept_bytes, problem.once_bytes, problem.transient_bytes)
    saves = all(of_kind[min(1, len(of_kind) - 1)] <= of_kind[0] for part in per_block for of_kind in part.values())
    return known[-1:] if known[-1].first and saves else known


def _leanest(scale: Scale, mode: Mode) -> Iterator[Assignment]:
    """Yield every cut where they are few, else the one with the least largest peak of a stage."""
    problem = scale.problem
    if not problem.layouts.free(problem.vpp):
        for chunks in every(problem):
            yield Assignment(chunks, tuple(mode.of(content(chunk)) for chunk in chunks))
        return
    pick = _remembered(lambda stage, chunk: stage_of(scale, stage, (chunk,), mode))
    scales = [scale] * problem.pp
    _, chain = _chain(scales, pick, float("inf"), lambda value, one: (max(value[0], one.peak_bytes),))
    if chain is not None:
        yield chain


def _remembered(pick: Pick) -> Pick:
    seen: dict[tuple[int, Content], Staffed | None] = {}

    def known(stage: int, chunk: Content) -> Staffed | None:
        if (stage, chunk) not in seen:
            seen[stage, chunk] = pick(stage, chunk)
        return seen[stage, chunk]

    return known


def _chain(
    scales: Sequence[Scale], pick: Pick, most_s: float, add: Callable[[Value, Staffed], Value]
) -> tuple[Value, Assignment | None]:
    """Find, stage by stage, the best way to reach each place with no stage slower than most_s, and what it is worth."""
    problem, costs = scales[0].problem, {id(scale): scale.problem.seconds for scale in scales}.values()
    sequence, total = problem.sequence, len(problem.sequence)
    # Of the blocks from a place on, at least so many seconds: more than all later stages together may take is too much.
    each_s = {kind: min(min(seconds[kind]) for seconds in costs) for kind in set(sequence)}
    least_s = [*accumulate((each_s[kind] for kind in reversed(sequence)), initial=0.0)][::-1]
    reached: dict[int, tuple[Value, tuple[int, ...], Choices]] = {0: ((0.0, 0.0), (), ())}
    for stage in range(problem.pp):
        after: dict[int, tuple[Value, tuple[int, ...], Choices]] = {}
        room_s = most_s * (problem.pp - stage - 1) * (1 + CLOSE)
        for start, (value, ends, choices) in reached.items():
            for end in range(start, total + 1):
                chunk = content(sequence[start:end])
                one = pick(stage, chunk)
                if one is None or one.seconds > most_s:
                    break  # more blocks are slower and larger yet
                if least_s[end] > room_s or not allowed(problem, stage, chunk):
                    continue
                entry = (add(value, one), (*ends, end), (*choices, *one.choices))
                if end not in after or entry < after[end]:
                    after[end] = entry
        reached = after
    if total not in reached:
        return (), None
    value, ends, choices = reached[total]
    return value, Assignment(tuple(sequence[a:b] for a, b in pairwise((0, *ends))), choices)
