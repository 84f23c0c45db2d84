"""Which cuts a target can say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

from symconfig.errors import InfeasibleError
from symconfig.graph.parts import is_layer
from symconfig.solve.stages.content import Content, layers
from symconfig.solve.stages.problem import Chunks, Layouts, StageProblem

NEAREST = 128  # cuts to each side of even ones that are tried


def allowed(problem: StageProblem, chunk: int, content: Content) -> bool:
    """Tell whether chunk number `chunk` may hold this. The embedding lies in the first chunk and the head in
    the last.
    """
    kinds, rules = [kind for kind, _ in content], problem.layouts
    if any(problem.chunk_of(kind) not in (None, chunk) for kind in kinds):
        return False
    return any(map(is_layer, kinds)) or (rules.empty_ends if kinds else rules.empty)


def least_layers(problem: StageProblem) -> list[int]:
    """Return the layers that each chunk must hold: none where it may hold an end alone, or nothing."""
    rules, chunks = problem.layouts, problem.pp * problem.vpp
    tied = [problem.chunk_of(kind) for kind in problem.sequence if not is_layer(kind)]
    # From the chunk that holds the first mtp on, all may hold ends only.
    later = tied.count(None)
    alone = set(range(chunks - 1 - later, chunks)) if chunks - 1 in tied or later else set()
    alone |= {0} if 0 in tied else set()
    return [0 if rules.empty or (rules.empty_ends and chunk in alone) else 1 for chunk in range(chunks)]


def longest_chunk(problem: StageProblem) -> int:
    """Return the most layers that a chunk may have."""
    least = least_layers(problem)
    return layers(problem.sequence) - sum(least) + max(least)


def family(sequence: tuple[str, ...], pp: int, vpp: int, rules: Layouts) -> Iterator[Chunks]:
    """Yield every cut that can be said, of rules that are not free. Some may come twice."""
    total, chunks = layers(sequence), pp * vpp
    least = [0 if rules.empty_ends else 1, 0 if rules.empty_ends else 1]
    if rules.any_cut and not rules.free(vpp):
        yield from (cut(sequence, sizes) for sizes in even_cuts(total, chunks, least[0]))
        return
    for at_start, at_end in ((0, 0), (1, 1), (1, 0), (0, 1)) if rules.account and pp > 1 else ((0, 0),):
        each, rest = divmod(total + at_start + at_end, chunks)
        sizes = [each] * chunks
        sizes[0] -= at_start
        sizes[-1] -= at_end
        if not rest and each > 0 and sizes[0] >= least[0] and sizes[-1] >= least[1]:
            yield cut(sequence, sizes)
    if rules.first_last and pp > 1 and (vpp == 1 or rules.uneven):
        for first, middle, last in _first_last(total // vpp if total % vpp == 0 else 0, pp):
            yield cut(sequence, ([first] + [middle] * (pp - 2) + [last]) * vpp)


def every(problem: StageProblem) -> Iterator[Chunks]:
    """Yield every cut of rules that are not free."""
    return family(problem.sequence, problem.pp, problem.vpp, problem.layouts)


def even_cuts(total: int, chunks: int, least: int) -> Iterator[tuple[int, ...]]:
    """Yield layers of each of three chunks or more: as many in all but the first and the last, which have at most one
    more. The shortest chunks come first, then ends that are most alike. least: layers of an end. Of many cuts those
    that are nearest to even."""
    fewest = max(1, -(-(total - 2) // chunks))
    for each in range(fewest, min(total // (chunks - 2), fewest + NEAREST) + 1):
        ends = total - each * (chunks - 2)
        firsts = range(max(least, ends - each - 1), min(each + 1, ends - least) + 1)
        for first in sorted(firsts, key=lambda first: (abs(2 * first - ends), first))[:NEAREST]:
            yield (first, *(each,) * (chunks - 2), ends - first)


def _first_last(total: int, pp: int) -> Iterator[tuple[int, int, int]]:
    """Yield the layers of the first, of each middle and of the last stage; not all alike."""
    for middle in range(1 if pp > 2 else 0, total if pp > 2 else 1):
        ends = total - middle * (pp - 2)
        yield from ((first, middle, ends - first) for first in range(1, ends) if {first, ends - first} != {middle})


def cut(sequence: tuple[str, ...], sizes: Sequence[int]) -> Chunks:
    """Cut into chunks of so many layers; what stands before them goes to the first one, what stands behind to
    the last.
    """
    before = next(index for index, kind in enumerate(sequence) if is_layer(kind))
    ends = list(accumulate(sizes, initial=before))
    ends[0], ends[-1] = 0, len(sequence)
    return tuple(sequence[start:end] for start, end in pairwise(ends))


def check(problem: StageProblem) -> None:
    """Raise InfeasibleError for too many stages."""
    if problem.layouts.empty:
        return
    need = sum(least_layers(problem))
    have = layers(problem.sequence)
    if have < need:
        what = "every virtual pipeline stage needs a layer" if problem.vpp > 1 else "every pipeline stage needs a layer"
        raise InfeasibleError(
            what,
            got=f"{have} layers",
            need=f"{need} for pp {problem.pp} x vpp {problem.vpp}",
            hint="a smaller pp" + (" or vpp" if problem.vpp > 1 else ""),
        )
