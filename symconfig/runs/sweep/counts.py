"""Which numbers of GPUs are tried, and in which order: all that can be the smallest that is in time, and few others.

Nothing says that twice the GPUs are twice as fast, or faster at all: a number whose factors fit neither the batch nor
the layers does worse than a smaller one. So no bisection: a ladder shows what one GPU does at best, and then every
number is tried that would be in time if its GPUs did a little better than the best of those.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from symconfig.descriptor.cluster import ClusterDescriptor

EVERY_NODE = 64  # as many nodes: every number of them; beyond, steps of an eighth of a power of two
HOPE = 1.1  # a number is tried if it is in time with so much more from each GPU than the best that was seen
AT_ONCE = 4  # of a cluster
BEYOND = 2  # rungs after the first that is surely in time: what more GPUs would cost
Rates = Mapping[int, float]  # tokens a second of each GPU, at the slow end of what is likely; 0: no plan


def lattice(cluster: ClusterDescriptor, least: float, most: int) -> tuple[int, ...]:
    """Return numbers of GPUs from `least` to `most`: powers of two in a node, then whole nodes."""
    node, limit = cluster.gpus_per_node, min(most, cluster.max_gpus or most)
    inside = [size for size in (1, 2, 4, 8, 16, 32, 64) if size < node]
    nodes, count = list[int](), 1
    while node * count <= limit:
        nodes.append(count)
        count += 1 if count < EVERY_NODE else 2 ** (count.bit_length() - 4)
    return tuple(size for size in (*inside, *(node * count for count in nodes)) if least <= size <= limit)


def ladder(sizes: Sequence[int]) -> tuple[int, ...]:
    """Return the smallest, the largest, and those between that have no factor but twos and one three."""
    return tuple(size for size in sizes if _odd_part(size) <= 3 or size in (sizes[0], sizes[-1]))


def _odd_part(number: int) -> int:
    return number // (number & -number)


def following(sizes: Sequence[int], rates: Rates, needed: float) -> tuple[int, ...]:
    """Choose what to try next; nothing: all that matters was tried. needed: tokens a second of all GPUs together."""
    rungs = ladder(sizes)
    met = [number for number, size in enumerate(rungs) if size * rates.get(size, 0.0) >= needed]
    until = rungs[: met[0] + 1 + BEYOND] if met else rungs
    if left := [size for size in until if size not in rates]:
        return tuple(left[:AT_ONCE])
    best = max(rates.values(), default=0.0)
    smallest = min((size for size, rate in rates.items() if size * rate >= needed), default=float("inf"))
    hopeful = [size for size in sizes if size < smallest and size not in rates and size * best * HOPE >= needed]
    return tuple(hopeful[:AT_ONCE])  # the smallest first: where one is in time, larger ones do not matter


def descending(sizes: Sequence[int], rates: Rates) -> tuple[int, ...]:
    """Choose what to try next where all are too slow.

    These are the largest rungs, until one has a plan: its time is the best there is to name.
    """
    left = [size for size in reversed(ladder(sizes)) if size not in rates]
    return () if any(rates.values()) else tuple(left[:AT_ONCE])
