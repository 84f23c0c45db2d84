"""Rows of a net made axis by axis: operators take what is wished, or lie as inputs do; the rest lies between them.

A strategy with a name is a wish for every operator. What it does not wish for follows: a copy takes the place that
costs its neighbours least, a parameter the place in which it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

import numpy as np

from symconfig.cost.partition.work import Rows
from symconfig.descriptor.mesh import Axis
from symconfig.graph.program.net import PARTIAL, WHOLE, Link, Net, Node, Place

NEVER = 4.0  # of a tensor: more than any change of places that can be had


@dataclass(frozen=True, slots=True)
class Arrival:
    """Where the axis lies in an input of a node, as its producer leaves it."""

    port: int
    place: int


# Options of an operator's node in order of preference; the first that fits is taken, and "whole" without one.
Wish = Callable[[int, Sequence[Arrival]], Iterable[int]]
Stage = Callable[[int], int]  # of a parameter's node: the ZeRO stage in which it lies where all ranks read it whole


@dataclass
class Settling:
    """Rows in the making, [nodes, axes]. parts: of each node, what its axes have cut so far, by option and by dim."""

    net: Net
    axes: Sequence[Axis]
    rows: Rows = field(init=False)
    parts: list[dict[object, int]] = field(init=False)

    def __post_init__(self) -> None:
        self.rows = np.zeros((len(self.net.nodes), len(self.axes)), np.int64)
        self.parts = [{} for _ in self.net.nodes]

    def forked(self) -> Settling:
        """The same, to be settled otherwise from here on."""
        other = copy(self)
        other.rows, other.parts = self.rows.copy(), [dict(parts) for parts in self.parts]
        return other

    @cached_property
    def order(self) -> tuple[int, ...]:
        """The operators' nodes, each after what it reads; of a repeat its first instance counts."""
        return tuple(dict.fromkeys(self.net.node_of))

    def fits(self, index: int, option: int, axis: int) -> bool:
        """Whether the node's option, and every dim that it cuts, can be cut once more along the axis."""
        node, size, parts = self.net.nodes[index], self.axes[axis].size, self.parts[index]
        limit = node.options[option].parts
        if limit and limit % (parts.get(option, 1) * size):
            return False
        return all(
            port.sizes[at] % (parts.get((number, at), 1) * size) == 0
            for number, port in enumerate(node.ports)
            if (at := port.places[option].forward) >= 0
        )

    def take(self, index: int, option: int, axis: int) -> None:
        self.rows[index, axis] = option
        if not option:
            return
        parts, size = self.parts[index], self.axes[axis].size
        parts[option] = parts.get(option, 1) * size
        for number, port in enumerate(self.net.nodes[index].ports):
            at = port.places[option].forward
            if at >= 0:
                parts[number, at] = parts.get((number, at), 1) * size

    def axis(self, axis: int, wish: Wish, stage: Stage) -> None:
        """Settles every node along one axis."""
        done: set[int] = set()
        for index in self.order:
            arrivals = self._arrivals(index, axis, done)
            wished = (option for option in wish(index, arrivals) if self.fits(index, option, axis))
            self.take(index, next(wished, 0), axis)
            done.add(index)
        for index, node in enumerate(self.net.nodes):
            if node.copy:
                self.take(index, self._best(index, range(len(node.options)), axis), axis)
        for index, node in enumerate(self.net.nodes):  # after the copies: a parameter lies as its copy asks
            if node.parameter is not None:
                self.take(index, self.as_read(index, axis, stage(index)), axis)

    def _arrivals(self, index: int, axis: int, done: set[int]) -> list[Arrival]:
        """Of an operator's inputs those whose producers are settled, through copies."""
        result = []
        for number in self.net.links_of[index]:
            link = self.net.links[number]
            if link.consumer != index:
                continue
            producer, given = link.producer, link.given
            if self.net.nodes[producer].copy:
                source = self._source(producer)
                producer, given = (source.producer, source.given) if source else (producer, given)
            if producer in done:
                place = self.net.nodes[producer].ports[given].places[self.rows[producer, axis]]
                result.append(Arrival(link.taken, place.forward))
        return result

    def _source(self, copy: int) -> Link | None:
        return next((self.net.links[n] for n in self.net.links_of[copy] if self.net.links[n].consumer == copy), None)

    def as_read(self, index: int, axis: int, stage: int) -> int:
        """Of a parameter where it is read; where ranks with data of their own read all of it, flat in a stage."""
        options = self.net.nodes[index].options
        best = self._best(index, [option for option, what in enumerate(options) if not what.zero], axis)
        if best or not self._reduced(index, axis):
            return best
        return next((option for option, what in enumerate(options) if stage and what.zero == stage), 0)

    def _best(self, index: int, among: Iterable[int], axis: int) -> int:
        """The option that costs least with what the neighbours have taken; of equals the first."""
        able = (option for option in among if self.fits(index, option, axis))
        return min(able, key=lambda option: (self._cost(index, option, axis), option))

    def _reduced(self, index: int, axis: int) -> bool:
        """Whether ranks along the axis read all of a tensor for data of their own."""
        return any(self._other(number, index, axis).backward == PARTIAL for number in self.net.links_of[index])

    def read_in_parts(self, index: int, axis: int) -> bool:
        """Whether a reader of a parameter has a part of it only."""
        return any(self._other(number, index, axis).forward >= 0 for number in self.net.links_of[index])

    def _other(self, number: int, index: int, axis: int) -> Place:
        """The place at the other end of a link."""
        link = self.net.links[number]
        node, port = (link.consumer, link.taken) if link.producer == index else (link.producer, link.given)
        return self.net.nodes[node].ports[port].places[int(self.rows[node, axis])]

    def _cost(self, index: int, option: int, axis: int) -> float:
        """Changes of places on all links of a node, in units of the tensor."""
        total, size, nodes = 0.0, self.axes[axis].size, self.net.nodes
        for number in self.net.links_of[index]:
            link = self.net.links[number]
            outgoing = link.producer == index
            if not outgoing and nodes[link.producer].parameter is not None:
                continue  # it is settled after its copies
            mine = nodes[index].ports[link.given if outgoing else link.taken].places[option]
            other = self._other(number, index, axis)
            made, used = (mine, other) if outgoing else (other, mine)
            total += link.times * move(made.forward, used.forward, size)
            if nodes[link.producer].ports[link.given].tensor.gradient:
                total += link.times * move(used.backward, made.backward, size)
        return total


def move(before: int, after: int, size: int) -> float:
    """What a rank sends to change the place of an axis of `size` ranks, over the tensor that lies on it whole."""
    if before == after or (before == WHOLE and after != PARTIAL):
        return 0.0
    if after == PARTIAL:
        return NEVER
    share = (size - 1) / size
    if before == PARTIAL:
        return 2 * share if after == WHOLE else share
    return share if after == WHOLE else share / size


def matching(node: Node, arrivals: Sequence[Arrival]) -> list[int]:
    """An operator's options by how many elements then lie as they arrive, most first; none without any."""
    found: dict[int, int] = {}
    for arrival in arrivals:
        port = node.ports[arrival.port]
        for option, place in enumerate(port.places):
            if arrival.place >= 0 and place.forward == arrival.place:
                found[option] = found.get(option, 0) + prod(port.sizes)
    return sorted(found, key=lambda option: (-found[option], option))
