"""The stage problem solved: what a bound and a cut put together prove, else what a dynamic program does."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import accumulate, islice, pairwise

from symconfig.graph.parts import is_layer
from symconfig.solve.stages.bound import bound_s, work_s
from symconfig.solve.stages.chain import fastest_chain
from symconfig.solve.stages.construct import POLICIES, construct
from symconfig.solve.stages.content import Mode, Option, Scale, content, layers, modes, peak_bytes, stage_of
from symconfig.solve.stages.cuts import allowed, check, every, longest_chunk
from symconfig.solve.stages.frames import Frame, excess_s, frames
from symconfig.solve.stages.judge import CLOSE, chunk_seconds, fits, stage_peaks, stage_seconds, without_collinear
from symconfig.solve.stages.problem import Assignment, Chunks, StageProblem, StageSolution, Unsatisfied

MOST_FRAMES = 64  # that are tried
LONGER = 3  # layers, than an even chunk
FEWER_FRAMES = 4  # that are tried for a cut that does not meet the bound
SLACKS = (1.02, 1.06, 1.25, 2.0)  # over the bound: a cut so far from it is an answer, too


def solve(problem: StageProblem) -> StageSolution | Unsatisfied:
    """Return the assignment with the fastest slowest stage that comes up, and how far it is proved.

    A bound proves it, dynamic programming, or that all cuts were tried; no time counts, so that the same question has
    the same answer. Raises InfeasibleError for more chunks than layers.
    """
    check(problem)
    started_s = time.perf_counter()
    solving = _Solving(without_collinear(problem))
    if solving.few:
        solving.enumerate()
    else:
        solving.begin(_begun(_question(solving.problem)))
        solving.proved()
    return solving.answer(started_s)


@dataclass(frozen=True, slots=True)
class _Question:
    """A problem, equal to every other one of which the same is `bounded`."""

    key: tuple[object, ...]
    problem: StageProblem = field(compare=False)


@dataclass(frozen=True, slots=True)
class _Begun:
    """The result of `_Solving.bounded`."""

    kept: tuple[Assignment, ...]
    best_s: float
    open: tuple[tuple[float, Mode], ...]
    left_s: tuple[float, ...]


def _question(problem: StageProblem) -> _Question:
    """Return the question; where memory is without a limit, bytes matter to none but `proved` and the ranking."""
    p = problem
    timed = (p.pp, p.vpp, p.sequence, *p.seconds.items(), p.scope, p.layouts, p.limit_bytes)
    if p.limit_bytes == float("inf"):
        return _Question(timed, p)
    each = (p.kept_bytes, p.once_bytes, p.state_bytes, p.transient_bytes)
    held = tuple((array.shape, array.tobytes()) for array in p.held)
    return _Question((*timed, *(tuple(of_kind.items()) for of_kind in each), p.stage_bytes, held), p)


@lru_cache(maxsize=4096)
def _begun(question: _Question) -> _Begun:
    """Return what is begun. It is kept, since candidates of one search, and of one model's next search, ask the
    same.
    """
    solving = _Solving(question.problem)
    solving.bounded()
    return _Begun(tuple(solving.kept), solving.best_s, tuple(solving.open), tuple(solving.left_s))


@dataclass(slots=True)
class _Solving:
    """kept: all of them; best_s: the fastest slowest stage. open: modes that may hold a faster one, with their bounds.

    left_s: bounds of the modes that are not proved.
    """

    problem: StageProblem
    scale: Scale = field(init=False)
    frames: list[Frame] = field(default_factory=list)
    kept: list[Assignment] = field(default_factory=list)
    best_s: float = float("inf")
    open: list[tuple[float, Mode]] = field(default_factory=list)
    left_s: list[float] = field(default_factory=list)
    used: str = "bound met"

    def __post_init__(self) -> None:
        self.scale = Scale(self.problem)

    @property
    def few(self) -> bool:
        """Tell whether the target can say so few cuts that all are tried."""
        return not self.problem.layouts.free(self.problem.vpp)

    @property
    def most_first(self) -> int:
        """Return the recomputed first layers of a chunk that are worth a quick look: all of a little more than even
        ones.
        """
        chunks, total = self.problem.pp * self.problem.vpp, layers(self.problem.sequence)
        return -(-total // chunks) + LONGER if self.problem.vpp > 1 else total

    def better(self, bound: float) -> bool:
        """Tell whether a stage of so many seconds would be faster than all before."""
        return bound < self.best_s * (1 - CLOSE)

    def keep(self, assignment: Assignment | None) -> None:
        if assignment is not None:
            self.kept.append(assignment)
            self.best_s = min(self.best_s, max(stage_seconds(self.problem, assignment)))

    def enumerate(self) -> None:
        """Try all that the target can say, one by one."""
        self.used = "enumeration"
        for chunks in every(self.problem):
            for mode in modes(self.problem, max(layers(chunk) for chunk in chunks)):
                self.keep(self._of_cut(chunks, mode))

    def _of_cut(self, chunks: Chunks, mode: Mode) -> Assignment | None:
        """Return the cut in the mode, if all stages fit and none takes longer than the fastest slowest one."""
        contents, pp = [content(chunk) for chunk in chunks], self.problem.pp
        for stage in range(pp):
            one = stage_of(self.scale, stage, contents[stage::pp], mode)
            if not fits(self.problem, one.peak_bytes) or one.seconds > self.best_s * (1 + CLOSE):
                return None
        return Assignment(chunks, tuple(map(mode.of, contents)))

    def bounded(self) -> None:
        """Look for cuts as fast as a bound; the modes where none comes up stay open."""
        tried = islice(frames(self.problem), MOST_FRAMES)
        self.frames = sorted(tried, key=lambda frame: excess_s(self.problem, frame))
        for mode in modes(self.problem, longest_chunk(self.problem)):
            if not self.better(work_s(self.problem, mode)):
                continue
            if mode.first:
                repeated = sorted(self.problem.seconds[kind][1] for kind in self.problem.sequence if is_layer(kind))
                if not self.better(sum(repeated[: mode.first])):
                    break  # no chunk of a faster assignment has so many layers: one less is the same
                free_s = bound_s(replace(self.problem, limit_bytes=float("inf")), mode, self.best_s)
                if not self.better(free_s):
                    break  # more recomputed layers are slower yet
                if mode.first > self.most_first:
                    self.left_s.append(free_s)
                    break
            least_s = bound_s(self.problem, mode, self.best_s)
            if not self.better(least_s) or least_s == float("inf"):
                continue
            if not self._put_together(mode, least_s):
                self.open.append((least_s, mode))

    def begin(self, begun: _Begun) -> None:
        """Start from what was `bounded` before."""
        self.kept, self.best_s = list(begun.kept), begun.best_s
        self.open, self.left_s = list(begun.open), list(begun.left_s)

    def proved(self) -> None:
        """Search the open modes, most hopeful first, each for what is faster than all before."""
        for least_s, mode in sorted(self.open, key=lambda entry: entry[0]):
            if not self.better(least_s):
                continue
            if self.problem.vpp > 1:
                self.left_s.append(least_s)
            else:
                self.used = "dynamic programming"
                self.keep(fastest_chain([self.scale] * self.problem.pp, mode, least_s, self.best_s))

    def _put_together(self, mode: Mode, least_s: float) -> bool:
        """Keep cuts as fast as the bound, in all policies; else a slower one. Returns whether the bound was met."""
        # With several chunks a stage, the bound lets recomputed layers lie so unevenly that no even cut will meet it.
        few = self.frames[:FEWER_FRAMES]
        tried = few if mode.first and self.problem.vpp > 1 else self.frames
        for policy in POLICIES if self.problem.vpp > 1 else POLICIES[:2]:
            built = construct(self.scale, tried, mode, least_s, policy)
            self.keep(built)
            tried = tried if built else few
        for slack in SLACKS:
            if not self.better(least_s * slack):
                break
            if self.frames:
                built = construct(self.scale, few, mode, least_s * slack, POLICIES[0])
            else:
                built = beam(self.scale, mode, least_s * slack)
            self.keep(built)
            if built:
                break
        return self.best_s <= least_s * (1 + CLOSE)

    def answer(self, started_s: float) -> StageSolution | Unsatisfied:
        if not self.kept:
            return Unsatisfied(proved=not self.left_s)
        bound = min(self.best_s, *self.left_s) if self.left_s else self.best_s
        ranking = ranked(self.problem, self.kept)
        gap = (self.best_s - bound) / self.best_s if self.best_s else 0.0
        return StageSolution(
            best=ranking[0],
            alternatives=tuple(ranking[1:]),
            slowest_s=self.best_s,
            bound_s=bound,
            optimal=gap <= CLOSE,
            gap=gap,
            stage_s=stage_seconds(self.problem, ranking[0]),
            peak_bytes=stage_peaks(self.problem, ranking[0]),
            solver=self.used if gap <= CLOSE or self.used != "bound met" else "none",
            seconds=time.perf_counter() - started_s,
        )


DIGITS = 9  # significant ones of seconds and bytes that are compared


def ranked(problem: StageProblem, assignments: Iterable[Assignment]) -> list[Assignment]:
    """Rank assignments without doubles, the fastest slowest stage first; of equal ones the shortest rounds, then those
    whose longest is shortest, then the least work and peak. Slower ones only where their rounds are shorter than all
    before.

    That is what the simulated interleaved schedule asks for: chunks that differ within a round make it wait more than
    a slower stage does.
    """
    keys = {one: _key(problem, one) for one in dict.fromkeys(assignments)}
    result: list[Assignment] = []
    for one in sorted(keys, key=lambda one: (*keys[one], one.chunks, one.choices)):
        slowest_s, rounds_s = keys[one][:2]
        first = keys[result[0]][0] if result else slowest_s
        if slowest_s == first or rounds_s < min(keys[other][1] for other in result):
            result.append(one)
    return result


def _key(problem: StageProblem, one: Assignment) -> tuple[float, ...]:
    seconds = chunk_seconds(problem, one)
    # A round is over when the slowest of its chunks is: chunks k pp to k pp + pp - 1.
    rounds = [max(seconds[start : start + problem.pp]) for start in range(0, len(seconds), problem.pp)]
    slowest = max(stage_seconds(problem, one))
    figures = (slowest, sum(rounds), max(rounds), sum(seconds), max(stage_peaks(problem, one)))
    return tuple(float(f"{figure:.{DIGITS}g}") for figure in figures)


WIDTH = 64  # beginnings that are kept


@dataclass(frozen=True, slots=True)
class _Partial:
    """Chunks up to a place in the model. uneven: seconds squared by which stages are ahead of their share so far."""

    uneven: float
    ends: tuple[int, ...]
    loads: tuple[float, ...]  # seconds of each stage
    options: tuple[Option, ...]


def beam(scale: Scale, mode: Mode, most_s: float) -> Assignment | None:
    """Return an assignment whose stages take at most most_s and fit, if one comes up this way."""
    problem = scale.problem
    search = _Beam(scale, mode, most_s * (1 + CLOSE))
    kept = [_Partial(0.0, (0,), (0.0,) * problem.pp, ())]
    for chunk in range(problem.pp * problem.vpp):
        after: dict[tuple[object, ...], _Partial] = {}
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
    """A beam search over stages: the sums of seconds and the spans of blocks that each of its steps reads."""

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

    def longer(self, chunk: int, begun: _Partial) -> Iterator[_Partial]:
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
            yield _Partial(begun.uneven + (max(stage_s, 0.0) ** 2 + model_s**2), (*begun.ends, end), loads, options)

    def _fits(self, stage: int, options: tuple[Option, ...]) -> bool:
        weights = [option.weight for option in options[stage :: self.scale.problem.pp]]
        return fits(self.scale.problem, peak_bytes(self.scale.problem, stage, weights))
