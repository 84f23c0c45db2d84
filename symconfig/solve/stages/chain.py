"""Exact for one chunk a stage, whatever the blocks: dynamic programming over where each stage ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from symconfig.solve.stages.content import Content, Mode, Scale, content
from symconfig.solve.stages.cuts import allowed
from symconfig.solve.stages.judge import CLOSE
from symconfig.solve.stages.problem import Choices, Chunks
from symconfig.solve.stages.stage import Staffed, fastest, leanest

Value = tuple[float, ...]  # what is made least; compared place by place
Pick = Callable[[int, Content], Staffed | None]  # how a stage runs what it holds; None where it cannot


@dataclass(frozen=True, slots=True)
class Chain:
    """Chunks and choices of stages from the first on, and what they are worth."""

    value: Value
    chunks: Chunks
    choices: Choices


def fastest_chain(
    scales: Sequence[Scale], mode: Mode | None, bound_s: float, most_s: float, wait_s: Sequence[float] = ()
) -> Chain | None:
    """Return the cut with the least slowest stage, at most most_s; of those cuts the one with the least work, then with
    the least peak.

    scales: of each stage, whose blocks may cost other than another's. bound_s: no cut is faster; spans far slower than
    it are looked at only when nothing else fits. wait_s: of each stage, beside its blocks; none where it is empty.
    """

    def staffed(stage: int, chunk: Content) -> Staffed | None:
        one = fastest(scales[stage], stage, (chunk,), mode)
        return one if one is None or not wait_s else one._replace(seconds=one.seconds + wait_s[stage])

    pick = _remembered(staffed)
    for slack in (1.02, 1.1, 1.5, float("inf")):
        cap = min(bound_s * slack, most_s)
        chain = _chain(scales, pick, cap, lambda value, one: (max(value[0], one.seconds),))
        if chain is not None:
            return _least_work(scales, pick, chain.value[0])
        if cap >= most_s:
            return None
    return None


def _least_work(scales: Sequence[Scale], pick: Pick, slowest_s: float) -> Chain | None:
    """Return the cut with least work of those with no slower stage; seconds in whole units, so that what is equal but
    for rounding stays equal.
    """
    unit = slowest_s * CLOSE or 1.0
    return _chain(
        scales,
        pick,
        slowest_s * (1 + CLOSE),
        lambda value, one: (value[0] + round(one.seconds / unit), max(value[1], one.peak_bytes)),
    )


def leanest_chain(scale: Scale, mode: Mode | None) -> Chain | None:
    """Return the cut with the least largest peak of a stage. None: no cut at all."""
    pick = _remembered(lambda stage, chunk: leanest(scale, stage, (chunk,), mode))
    every = [scale] * scale.problem.pp
    return _chain(every, pick, float("inf"), lambda value, one: (max(value[0], one.peak_bytes),))


def _remembered(pick: Pick) -> Pick:
    seen: dict[tuple[int, Content], Staffed | None] = {}

    def known(stage: int, chunk: Content) -> Staffed | None:
        if (stage, chunk) not in seen:
            seen[stage, chunk] = pick(stage, chunk)
        return seen[stage, chunk]

    return known


def _chain(scales: Sequence[Scale], pick: Pick, most_s: float, add: Callable[[Value, Staffed], Value]) -> Chain | None:
    """Find, stage by stage, the best way to reach each place with no stage slower than most_s."""
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
        return None
    value, ends, choices = reached[total]
    return Chain(value, tuple(sequence[a:b] for a, b in pairwise((0, *ends))), choices)
