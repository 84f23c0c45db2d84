"""Layers of each chunk so that the heaviest stage of a pipeline is light: quick, before the stage solver's exact word.

Weights are relative seconds of a kind of block; chunk j lies on stage j mod pp. With one chunk a stage the cut is the
best one; with several it is the better of two good ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from heapq import heapify, heapreplace
from itertools import accumulate, pairwise, product

from symconfig.graph.parts import is_layer, place_of
from symconfig.plans.pipeline_layout import dealt
from symconfig.solve.stages.cuts import NEAREST

Sizes = tuple[int, ...]
Weights = tuple[tuple[str, float], ...]  # of the kinds


@dataclass(frozen=True, slots=True)
class _Loads:
    """until[i]: weight of the first i layers. head, tail: of what stands before the layers, and behind them."""

    pp: int
    until: tuple[float, ...]
    head: float
    tail: float

    @staticmethod
    def of(sequence: Sequence[str], pp: int, weight: Mapping[str, float]) -> _Loads:
        until = tuple(accumulate((weight[kind] for kind in sequence if is_layer(kind)), initial=0.0))
        closing = [kind for kind in reversed(sequence) if place_of(kind).closes]
        head = sum(weight[kind] for kind in sequence if place_of(kind).begins)
        return _Loads(pp, until, head, sum(weight[kind] for kind in closing))

    @property
    def layers(self) -> int:
        return len(self.until) - 1

    @property
    def total(self) -> float:
        return self.until[-1] + self.head + self.tail

    def order(self, sizes: Sizes) -> tuple[float, Sizes]:
        """Order sizes, less is better: the heaviest stage's share of all, and among equals few layers in front, where a
        stage holds the most microbatches.
        """
        chunks = [self.until[end] - self.until[start] for start, end in pairwise(accumulate(sizes, initial=0))]
        chunks[0] += self.head
        chunks[-1] += self.tail
        heaviest = max(sum(chunks[stage :: self.pp]) for stage in range(self.pp))
        return round(heaviest / self.total, 9), sizes


def lightest(sequence: tuple[str, ...], pp: int, least: Sizes, weights: Weights) -> Sizes | None:
    """Return the lightest sizes where any can be told. least: the fewest layers of each chunk; None: there are
    fewer.
    """
    loads = _Loads.of(sequence, pp, dict(weights))
    if loads.layers < sum(least):
        return None
    balanced = _balanced(sequence, least, weights)
    if len(least) == pp:
        return balanced
    return min((balanced, _shared(loads, least)), key=loads.order)


def lightest_ends(sequence: tuple[str, ...], pp: int, vpp: int, weights: Weights) -> Sizes | None:
    """Return the lightest sizes where only the layers of the first and last stage can be told, by trying all. None:
    none is possible.
    """
    loads = _Loads.of(sequence, pp, dict(weights))
    return min(_ends(loads.layers, pp, vpp), key=loads.order, default=None)


def lightest_of(sequence: tuple[str, ...], pp: int, few: Iterable[Sizes], weights: Weights) -> Sizes | None:
    """Return the lightest sizes where only a few can be told. None: there are none."""
    return min(few, key=_Loads.of(sequence, pp, dict(weights)).order, default=None)


def _ends(layers: int, pp: int, vpp: int) -> Iterator[Sizes]:
    even = layers // pp // vpp
    counts = range(vpp * max(1, even - NEAREST), min(layers, vpp * (even + NEAREST)), vpp)
    for first, between in product(counts, counts if pp > 2 else (0,)):
        last = layers - first - between * (pp - 2)
        if last > 0 and (sizes := dealt(layers, pp, vpp, first=first, last=last)) is not None:
            yield sizes


def _shared(loads: _Loads, least: Sizes) -> Sizes:
    """Share the layers of the average weight out, one by one to the stage with the least to do, and there to the
    lightest chunk.
    """
    pp, layers = loads.pp, loads.layers
    each, sizes = loads.until[-1] / layers, list(least)
    chunks = [size * each for size in least]
    chunks[0] += loads.head
    chunks[-1] += loads.tail
    queue = [(sum(chunks[stage::pp]), stage) for stage in range(pp)]
    heapify(queue)
    for _ in range(layers - sum(least)):
        load, stage = queue[0]
        place = min(range(stage, len(sizes), pp), key=chunks.__getitem__)
        sizes[place] += 1
        chunks[place] += each
        heapreplace(queue, (load + each, stage))
    return tuple(sizes)


@cache
def _balanced(sequence: tuple[str, ...], least: Sizes, weights: Weights) -> Sizes:
    """Return the sizes of contiguous chunks that minimise the heaviest one, ends included; bisection on that weight.

    Exact to a millionth of the total: a greedy fill is feasible exactly when some cut is.
    """
    weight = dict(weights)
    loads, layers = _Loads.of(sequence, len(least), weight), tuple(filter(is_layer, sequence))
    low, high = loads.total / len(least), loads.total
    sizes = _fill(layers, least, weight, loads, high)
    while high - low > 1e-6 * loads.total:
        middle = (low + high) / 2
        if (filled := _fill(layers, least, weight, loads, middle)) is None:
            low = middle
        else:
            high, sizes = middle, filled
    assert sizes is not None  # all layers on one chunk weigh no more than everything
    return tuple(sizes)


def _fill(
    layers: tuple[str, ...], least: Sizes, weight: Mapping[str, float], loads: _Loads, limit: float
) -> list[int] | None:
    """Fill from the back, each chunk to the limit, leaving what the chunks before it must have; None if that fails."""
    sizes = [0] * len(least)
    left, needed = len(layers), sum(least)
    for index in reversed(range(len(least))):
        needed -= least[index]
        load = loads.tail if index == len(least) - 1 else 0.0
        load += loads.head if index == 0 else 0.0
        while left > needed and (
            load + weight[layers[left - 1]] <= limit * (1 + 1e-12) or index == 0 or sizes[index] < least[index]
        ):
            load += weight[layers[left - 1]]
            left -= 1
            sizes[index] += 1
        if load > limit * (1 + 1e-9):
            return None
    return sizes
