"""Cuts of any sequence, chunk by chunk, keeping the few beginnings in which all stages have come equally far.

Nothing is proved here, and what is not found may still exist.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise

from symconfig.solve.stages.content import Mode, Option, Scale, content, peak_bytes
from symconfig.solve.stages.cuts import allowed
from symconfig.solve.stages.judge import CLOSE, fits
from symconfig.solve.stages.problem import Assignment

WIDTH = 64  # beginnings that are kept


@dataclass(frozen=True, slots=True)
class _Begun:
    """Chunks up to a place in the model. uneven: seconds squared by which stages are ahead of their share so far."""

    uneven: float
    ends: tuple[int, ...]
    loads: tuple[float, ...]  # seconds of each stage
    options: tuple[Option, ...]


def beam(scale: Scale, mode: Mode, most_s: float) -> Assignment | None:
    """Return an assignment whose stages take at most most_s and fit, if one comes up this way."""
    problem = scale.problem
    search = _Beam(scale, mode, most_s * (1 + CLOSE))
    kept = [_Begun(0.0, (0,), (0.0,) * problem.pp, ())]
    for chunk in range(problem.pp * problem.vpp):
        after: dict[tuple[object, ...], _Begun] = {}
        for begun in kept:
            for longer in search.longer(chunk, begun):
                same = (longer.ends[-1], longer.loads)
                if same not in after or longer.uneven < after[same].uneven:
                    after[same] = longer
        kept = sorted(after.values(), key=lambda one: (one.uneven, one.ends))[:WIDTH]
    if not kept:
        return None
    ends, options = kept[0].ends, kept[0].options
    chunks = tuple(problem.sequence[a:b] for a, b in pairwise(ends))
    return Assignment(chunks, tuple(option.choices for option in options))


class _Beam:
    """Values that every step looks at."""

    def __init__(self, scale: Scale, mode: Mode, most_s: float) -> None:
        self.scale, self.mode, self.most_s = scale, mode, most_s
        problem = scale.problem
        self.seconds = [*accumulate((problem.seconds[kind][mode.choice] for kind in problem.sequence), initial=0.0)]
        self.share_s = self.seconds[-1] / (problem.pp * problem.vpp)
        self._spans: dict[tuple[int, int, int], tuple[Option, bool]] = {}

    def _span(self, chunk: int, start: int, end: int) -> tuple[Option, bool]:
        """Return what a chunk with these blocks is, and whether it may be; chunks differ in being the first or the
        last.
        """
        last = self.scale.problem.pp * self.scale.problem.vpp - 1
        place = start, end, (chunk > 0) + (chunk == last)
        if place not in self._spans:
            held = content(self.scale.problem.sequence[start:end])
            self._spans[place] = self.scale.option(held, self.mode), allowed(self.scale.problem, chunk, held)
        return self._spans[place]

    def longer(self, chunk: int, begun: _Begun) -> Iterator[_Begun]:
        """Yield what is begun with one more chunk."""
        problem = self.scale.problem
        stage, start, total = chunk % problem.pp, begun.ends[-1], len(problem.sequence)
        last = chunk == problem.pp * problem.vpp - 1
        for end in range(total if last else start, total + 1):
            option, may = self._span(chunk, start, end)
            load = begun.loads[stage] + option.weight.seconds
            if load > self.most_s:
                return
            if not may:
                continue
            options = (*begun.options, option)
            if chunk >= problem.pp * (problem.vpp - 1) and not self._fits(stage, options):
                return
            loads = (*begun.loads[:stage], load, *begun.loads[stage + 1 :])
            rounds = chunk // self.scale.problem.pp + 1
            stage_s = load - rounds * self.most_s / self.scale.problem.vpp
            model_s = self.seconds[end] - (chunk + 1) * self.share_s
            yield _Begun(begun.uneven + (max(stage_s, 0.0) ** 2 + model_s**2), (*begun.ends, end), loads, options)

    def _fits(self, stage: int, options: tuple[Option, ...]) -> bool:
        weights = [option.weight for option in options[stage :: self.scale.problem.pp]]
        return fits(self.scale.problem, peak_bytes(self.scale.problem, stage, weights))
