"""The cluster's GPUs as a hierarchy of levels, and the axes that its levels are cut into, innermost first."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import prod

# Levels of switches and cables between nodes, which libraries fill otherwise than a node's own links.
NETWORK = frozenset({"rail", "spine"})


@dataclass(frozen=True, slots=True)
class Axis:
    """One factor of a level's size. stride: distance in ranks between neighbours along the axis."""

    level: str
    size: int
    stride: int

    @property
    def name(self) -> str:
        return f"{self.level}{self.size}@{self.stride}"


@dataclass(frozen=True, slots=True)
class MeshLevel:
    """One level of the mesh: `size` domains of the level inside, joined by links.

    bandwidth_bytes_per_s: of one GPU, one direction, on the wire. latency_s: of one message. mesh: direct links between
    all pairs, without a switch.
    """

    name: str
    size: int
    bandwidth_bytes_per_s: float
    latency_s: float
    mesh: bool = False


@dataclass(frozen=True, slots=True)
class Mesh:
    """Levels, innermost first; the number of GPUs is the product of their sizes."""

    levels: tuple[MeshLevel, ...]

    @property
    def gpus(self) -> int:
        return prod(level.size for level in self.levels)

    def axes(self, factors: tuple[tuple[int, ...], ...] | None = None) -> tuple[Axis, ...]:
        """Return the axes that the levels are split into, innermost first.

        factors: each level's factors, innermost first, whose product is its size; by default its primes, smallest
        first.
        """
        factors = factors if factors is not None else tuple(primes(level.size) for level in self.levels)
        result, stride = [], 1
        for level, cut in zip(self.levels, factors, strict=True):
            assert prod(cut) == level.size
            for size in cut:
                result.append(Axis(level.name, size, stride))
                stride *= size
        return tuple(result)

    def shapes(self, most: int = 4) -> tuple[tuple[Axis, ...], ...]:
        """Return every way of splitting the levels into at most `most` axes in all, each as a tuple of axes.

        The split into primes alone where that is few enough, else all splits with as many axes as possible, spread as
        evenly as possible among the levels.
        """
        if len(self.axes()) <= most:
            return (self.axes(),)
        counts = [
            each
            for each in product(*(range(1, len(primes(level.size)) + 1) for level in self.levels))
            if sum(each) <= most
        ]
        finest = max(map(sum, counts))
        spread = min(sum(count * count for count in each) for each in counts if sum(each) == finest)
        even = [each for each in counts if sum(each) == finest and sum(count * count for count in each) == spread]
        cuts = (product(*(_splits(level.size, n) for level, n in zip(self.levels, each, strict=True))) for each in even)
        return tuple(self.axes(cut) for some in cuts for cut in some)


def primes(number: int) -> tuple[int, ...]:
    """Return the prime factors, smallest first; empty for 1."""
    result, divisor = [], 2
    while number > 1:
        while number % divisor == 0:
            result.append(divisor)
            number //= divisor
        divisor += 1 if divisor * divisor <= number else max(number - divisor, 1)
    return tuple(result)


def _splits(size: int, parts: int) -> list[tuple[int, ...]]:
    """Return all nondecreasing factorisations of `size` into `parts` factors above 1, or as many as it has primes.

    Of 8 in 2: (2, 4); of 128: (2, 64), (4, 32), (8, 16). Of 1: one empty tuple.
    """
    parts = min(parts, len(primes(size)))
    if parts <= 1:
        return [(size,)] if size > 1 else [()]
    cuts = [
        (first, *rest)
        for first in range(2, size + 1)
        if size % first == 0
        for rest in _splits(size // first, parts - 1)
        if rest and len(rest) == parts - 1 and first <= rest[0]
    ]
    return cuts or [(size,)]
