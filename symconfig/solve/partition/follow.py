"""Rows of a net made axis by axis: operators take what is wished, or lie as inputs do; the rest lies between them.

A strategy with a name is a wish for every operator. What it does not wish for follows: a copy takes the place that
costs its neighbours least, a parameter the place in which it is read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property, lru_cache

import numpy as np

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


@dataclass
class Settling:
    """Rows under construction, [nodes, axes].

    parts: into how many parts the axes so far split each loop and dim, by the keys of `_cuts`.
    """

    net: Net
    axes: Sequence[Axis]
    rows: Rows = field(init=False)
    parts: defaultdict[tuple[int, object], int] = field(init=False)

    def __post_init__(self) -> None:
        self.rows = np.zeros((len(self.net.nodes), len(self.axes)), np.int64)
        self.parts = defaultdict(lambda: 1)

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Return the operators' nodes in program order; a folded repeat at its first instance."""
        return tuple(dict.fromkeys(self.net.node_of))

    def _cuts(self, index: int, option: int) -> Iterator[tuple[tuple[int, object], int]]:
        """Yield (key, limit) of everything that an option splits: the node's loop and the dims of its tensors.

        The number of parts must divide the limit; 0: any number.
        """
        node = self.net.nodes[index]
        if option:
            yield (index, option), node.options[option].parts
        for at, port in enumerate(node.ports):
            place = port.places[option].forward
            if place >= 0:
                yield (index, (at, place)), port.sizes[place]

    def fits(self, index: int, option: int, axis: int) -> bool:
        """Return whether a node's option divides its dims along an axis, given the axes taken so far."""
        size = self.axes[axis].size
        return all(most % (self.parts[cut] * size) == 0 for cut, most in self._cuts(index, option))

    def cut(self, index: int, option: int) -> int:
        """Return the number of parts into which an operator's option has split its loops so far."""
        return self.parts[index, option]

    def take(self, index: int, option: int, axis: int) -> None:
        self.rows[index, axis] = option
        for what, _ in self._cuts(index, option) if option else ():
            self.parts[what] *= self.axes[axis].size

    def axis(self, axis: int, wish: Wish, stage: Stage) -> None:
        """Choose an option for every node on one axis: operators by wish, then copies and parameters by least cost.

        An operator takes its first wish that fits, else is not split. stage: ZeRO stage of a parameter's node.
        """
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
        """Return the places of an operator's inputs whose producers are in `done`, looking through copies."""
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
        """Return a parameter's option that matches how it is read; if data ranks read all of it, flat at this stage.

        Option 0 (whole) if it is read whole and `stage` is 0 or the parameter has no flat option of this ZeRO stage.
        """
        options = self.net.nodes[index].options
        best = self._best(index, [option for option, what in enumerate(options) if not what.zero], axis)
        if best or not any(self._other(number, index, axis).backward == PARTIAL for number in self.net.links_of[index]):
            return best
        return next((option for option, what in enumerate(options) if stage and what.zero == stage), 0)

    def _best(self, index: int, among: Iterable[int], axis: int) -> int:
        """Return the option that fits and costs least with the neighbours' current options; of equals the first.

        Raises ValueError if none of `among` fits.
        """
        able = (option for option in among if self.fits(index, option, axis))
        return min(able, key=lambda option: (self._cost(index, option, axis), option))

    def read_in_parts(self, index: int, axis: int) -> bool:
        """Return whether a reader of the parameter splits it along this axis."""
        return any(self._other(number, index, axis).forward >= 0 for number in self.net.links_of[index])

    def _other(self, number: int, index: int, axis: int) -> Place:
        """Return the place of a link's tensor at its other end, on this axis."""
        link = self.net.links[number]
        node, port = (link.consumer, link.taken) if link.producer == index else (link.producer, link.given)
        return self.net.nodes[node].ports[port].places[int(self.rows[node, axis])]

    def _cost(self, index: int, option: int, axis: int) -> float:
        """Return what ranks send over a node's links with this option, in multiples of the tensors.

        Gradients on the way back are included.
        """
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
    """Return what a rank sends to change a tensor's place on an axis of `size` ranks, as a multiple of the tensor.

    NEVER if a tensor that is not partial would have to become partial.
    """
    if after == PARTIAL != before:
        return NEVER
    given, share = Fraction(1, size if cut(before) else 1), (size - 1) / size
    return sum(
        (k.passes * share / larger.denominator for k, _, larger in changes([before], [after], given, [size])), 0.0
    )


def matching(node: Node, arrivals: Sequence[Arrival]) -> list[int]:
    """Return an operator's options that keep inputs split as they arrive, by number of elements kept, most first.

    Empty if no input arrives split. Options are not checked to fit.
    """
    lying: dict[int, int] = {}
    for arrival in arrivals:
        port = node.ports[arrival.port]
        for option, place in enumerate(port.places):
            if arrival.place >= 0 and place.forward == arrival.place:
                lying[option] = lying.get(option, 0) + port.elements
    return sorted(lying, key=lambda option: (-lying[option], option))
