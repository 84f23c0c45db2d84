"""Published strategies as rows of a network, an oracle for tests and tools: data parallel and ZeRO, Megatron's tensor,
sequence, context and expert parallelism, DeepSpeed's Ulysses, GShard's experts; and random strategies.

Operators take what the strategy wishes for, axis by axis, or lie as their inputs do; a copy takes the place that costs
its neighbours least, a parameter the place in which it is read. Dims are known by the names of `graph.dims`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np

from symconfig.cost.partition.work import Rows
from symconfig.descriptor.mesh import Axis
from symconfig.graph import dims as d
from symconfig.graph.layout import PARTIAL, changes, cut
from symconfig.graph.operator import Operator, Work
from symconfig.graph.parts import parts
from symconfig.graph.program.net import Link, Net, Node, Place
from symconfig.plans.configuration import Configuration

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


@dataclass(frozen=True, slots=True)
class Way:
    """Configuration of parallelism without a pipeline. cp_comm a2a: heads are split instead of keys gathered (Ulysses).

    zero: ZeRO stage of parameters over the ranks with data of their own.
    """

    degrees: Configuration
    sequence_parallel: bool = False
    cp_comm: str = "p2p"
    zero: int = 0


def way(tp: int = 1, cp: int = 1, dp: int = 1, ep: int = 1, etp: int = 1, **options: Any) -> Way:
    return Way(Configuration(tp=tp, cp=cp, ep=ep, etp=etp, dp=dp, micro=1, global_batch=dp, seq_length=1), **options)


def splitting(node: Node, loops: Iterable[str]) -> list[int]:
    """Return the node's options that split at least one of these loops."""
    return [o for o, what in enumerate(node.options) if what.split is not None and {*loops} & {*what.split.loops}]


def attends(op: Operator) -> bool:
    return op.work is Work.ATTENTION or d.KEYS in op.loops


class Roles:
    """What an axis of each role (tp, sp, cp, a2a, dp; etp, ep, edp inside experts) splits at every operator."""

    def __init__(self, net: Net) -> None:
        program, self.net = net.program, net
        self.batch, self.sequence = program.batch, frozenset({d.SEQUENCE})
        weights = {parameter.tensor.name for parameter in program.parameters}
        self.experts: set[str] = set()
        for op in program.operators:
            uses = (*op.inputs, *op.outputs)
            given = [{*use.loops} for use in uses if use.name in weights]
            others = [{*use.loops} for use in uses if use.name not in weights]
            if op.work is Work.MATMUL and given and {*op.contracted} <= others[0]:
                shared = given[0].intersection(*others)
                self.experts |= {loop for loop in shared if program.sizes[loop] > 1}
        self.inside = [self._inside(node, weights) for node in net.nodes]

    def _inside(self, node: Node, weights: set[str]) -> bool:
        if node.copy or not self.experts:
            return False
        uses = [port.tensor for port in node.ports if port.tensor.name not in weights or node.parameter is not None]
        return all(self.experts & {*tensor.dims} for tensor in uses)

    def wish(self, index: int, arrivals: Sequence[Arrival], dense: str, expert: str) -> list[int]:
        """Return an operator's options in order of preference; empty if the role leaves it whole."""
        node, role = self.net.nodes[index], expert if self.inside[index] else dense
        assert node.operator is not None
        wanted = self.due(index, role)
        if wanted or (role == "a2a" and attends(node.operator)):
            return wanted
        if role in ("dp", "cp", "a2a", "sp"):
            gathers = {d.WHOLE_VOCAB, d.GATHERED} & {*node.operator.loops}
            dims = self.batch if role == "dp" else self.sequence
            return [] if role == "sp" and gathers else [*splitting(node, dims), *self._follow(node, arrivals, dims)]
        return matching(node, arrivals) if role == "edp" else []

    def due(self, index: int, role: str) -> list[int]:
        """Return the options that the role has to take at an operator; empty if it does not concern it."""
        node = self.net.nodes[index]
        assert node.operator is not None
        if role in ("tp", "sp"):
            return splitting(node, parts().tensor_dims)
        if role in ("etp", "ep"):
            return splitting(node, d.EXPERT_TENSOR_DIMS if role == "etp" else self.experts)
        if role == "dp":
            return [o for o in splitting(node, self.batch) if not self.sequence & {*node.options[o].split.loops}]  # type: ignore[union-attr]
        if role == "a2a" and attends(node.operator):
            other = self.batch | self.sequence | {d.KEYS, *node.operator.contracted}
            able = [o for o, what in enumerate(node.options) if what.split and not other & {*what.split.loops}]
            return sorted(able, key=lambda option: node.options[option].name not in (d.HEADS, d.KV_HEADS))
        if role in ("cp", "a2a"):
            split = splitting(node, self.sequence)
            return split or (splitting(node, parts().exchanged_dims) if d.SEQUENCE in node.operator.loops else [])
        return []

    def _follow(self, node: Node, arrivals: Sequence[Arrival], dims: frozenset[str]) -> list[int]:
        """Return options that keep inputs split as they arrive, the program's own inputs split along `dims`."""
        fed = [
            Arrival(at, next((p for p, dim in enumerate(port.tensor.dims) if dim in dims), -1))
            for at, port in enumerate(node.ports)
            if not port.output and port.tensor.name in self.net.program.inputs
        ]
        led = [arrival for arrival in arrivals if not self.experts & {*node.ports[arrival.port].tensor.dims}]
        return matching(node, [*fed, *led])


