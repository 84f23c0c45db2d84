"""Layouts one move away from a layout: a layer goes over a border, or from one chunk to another over all between."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, pairwise, permutations

from symconfig.graph.parts import is_layer
from symconfig.solve.assign import counted
from symconfig.solve.floor import Floors
from symconfig.solve.split import Split, plainest
from symconfig.solve.stages.problem import Chunks

MOST_CHUNKS = 32  # of which every pair is tried; with more, only neighbours


def moved(floors: Floors, split: Split, r: int, n: int, most: int) -> list[Split]:
    """Return the `most` hopeful layouts under a recompute choice at a point, the best first: half way between the
    slowest stage and the slowest chunk of every round.
    """
    seconds, shape = floors.kinds.seconds[:, r, n], (floors.setting.vpp, floors.setting.pp)
    layouts = []
    for chunks in moves(split):
        each = (counted(floors, chunks) @ seconds).reshape(shape)
        layouts.append((float(each.sum(axis=0).max() + each.max(axis=1).sum()), chunks))
    layouts.sort(key=lambda one: one[0])
    ways = (plainest(split.pp, chunks, floors.piece.request.limits.layouts) for _, chunks in layouts)
    return [way for way in ways if way is not None][:most]


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
