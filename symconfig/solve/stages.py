"""Layers to stages: a dynamic programme over chunks and places in the model, with seconds and bytes as arrays.

Problem: cut a sequence of blocks into pp x vpp contiguous chunks, chunk j on stage j mod pp, so that a microbatch on
the slowest stage takes least and no stage's peak is above its memory.

- One chunk a stage: exact. best[j, e] = min over b of max(best[j - 1, b], seconds of blocks b to e on stage j), where
  spans that do not fit are infinite. Of cuts that are as fast, a second pass takes the one whose stages differ least.
- Several chunks a stage, and targets that can express a few families of cuts only: all cuts of the family are compared.

`symconfig partition --stages` has a search of its own (`symconfig.solve.partition.pipeline.search`): the number of
stages and the GPUs of each are open, their sum counts beside the slowest, and a stage's seconds are known only once the
tensor solver has solved it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, islice, pairwise

import numpy as np
from numpy.typing import NDArray

from symconfig.graph.block import Place
from symconfig.graph.parts import is_layer, place_of
from symconfig.plans.pipeline_layout import dealt

Array = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Chunks = tuple[tuple[str, ...], ...]  # kinds of the blocks of every chunk, chunk j on stage j mod pp
NEAREST = 128  # uneven cuts on each side of the even one that are compared
MOST_CUTS = 4096  # most cuts of a family that are compared
MOST_BLOCKS = 600  # most blocks of a model: tables have the square of their number
ACCOUNTED = ((False, False), (True, True), (True, False), (False, True))  # embedding, loss; the plainest first
ROUNDING = 1e-9  # relative: sums of the same seconds or bytes in another order


@dataclass(frozen=True, slots=True)
class Layouts:
    """The cuts into chunks that a target can express. Layers are all blocks but embedding, mtp and head.

    any_cut: every contiguous cut with a layer in each chunk; with several chunks a stage those of `even_cuts`. Without
    it, only equally many layers per chunk and the cuts that first_last and account add.
    """

    any_cut: bool
    empty_ends: bool = False  # with any_cut: a chunk may hold ends and no layer
    mtp_with_head: bool = True  # with any_cut: mtp lies in the head's chunk
    first_last: bool = False  # the number of layers on the first and/or last stage, the rest evenly over the others
    account: bool = False  # an even split in which the embedding and/or the loss takes the place of a layer
    first: int = 0  # fewest layers of the first chunk

    def dealt(self, ends: bool) -> Layouts:
        """Return the layouts with equally many layers per chunk and no other freedom.

        ends: instead, only `any_cut` is turned off, so first and last stage may have other numbers if the target can.
        """
        return replace(self, any_cut=False) if ends else Layouts(any_cut=False, first=self.first)

    def in_last_chunk(self, place: Place) -> bool:
        """Return whether blocks of this place must lie in the last chunk."""
        return place is Place.LAST or (place is Place.FURTHER and self.mtp_with_head)


@dataclass(frozen=True, kw_only=True, eq=False)
class Blocks:
    """Costs of every block of the model on one kind of GPU, [2, blocks].

    The first row is under the recompute policy, the second under full recompute. seconds: of one microbatch, forward
    and backward. fixed_bytes: weights, their states, and what the loss keeps. kept_bytes: activations per microbatch in
    flight. working_bytes: temporary, while the block runs. limit_bytes: budget of the GPU's memory.
    """

    seconds: Array
    fixed_bytes: Array
    kept_bytes: Array
    working_bytes: Array
    limit_bytes: float


@dataclass(frozen=True, kw_only=True, eq=False)
class StageProblem:
    """The problem of cutting a model's blocks into stages.

    sequence: kinds of the blocks in model order. on: for each stage the index of its GPU kind in `blocks`. wait_s:
    seconds that a microbatch waits for messages on each stage, [pp]. held: for each stage the microbatches in flight of
    each of its chunks at every moment that may be its peak, [moments, vpp]. first: number of layers of every chunk that
    are recomputed in full.
    """

    sequence: tuple[str, ...]
    pp: int
    vpp: int
    layouts: Layouts
    blocks: tuple[Blocks, ...]
    on: tuple[int, ...]
    wait_s: Array
    held: tuple[Array, ...]
    first: int = 0

    @cached_property
    def layer(self) -> Bools:
        """Return which blocks are layers, [blocks]. Cached."""
        return np.array([is_layer(kind) for kind in self.sequence])

    @cached_property
    def layers_before(self) -> Ints:
        """Return the number of layers before each position in the model, [blocks + 1]. Cached."""
        return np.concatenate(([0], np.cumsum(self.layer)))

    def sums(self, name: str, kind: int, start: Ints, end: Ints) -> Array:
        """Return the sum of a field of `Blocks` over blocks start to end (exclusive), in the broadcast shape of both.

        kind: index of the kind of GPU. The first `first` layers of each span count as recomputed in full.
        """
        plain, recomputed = getattr(self.blocks[kind], name)
        until = np.concatenate(([0.0], np.cumsum(plain)))
        result: Array = until[end] - until[start]
        if self.first:
            more = np.concatenate(([0.0], np.cumsum((recomputed - plain)[self.layer])))
            begin = self.layers_before[start]
            result = result + more[np.minimum(begin + self.first, self.layers_before[end])] - more[begin]
        return result

    def allowed(self, chunk: int | Ints, start: Ints, end: Ints) -> Bools:
        """Return whether a chunk may hold blocks start to end (exclusive), in the broadcast shape of the indices.

        No chunk is empty, or without a layer unless `empty_ends`. The first holds all blocks that begin the model, the
        last all from the first that must be with the loss (`in_last_chunk`) and the model's end; others hold none of
        these. The first has at least `first` layers.
        """
        places, rules = [place_of(kind) for kind in self.sequence], self.layouts
        begins = sum(place.begins for place in places)
        last = next((at for at, place in enumerate(places) if rules.in_last_chunk(place)), len(places))
        full = (end > start) if rules.empty_ends else self.layers_before[end] > self.layers_before[start]
        result: Bools = (end > start) & full
        enough = (end >= begins) & (self.layers_before[end] >= rules.first)
        result &= np.where(np.equal(chunk, 0), enough, start >= begins)
        result &= np.where(np.equal(chunk, self.pp * self.vpp - 1), end == len(places), end <= last)
        return result


def fastest_cut(problem: StageProblem) -> Chunks | None:
    """Return the chunks that fit and whose slowest stage is fastest, of the cuts that `layouts` allows.

    With several chunks a stage or without `any_cut`, the first MOST_CUTS of `family` are compared by the mean of the
    slowest stage and the sum of each round's slowest chunk; else all cuts. None if no cut fits or the model has more
    than MOST_BLOCKS blocks.
    """
    if len(problem.sequence) > MOST_BLOCKS:
        return None
    if problem.vpp > 1 or not problem.layouts.any_cut:
        kin, least = family(problem.sequence, problem.pp, problem.vpp, problem.layouts), problem.layouts.first
        cuts = islice((chunks for chunks in kin if layers(chunks[0]) >= least), MOST_CUTS)
        every = np.array([[*accumulate(map(len, cut), initial=0)] for cut in cuts], dtype=np.int64)
        if not len(every):
            return None
        excess, seconds = _excess_and_seconds(problem, every)
        most = excess.max(axis=1)
        # The mean of the slowest stage's seconds and the sum of each round's slowest chunk.
        each = (seconds.sum(axis=1).max(axis=1) + seconds.max(axis=2).sum(axis=1)) / 2
        best = int(np.lexsort((each, most))[0])
        return _chunks(problem, every[best]) if most[best] <= 0 else None
    start, end = np.ogrid[: len(problem.sequence) + 1, : len(problem.sequence) + 1]
    costs = []
    seconds_of = [problem.sums("seconds", kind, start, end) for kind in range(len(problem.blocks))]
    for stage in range(problem.pp):
        wait_s = problem.wait_s[stage]
        cost = np.where(problem.allowed(stage, start, end), seconds_of[problem.on[stage]] + wait_s, np.inf)
        if np.isfinite(limit := problem.blocks[problem.on[stage]].limit_bytes):
            # Activations count at the most microbatches in flight; the largest working bytes are added.
            kind, in_flight = problem.on[stage], float(problem.held[stage].max())
            fixed, kept = (problem.sums(name, kind, start, end) for name in ("fixed_bytes", "kept_bytes"))
            cost[fixed + in_flight * kept + _working(problem, kind) > limit * (1 + ROUNDING)] = np.inf
        costs.append(cost)
    ends = _least_largest(costs)
    return None if ends is None else _chunks(problem, ends)


def _least_largest(costs: Sequence[Array]) -> Ints | None:
    """Return the boundaries of chunks, [chunks + 1], with the least largest cost; None if all cuts are infinite.

    costs: of each chunk, [start, end]. Ties go to the least sum of squares, then to the shortest first chunks.
    """
    largest = np.full(len(costs[0]), np.inf)
    largest[0] = 0.0
    for cost in costs:
        largest = np.maximum(largest[:, None], cost).min(axis=0)
    if largest[-1] == np.inf:
        return None
    limit, square = largest[-1] * (1 + ROUNDING), np.full(len(largest), np.inf)
    square[0], before = 0.0, []
    for cost in costs:
        total = square[:, None] + np.where(cost <= limit, cost, np.inf) ** 2
        before.append(total.argmin(axis=0))
        square = total.min(axis=0)
    ends = [len(largest) - 1]
    for each in reversed(before):
        ends.append(int(each[ends[-1]]))
    return np.array(ends[::-1])


def _working(problem: StageProblem, kind: int) -> Array:
    """Return the largest working bytes of the blocks start to end, [start, end]; 0 for an empty span.

    If layers are recomputed (`first`), each block counts with the larger of both policies.
    """
    each = problem.blocks[kind].working_bytes
    most = each.max(axis=0) if problem.first else each[0]
    size = len(most)
    result = np.zeros((size + 1, size + 1))
    for start in range(size):
        result[start, start + 1 :] = np.maximum.accumulate(most[start:])
    return result


def _excess_and_seconds(problem: StageProblem, ends: Ints) -> tuple[Array, Array]:
    """Return (bytes by which each stage exceeds its memory, [cuts, pp]; seconds of every chunk, [cuts, vpp, pp]).

    The excess is 0 where a stage fits or has no limit; seconds include a share of the stage's wait. ends: boundaries of
    chunks, [cuts, chunks + 1].
    """
    shape = len(ends), problem.vpp, problem.pp
    start, end = ends[:, :-1].reshape(shape), ends[:, 1:].reshape(shape)
    seconds, excess = np.empty(shape), np.zeros((len(ends), problem.pp))
    working = [_working(problem, kind) for kind in range(len(problem.blocks))]
    for stage in range(problem.pp):
        kind, mine = problem.on[stage], (start[:, :, stage], end[:, :, stage])
        seconds[:, :, stage] = problem.sums("seconds", kind, *mine) + problem.wait_s[stage] / problem.vpp
        if np.isfinite(limit := problem.blocks[kind].limit_bytes):
            kept = problem.sums("kept_bytes", kind, *mine) @ problem.held[stage].T
            fixed = problem.sums("fixed_bytes", kind, *mine).sum(axis=1) + working[kind][mine].max(axis=1)
            excess[:, stage] = np.maximum(fixed + kept.max(axis=1) - limit * (1 + ROUNDING), 0.0)
    return excess, seconds


def _chunks(problem: StageProblem, ends: Sequence[int] | Ints) -> Chunks:
    return tuple(problem.sequence[start:end] for start, end in pairwise(ends))


def family(sequence: tuple[str, ...], pp: int, vpp: int, rules: Layouts) -> Iterator[Chunks]:
    """Yield the cuts to compare; some come twice.

    With `any_cut`, those of `even_cuts`. Else equally many layers per chunk, with `account` also with embedding and
    loss in a layer's place, and with `first_last` and one chunk a stage other numbers on the first and last stage. Ends
    are empty only with `empty_ends`.
    """
    total, chunks = layers(sequence), pp * vpp
    least = 0 if rules.empty_ends else 1
    if rules.any_cut:
        yield from (cut(sequence, sizes) for sizes in even_cuts(total, chunks, least))
        return
    for at_start, at_end in ACCOUNTED if rules.account and pp > 1 else ACCOUNTED[:1]:
        counts = dealt(total, pp, vpp, embedding=at_start, loss=at_end)
        if counts is not None and min(counts[0], counts[-1]) >= least:
            yield cut(sequence, counts)
    if rules.first_last and pp > 1 and vpp == 1:
        for first, middle, last in _first_last(total, pp):
            yield cut(sequence, [first, *[middle] * (pp - 2), last])


def even_cuts(total: int, chunks: int, least: int) -> Iterator[tuple[int, ...]]:
    """Yield the layers of each of three chunks or more: equal inner chunks, first and last with at most one layer more.

    The shortest inner chunks come first, then the most similar first and last. least: fewest layers of these two. At
    most NEAREST + 1 lengths of inner chunks and NEAREST pairs for each are yielded.
    """
    fewest = max(1, -(-(total - 2) // chunks))
    for each in range(fewest, min(total // (chunks - 2), fewest + NEAREST) + 1):
        ends = total - each * (chunks - 2)
        firsts = range(max(least, ends - each - 1), min(each + 1, ends - least) + 1)
        for first in sorted(firsts, key=lambda first: (abs(2 * first - ends), first))[:NEAREST]:
            yield (first, *(each,) * (chunks - 2), ends - first)


def _first_last(total: int, pp: int) -> Iterator[tuple[int, int, int]]:
    """Yield (first, middle, last) layers per stage for `total` layers, the middle nearest to even first.

    All stages have at least 1 layer; with two stages middle is 0. Equal stages are left out if there are more than two.
    """
    middles = sorted(range(1 if pp > 2 else 0, total if pp > 2 else 1), key=lambda middle: abs(middle - total / pp))
    for middle in middles:
        ends = total - middle * (pp - 2)
        yield from ((first, middle, ends - first) for first in range(1, ends) if {first, ends - first} != {middle})


def cut(sequence: tuple[str, ...], sizes: Sequence[int]) -> Chunks:
    """Return the chunks with these numbers of layers, in model order.

    Blocks before the first layer join the first chunk, those after the last layer the last chunk. Other blocks join the
    chunk of the layer before them. Raises StopIteration without layers.
    """
    before = next(index for index, kind in enumerate(sequence) if is_layer(kind))
    ends = list(accumulate(sizes, initial=before))
    ends[0], ends[-1] = 0, len(sequence)
    return tuple(sequence[start:end] for start, end in pairwise(ends))


def layers(kinds: Sequence[str]) -> int:
    """Return the number of blocks that are layers."""
    return sum(map(is_layer, kinds))
