"""The layers of a candidate laid over the stages of two kinds of GPUs, the slower ones with fewer of them.

With one chunk a stage a dynamic program over where each stage ends proves the least slowest stage of a policy; the
schedule is simulated for what it finds. Chunks of an interleaved schedule share out what it gives their stages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise, permutations

import numpy as np

from symconfig.graph.model import sequence
from symconfig.graph.parts import is_layer
from symconfig.solve.mixed.across import Across, shared_s
from symconfig.solve.question import whole_question
from symconfig.solve.split import Split, even, every_split, plainest
from symconfig.solve.stages.chain import fastest_chain
from symconfig.solve.stages.content import Mode, Scale, layers, modes
from symconfig.solve.stages.cuts import cut, longest_chunk
from symconfig.solve.stages.judge import CLOSE
from symconfig.solve.stages.problem import Assignment, Chunks, StageProblem

TRIES = 4  # questions for a policy, each with the memory that the last answer lacked taken off
HALVINGS = 40  # of the interval in which a bound lies
ROUNDS = 20  # moves of a layer around the best one, at most
MOST_CHUNKS = 32  # of which every pair is tried; with more, only neighbours


def best_layers(across: Across, below_s: float) -> Across | None:
    """Return the fastest layout found for a candidate's policy that fits in both kinds' memory, below a step time.

    None: there is none.
    """
    if across.floor_s >= below_s:
        return None
    request, first_layers = across.candidates[0].request, across.candidates[0].block_layers
    given = [across.laid(across.split, first_layers)]
    best = _fastest(across, given, below_s)
    if request.pins.layout is not None:
        return best
    below_s = below_s if best is None else best.step_s
    few = every_split(sequence(request.model), across.pp, across.split.vpp, request.limits.layouts)
    others = _proposed(across, below_s) if few is None else (across.laid(split, first_layers) for split in few)
    return _fastest(across, others, below_s) or best


def _fastest(across: Across, layouts: Iterable[Across], below_s: float) -> Across | None:
    """Return the fastest that fits, below a step time. across: the same degrees and policy, whose blocks are priced."""
    best = None
    for one in layouts:
        if across.least_s(one.split) < below_s and one.fits and one.step_s < below_s:
            best, below_s = one, one.step_s
    return best


def around(across: Across) -> Across:
    """Move one layer at a time from one chunk to another as long as the step becomes shorter."""
    request = across.candidates[0].request
    layouts = request.limits.layouts
    if request.pins.layout is not None or not layouts.free(across.split.vpp):
        return across
    first_layers = across.candidates[0].block_layers
    for _ in range(ROUNDS):
        ways = (plainest(across.pp, chunks, layouts) for chunks in moves(across.split))
        neighbours = (across.laid(split, first_layers) for split in ways if split is not None)
        best = _fastest(across, neighbours, across.step_s * (1 - CLOSE))
        if best is None:
            break
        across = best
    return across


def _proposed(across: Across, below_s: float) -> Iterator[Across]:
    """Yield what the dynamic program finds for the policy, with less and less memory while its answer does not fit."""
    request, pp, vpp = across.candidates[0].request, across.pp, across.split.vpp
    plain = even(sequence(request.model), pp, 1, 0, 0)
    if plain is None:
        return
    one = across.laid(plain, across.candidates[0].block_layers)
    problems = list(map(whole_question, one.candidates, one.parts))
    most_s = below_s / one.num_microbatches
    for _ in range(TRIES):
        chain, first = slowest_least(problems, across.kinds, _waits(one), most_s)
        if chain is None:
            return
        chunks = chain.chunks if vpp == 1 else _dealt(sequence(request.model), chain.chunks, vpp)
        split = None if chunks is None else plainest(pp, chunks, request.limits.layouts)
        if split is None:
            return
        laid = across.laid(split, first)
        yield laid
        if laid.fits:
            return
        problems = [
            replace(problem, limit_bytes=problem.limit_bytes - max(excess, 0.0) * (1 + CLOSE))
            for problem, excess in zip(problems, laid.excess, strict=True)
        ]


def slowest_least(
    problems: Sequence[StageProblem], kinds: Sequence[int], wait_s: Sequence[float], most_s: float
) -> tuple[Assignment | None, int]:
    """Return the cut whose slowest stage is fastest, and how many first layers of every stage run again in it.

    problems: of each kind. kinds, wait_s: of each stage, its kind and its waits for messages. None: nothing at most
    most_s fits.
    """
    by_kind = [Scale(problem) for problem in problems]
    scales = [by_kind[kind] for kind in kinds]
    best: tuple[Assignment | None, int] = None, 0
    for mode in modes(problems[0], longest_chunk(problems[0])):
        least_s = bound_s(problems, kinds, mode)
        if least_s >= most_s:
            break  # with more layers run again it is slower yet
        chain = fastest_chain(scales, mode, least_s, most_s, wait_s)
        if chain is not None:
            best, most_s = (chain, mode.first), min(most_s, _slowest_s(chain, scales, wait_s))
    return best


def _slowest_s(chain: Assignment, scales: Sequence[Scale], wait_s: Sequence[float]) -> float:
    """Time a microbatch on the slowest stage of a cut."""
    return max(
        wait + sum(scale.problem.seconds[kind][choice] for kind, choice in zip(chunk, choices, strict=True))
        for scale, wait, chunk, choices in zip(scales, wait_s, chain.chunks, chain.choices, strict=True)
    )


def bound_s(problems: Sequence[StageProblem], kinds: Sequence[int], mode: Mode) -> float:
    """Return a lower bound of the slowest stage: that of `shared_s`; with layers that run again, were all as quick as
    the quickest."""
    on = kinds.count(0), kinds.count(1)
    every = [kind for kind in problems[0].sequence if is_layer(kind)]
    one, other = (np.array([problem.seconds[kind][mode.choice] for kind in every]) for problem in problems)
    low = shared_s(one, other, on)
    if not mode.first:
        return low
    each = [float(seconds.min()) for seconds in (one, other)]
    repeated = [min(p.seconds[kind][1] - p.seconds[kind][mode.choice] for kind in every) for p in problems]

    def held(most_s: float) -> float:
        """Count the layers that all stages take in so many seconds."""
        few = (most_s / (plain + more) for plain, more in zip(each, repeated, strict=True))
        many = ((most_s - mode.first * more) / plain for plain, more in zip(each, repeated, strict=True))
        return sum(count * max(min(a, mode.first), b) for count, a, b in zip(on, few, many, strict=True))

    high = low + (mode.first + 1) * max(repeated)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if held(middle) >= len(every) else (middle, high)
    return low


def _waits(across: Across) -> list[float]:
    """Add up each stage's waits for messages, [pp]. The problems take one off either end, which has none."""
    own = [across.links_s[kind] for kind in across.kinds]
    into = [own[0], *(across.link_s(stage, stage - 1) for stage in range(1, across.pp))]
    back = [*(across.link_s(stage, stage + 1) for stage in range(across.pp - 1)), own[-1]]
    return [a + b for a, b in zip(into, back, strict=True)]


def _dealt(blocks: tuple[str, ...], stages: Chunks, vpp: int) -> Chunks | None:
    """Return chunks that give every stage as many layers as it has now, as evenly as they go. None: too few layers."""
    each = [divmod(layers(stage), vpp) for stage in stages]
    sizes = [whole + (chunk < rest) for chunk in range(vpp) for whole, rest in each]
    return None if min(sizes) < 1 else cut(blocks, sizes)


def moves(split: Split) -> Iterator[Chunks]:
    """Yield the chunks with one layer moved from one of them to another."""
    blocks = tuple(kind for chunk in split.chunks for kind in chunk)
    sizes, count = [len(chunk) for chunk in split.chunks], len(split.chunks)
    pairs = permutations(range(count), 2) if count <= MOST_CHUNKS else _neighbours(count)
    for giver, taker in pairs:
        if not any(is_layer(kind) for kind in split.chunks[giver]):
            continue
        after = list(sizes)
        after[giver] -= 1
        after[taker] += 1
        ends = list(accumulate(after, initial=0))
        yield tuple(blocks[start:end] for start, end in pairwise(ends))


def _neighbours(count: int) -> Iterator[tuple[int, int]]:
    for place in range(count - 1):
        yield place, place + 1
        yield place + 1, place