def rows_of_way(net: Net, axes: Sequence[Axis], chosen: Way) -> Rows | None:
    """Return the rows that degrees give a network, [nodes, axes]: tp, cp, dp and etp, ep, edp from the inner axes out.

    None if the degrees do not fit the axes or an operator cannot be split as a role has to split it.
    """
    degrees = chosen.degrees
    tensor, context = "sp" if chosen.sequence_parallel else "tp", "a2a" if chosen.cp_comm == "a2a" else "cp"
    dense = _along(axes, ((degrees.tp, tensor), (degrees.cp, context), (degrees.dp, "dp")))
    expert = _along(axes, ((degrees.etp, "etp"), (degrees.ep, "ep"), (degrees.edp, "edp")))
    if dense is None or expert is None:
        return None
    roles, making = Roles(net), Settling(net, axes)
    for number, (mine, theirs) in enumerate(zip(dense, expert, strict=True)):
        shards = (mine in ("dp", "cp", "a2a"), theirs == "edp")

        def wish(index: int, arrivals: Sequence[Arrival], mine: str = mine, theirs: str = theirs) -> list[int]:
            return roles.wish(index, arrivals, mine, theirs)

        def stage(index: int, shards: Sequence[bool] = shards) -> int:
            return chosen.zero if shards[roles.inside[index]] else 0

        making.axis(number, wish, stage)
    for index, node in enumerate(net.nodes):
        for number, role in enumerate(expert if roles.inside[index] else dense) if node.operator is not None else ():
            if (due := roles.due(index, role)) and making.rows[index, number] not in due:
                return None
    return making.rows


def _along(axes: Sequence[Axis], wanted: Sequence[tuple[int, str]]) -> list[str] | None:
    """Return each axis's role, innermost first; None if a degree does not end at an axis."""
    ends = list(accumulate((axis.size for axis in axes), int.__mul__))
    edges = list(accumulate((degree for degree, _ in wanted), int.__mul__))
    if edges[-1] != (ends[-1] if ends else 1) or not {*edges} <= {1, *ends}:
        return None
    return [next(role for edge, (_, role) in zip(edges, wanted, strict=True) if end <= edge) for end in ends]


NAMES = ("data", "zero1", "zero2", "zero3", "megatron-tp", "megatron-tp-sp", "gshard", "ulysses", "context")


def named_rows(net: Net, axes: Sequence[Axis], name: str, chosen: Way | None = None) -> Rows | None:
    """Return the rows of a named strategy, [nodes, axes], or None if program or mesh does not allow it.

    chosen: degrees to use; None: the largest that work, tensor parallelism within the innermost level.
    """
    if name == "spatial":
        return _spatial(net, axes)
    ranks, level = prod(axis.size for axis in axes), sum(axis.level == axes[0].level for axis in axes)
    most = {"megatron-tp": level, "megatron-tp-sp": level, "gshard": len(axes), "ulysses": len(axes)}.get(name, 0)
    for inner in [prod(axis.size for axis in axes[:n]) for n in range(most, 0, -1)] or [1]:
        made = chosen or {
            "megatron-tp": way(inner, dp=ranks // inner),
            "megatron-tp-sp": way(inner, dp=ranks // inner, sequence_parallel=True),
            "gshard": way(dp=ranks, ep=inner),
            "ulysses": way(cp=inner, dp=ranks // inner, cp_comm="a2a"),
            "context": way(cp=ranks, cp_comm="all_gather"),
        }.get(name, way(dp=ranks, zero=int(name[-1]) if name.startswith("zero") else 0))
        rows = rows_of_way(net, axes, made)
        if rows is not None or chosen is not None:
            return rows
    return None


def _spatial(net: Net, axes: Sequence[Axis]) -> Rows:
    """Return rows that give each axis to the window's dim with most rows per part left, else to the batch."""
    windows = {split.loops[0] for op in net.program.operators for split in op.splits if split.halo}
    making = Settling(net, axes)
    for number in range(len(axes)):

        def wish(index: int, arrivals: Sequence[Arrival]) -> list[int]:
            node = net.nodes[index]
            able = [o for o in splitting(node, windows) if node.options[o].parts]
            able.sort(key=lambda o: (-node.options[o].parts / making.parts[index, o], o))
            return [*able, *matching(node, arrivals), *splitting(node, net.program.batch)]

        making.axis(number, wish, lambda index: 0)
    return making.rows


def random_rows(net: Net, axes: Sequence[Axis], seed: int, flat: bool = True) -> Rows:
    """Return a random strategy, [nodes, axes], with options that fit; deterministic for a seed.

    A parameter that is read in parts along an axis is split as it is read; without `flat`, every parameter is.
    """
    making, source = Settling(net, axes), np.random.default_rng(seed)
    order = sorted(range(len(net.nodes)), key=lambda index: net.nodes[index].parameter is not None)
    for number in range(len(axes)):
        for index in order:
            options = net.nodes[index].options
            split = net.nodes[index].parameter is not None and making.read_in_parts(index, number)
            able = [option for option in range(len(options)) if making.fits(index, option, number)]
            if split or (net.nodes[index].parameter is not None and not flat):
                able = [making.as_read(index, number, 0)]
            making.take(index, int(source.choice(able)), number)
    return making.rows
