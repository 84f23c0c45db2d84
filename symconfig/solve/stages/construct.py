"""Cuts put together by hand: the longest run of equal layers spread over the chunks, the other blocks at its ends.

Nothing is proved here: where such a cut meets a lower bound, no solver is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heapreplace

from symconfig.solve.stages.content import Content, Mode, Scale, Weight, peak_bytes
from symconfig.solve.stages.cuts import allowed
from symconfig.solve.stages.frames import Frame
from symconfig.solve.stages.judge import CLOSE, fits
from symconfig.solve.stages.problem import Assignment

Counts = tuple[int, ...]  # blocks of the run in each chunk of a stage
_Neighbours = tuple[tuple[Content, Content, bool, int], ...]  # for each chunk: before, after, open, the fewest blocks


@dataclass(frozen=True, slots=True)
class Policy:
    """Choices that the slowest stage leaves open. late: chunks that get a layer more than others are a stage's last
    ones.

    from_last: layers that a stage need not have are taken from the last stages first.
    """

    late: bool
    from_last: bool


POLICIES = tuple(Policy(late, from_last) for late in (False, True) for from_last in (False, True))


def construct(scale: Scale, frames: Iterable[Frame], mode: Mode, most_s: float, policy: Policy) -> Assignment | None:
    """Return an assignment whose stages take at most most_s and fit, in the first frame that has one."""
    problem, known = scale.problem, _Known()
    for frame in frames:
        counts = _Filling(scale, mode, frame, most_s * (1 + CLOSE), policy, known).counts()
        if counts is not None:
            held = [frame.chunk(j, counts[j % problem.pp][j // problem.pp]) for j in range(len(frame.open))]
            chunks = tuple(tuple(kind for kind, count in chunk for _ in range(count)) for chunk in held)
            return Assignment(chunks, tuple(map(mode.of, held)))
    return None


@dataclass(slots=True)
class _Known:
    """Values that most stages, and those of most frames, share. fills: by what a stage's chunks hold beside the run;
    weights: of a chunk, by what it holds before and after the run, and by how many blocks of the run.
    """

    fills: dict[_Neighbours, list[Counts]] = field(default_factory=dict)
    weights: dict[tuple[Content, Content], dict[int, Weight]] = field(default_factory=dict)


@dataclass(slots=True)
class _Filling:
    """The run's blocks put into one frame."""

    scale: Scale
    mode: Mode
    frame: Frame
    most_s: float
    policy: Policy
    known: _Known

    def counts(self) -> list[Counts] | None:
        """Return, of every stage, as many as it can take, less those that are too many. None: too few."""
        taken = [self._that_fit(stage) for stage in range(self.scale.problem.pp)]
        surplus = sum(sum(fill[-1]) for fill in taken if fill) - self.frame.count
        if surplus < 0 or not all(taken):
            return None
        order = taken[::-1] if self.policy.from_last else taken
        while surplus:
            spare = [fill for fill in order if len(fill) > 1][:surplus]
            if not spare:
                return None
            for fill in spare:
                fill.pop()
            surplus -= len(spare)
        return [fill[-1] for fill in taken]

    def _that_fit(self, stage: int) -> list[Counts]:
        """Return counts from the fewest blocks on, one more each time, as long as the stage's bytes allow."""
        chunks = range(stage, len(self.frame.open), self.scale.problem.pp)
        fixed = tuple((self.frame.before[j], self.frame.after[j], self.frame.open[j], self._least(j)) for j in chunks)
        if fixed not in self.known.fills:
            self.known.fills[fixed] = self._fill(chunks)
        fill = list(self.known.fills[fixed])
        while fill and not fits(self.scale.problem, self._peak(stage, chunks, fill[-1])):
            fill.pop()
        return fill

    def _fill(self, chunks: Sequence[int]) -> list[Counts]:
        """Fill within most_s; the next block goes where it lengthens the rounds of all stages least, else where least
        is.
        """
        counts = [self._least(j) for j in chunks]
        width = self._width(len(counts)) if any(self.frame.before[j] or self.frame.after[j] for j in chunks) else None
        seconds = [self._weight(j, n).seconds for j, n in zip(chunks, counts, strict=True)]

        def longer(k: int) -> tuple[float, float, int, int]:
            """Return chunk k with a block more: by how much the rounds are longer, and how long it is itself."""
            after = self._weight(chunks[k], counts[k] + 1).seconds
            return (max(after - width[k], 0.0) if width else 0.0, after, -k if self.policy.late else k, k)

        free = [longer(k) for k, j in enumerate(chunks) if self.frame.open[j]]
        heapify(free)
        filled: list[Counts] = []
        while sum(seconds) <= self.most_s:
            filled.append(tuple(counts))
            if not free or sum(counts) == self.frame.count:
                break
            _, after, _, k = free[0]
            counts[k] += 1
            seconds[k] = after
            heapreplace(free, longer(k))
        return filled

    def _width(self, vpp: int) -> list[float]:
        """Return the seconds of each chunk of a stage that has blocks of the run alone, as many as it can take."""
        one = self.scale.option(((self.frame.kind, 1),), self.mode).weight.seconds
        blocks = int(self.most_s / one) if one > 0 else self.frame.count
        each, more = divmod(min(blocks, self.frame.count), vpp)
        rounds = [each + (k >= vpp - more if self.policy.late else k < more) for k in range(vpp)]
        return [self.scale.option(((self.frame.kind, n),), self.mode).weight.seconds if n else 0.0 for n in rounds]

    def _least(self, chunk: int) -> int:
        if not self.frame.open[chunk]:
            return 0
        return 0 if allowed(self.scale.problem, chunk, self.frame.chunk(chunk, 0)) else 1

    def _weight(self, chunk: int, of_run: int) -> Weight:
        weights = self.known.weights.setdefault((self.frame.before[chunk], self.frame.after[chunk]), {})
        if of_run not in weights:
            weights[of_run] = self.scale.option(self.frame.chunk(chunk, of_run), self.mode).weight
        return weights[of_run]

    def _peak(self, stage: int, chunks: Sequence[int], counts: Counts) -> float:
        return peak_bytes(self.scale.problem, stage, [self._weight(j, n) for j, n in zip(chunks, counts, strict=True)])
