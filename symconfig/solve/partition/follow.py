"""Rows of a net made axis by axis: operators take what is wished, or lie as inputs do; the rest lies between them.

A strategy with a name is a wish for every operator. What it does not wish for follows: a copy takes the place that
costs its neighbours least, a parameter the place in which it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from symconfig.cost.partition.work import Rows
from symconfig.descriptor.mesh import Axis
from symconfig.graph.layout import PARTIAL, changes, cut
from symconfig.graph.program.net import Link, Net, Node, Place

NEVER = 4.0  # of a tensor: more than any change of places that can be had


@dataclass(frozen=True, slots=True)
class Arrival:
    """Where the axis lies in an input of a node, as its producer leaves it."""

    port: int
    place: int


# Options of an operator's node in order of preference; the first that fits is taken, and "whole" without one.
Wish = Callable[[int, Sequence[Arrival]], Iterable[int]]
Stage = Callable[[int], int]  # of a parameter's node: the ZeRO stage in which it lies where all ranks read it whole


class _Cuts:
    """The cuts of options, each with how often it may be taken: a loop by the option's own limit, and dims of tensors.

    limits: of all cuts; 0: none. members: [options of all nodes, cuts of each], filled up with one that has no limit.
    """

    def __init__(self, net: Net) -> None:
        numbers: dict[tuple[int, object], int] = {}
        limits: list[int] = []
        every: list[list[int]] = []
        self.first: list[int] = []
        for index, node in enumerate(net.nodes):
            self.first.append(len(every))
            for number, option in enumerate(node.options):
                cuts = [(number, option.parts)]
                ports = ((at, port, port.places[number].forward) for at, port in enumerate(node.ports))
                dims = [((at, place), port.sizes[place]) for at, port, place in ports if place >= 0]
                mine = []
                for what, limit in (*cuts, *dims) if number else dims:
                    if (index, what) not in numbers:
                        numbers[index, what] = len(limits)
                        limits.append(limit)
                    mine.append(numbers[index, what])
                every.append(mine)
        width = max(map(len, every), default=0)
        self.limits = np.array([*limits, 0], dtype=np.int64)
        filled = [cuts + [len(limits)] * (width - len(cuts)) for cuts in every]
        self.members = np.array(filled, dtype=np.int64).reshape(len(every), width)
        self.starts = np.array(self.first, dtype=np.int64)


@dataclass
class Settling:
    """Rows in the making, [nodes, axes]. parts: what all axes have cut so far, by cut."""

    net: Net
    axes: Sequence[Axis]
    rows: Rows = field(init=False)
    cuts: _Cuts = field(init=False)
    parts: Rows = field(init=False)
    _able: tuple[int, list[bool]] = field(init=False, default=(-1, []))

    def __post_init__(self) -> None:
        self.rows = np.zeros((len(self.net.nodes), len(self.axes)), np.int64)
        self.cuts = _Cuts(self.net)
        self.parts = np.ones(len(self.cuts.limits), np.int64)

    def forked(self) -> Settling:
        """Return the same, to be settled otherwise from here on."""
        other = copy(self)
        other.rows, other.parts, other._able = self.rows.copy(), self.parts.copy(), (-1, [])
        return other

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Return the operators' nodes, each after what it reads; of a repeat its first instance counts."""
        return tuple(dict.fromkeys(self.net.node_of))

    def able(self, axis: int) -> NDArray[np.bool_]:
        """Tell whether all that an option cuts can be cut once more along the axis: [options of all nodes]."""
        whole = self.cuts.limits % (self.parts * self.axes[axis].size) == 0
        return np.asarray(whole[self.cuts.members].all(axis=1))

    def fits(self, index: int, option: int, axis: int) -> bool:
        """Tell whether a node's option can be taken along an axis, after all axes before."""
        if self._able[0] != axis:
            self._able = axis, self.able(axis).tolist()
        return self._able[1][self.cuts.first[index] + option]

    def cut(self, index: int, option: int) -> int:
        """Return into how many parts an option of an operator has cut its loops."""
        return int(self.parts[self.cuts.members[self.cuts.first[index] + option, 0]])

    def take(self, index: int, option: int, axis: int) -> None:
        self.rows[index, axis] = option
        if option:
            self._more(self.cuts.members[self.cuts.first[index] + option], axis)

    def put(self, axis: int, options: Rows) -> None:
        """Take an option of every node at once, where none is taken along the axis."""
        self.rows[:, axis] = options
        some = np.flatnonzero(options)
        self._more(self.cuts.members[self.cuts.starts[some] + options[some]], axis)

    def _more(self, cuts: Rows, axis: int) -> None:
        self.parts[cuts] *= self.axes[axis].size
        self.parts[-1] = 1  # what fills up is no cut

    def axis(self, axis: int, wish: Wish, stage: Stage) -> None:
        """Settle every node along one axis."""
        self._able = axis, self.able(axis).tolist()
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
        """Return the arrivals of an operator's inputs whose producers are settled, through copies."""
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
        """Return a parameter's option where it is read; where ranks with data of their own read all of it, flat in a
        stage.
        """
        options = self.net.nodes[index].options
        best = self._best(index, [option for option, what in enumerate(options) if not what.zero], axis)
        if best or not any(self._other(number, index, axis).backward == PARTIAL for number in self.net.links_of[index]):
            return best
        return next((option for option, what in enumerate(options) if stage and what.zero == stage), 0)

    def _best(self, index: int, among: Iterable[int], axis: int) -> int:
        """Return the option that costs least with what the neighbours have taken; of equals the first."""
        able = (option for option in among if self.fits(index, option, axis))
        return min(able, key=lambda option: (self._cost(index, option, axis), option))

    def read_in_parts(self, index: int, axis: int) -> bool:
        """Tell whether a reader of a parameter has a part of it only."""
        return any(self._other(number, index, axis).forward >= 0 for number in self.net.links_of[index])

    def _other(self, number: int, index: int, axis: int) -> Place:
        """Return the place at the other end of a link."""
        link = self.net.links[number]
        node, port = (link.consumer, link.taken) if link.producer == index else (link.producer, link.given)
        return self.net.nodes[node].ports[port].places[int(self.rows[node, axis])]

    def _cost(self, index: int, option: int, axis: int) -> float:
        """Return the changes of places on all links of a node, in units of the tensor."""
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


@lru_cache(maxsize=4096)
def move(before: int, after: int, size: int) -> float:
    """Return what a rank sends to change the place of an axis of `size` ranks, over the tensor that lies on it
    whole.
    """
    if after == PARTIAL != before:
        return NEVER
    given, share = Fraction(1, size if cut(before) else 1), (size - 1) / size
    return sum(
        (k.passes * share / larger.denominator for k, _, larger in changes([before], [after], given, [size])), 0.0
    )


def matching(node: Node, arrivals: Sequence[Arrival]) -> list[int]:
    """Return an operator's options by how many elements then lie as they arrive, most first; none without any."""
    lying: dict[int, int] = {}
    for arrival in arrivals:
        port = node.ports[arrival.port]
        for option, place in enumerate(port.places):
            if arrival.place >= 0 and place.forward == arrival.place:
                lying[option] = lying.get(option, 0) + port.elements
    return sorted(lying, key=lambda option: (-lying[option], option))
