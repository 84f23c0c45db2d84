"""An order in which every operator comes after what it reads, and the cycles where there is none."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush


@dataclass(frozen=True, slots=True)
class Order:
    """order: of the indices neither on a cycle nor behind one; the smallest first among those that could come next.

    cycles: one of each knot, as data flows.
    """

    order: tuple[int, ...]
    cycles: tuple[tuple[int, ...], ...]


def in_order(reads: Sequence[Iterable[str]], makes: Sequence[Iterable[str]]) -> Order:
    """Order indices. reads, makes: names, for each index. What nobody makes is there from the start."""
    maker = {name: index for index, names in enumerate(makes) for name in names}
    before = [{maker[name] for name in names if name in maker} for names in reads]
    after: list[list[int]] = [[] for _ in before]
    for index, sources in enumerate(before):
        for source in sources:
            after[source].append(index)
    waits = [len(sources) for sources in before]
    ready = [index for index, count in enumerate(waits) if not count]
    heapify(ready)
    order = []
    while ready:
        index = heappop(ready)
        order.append(index)
        for reader in after[index]:
            waits[reader] -= 1
            if not waits[reader]:
                heappush(ready, reader)
    return Order(tuple(order), tuple(_cycles(set(range(len(before))) - set(order), before, after)))


def _cycles(left: set[int], before: Sequence[set[int]], after: Sequence[list[int]]) -> Iterator[tuple[int, ...]]:
    """Yield a shortest cycle through the first index of each knot (of indices that all read one another over
    some way).
    """
    idle = deque(index for index in left if not left.intersection(after[index]))
    while idle:  # behind a cycle, on none
        index = idle.popleft()
        left.discard(index)
        idle.extend(source for source in before[index] & left if not left.intersection(after[source]))
    for start in sorted(left):
        if start in left and (cycle := _cycle(start, left, before)):
            yield cycle
            left -= _reached(start, left, before) & _reached(start, left, after)


def _cycle(start: int, left: set[int], before: Sequence[set[int]]) -> tuple[int, ...]:
    """Return the cycle as data flows, ending in `start`; empty: it lies between two cycles."""
    reader: dict[int, int] = {}
    queue = deque([start])
    while queue:
        index = queue.popleft()
        for source in sorted(before[index] & left):
            if source == start:
                path = [index]
                while path[-1] != start:
                    path.append(reader[path[-1]])
                return tuple(path)
            if source not in reader:
                reader[source] = index
                queue.append(source)
    return ()


def _reached(start: int, left: set[int], step: Sequence[Collection[int]]) -> set[int]:
    reached, stack = {start}, [start]
    while stack:
        for index in step[stack.pop()]:
            if index in left and index not in reached:
                reached.add(index)
                stack.append(index)
    return reached
