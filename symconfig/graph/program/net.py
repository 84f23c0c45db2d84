"""A program as a network to be split: what a mesh axis can do at every node, and how that leaves every tensor.

Nodes are operators, parameters, and tensors that several operators read (a copy, so that what is gathered for one is
there for all). Along one mesh axis a node takes one *option*; it says for each of the node's tensors where the axis
lies in it, forward and backward. A *row* gives an option for every axis: that is the node's strategy.

Forward and backward mirror each other: where forward every rank has the whole and works on its own part, the gradient
comes out as partial sums; where forward there are partial sums, each rank needs the whole gradient. All collectives
follow from the places at the two ends of a link.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from symconfig.graph.layout import FLAT, PARTIAL, WHOLE
from symconfig.graph.operator import Operator, Split, Tensor, Use
from symconfig.graph.program.program import Parameter, Program


class Place(NamedTuple):
    """Hold an axis's place in a tensor and in its gradient: the position of the dim that it shards, or WHOLE
    (replicated), PARTIAL or FLAT.
    """

    forward: int
    backward: int


@dataclass(frozen=True, slots=True)
class Option:
    """Describe one mesh axis's use at a node. parts: the most parts into which all axes together may split it; 0: no
    limit.

    split: for an operator, the loops that the axis splits. zero: for a parameter, the ZeRO stage: optimizer state
    (1), gradients (2) and weights (3) sharded flat over the axis, each with those before it.
    """

    name: str
    split: Split | None = None
    parts: int = 0
    zero: int = 0


@dataclass(frozen=True)
class Port:
    """Hold a tensor at a node, with the axis's place for each option. output: the node makes the tensor."""

    tensor: Tensor
    sizes: tuple[int, ...]
    places: tuple[Place, ...]
    output: bool

    @cached_property
    def elements(self) -> int:
        return prod(self.sizes)

    @property
    def bytes(self) -> float:
        return self.elements * self.tensor.element_bytes

    @cached_property
    def forward(self) -> NDArray[np.int64]:
        """Return the forward place of each option: [options]."""
        return np.array([place.forward for place in self.places], dtype=np.int64)

    @cached_property
    def backward(self) -> NDArray[np.int64]:
        """Return the backward place (in the gradient) of each option: [options]."""
        return np.array([place.backward for place in self.places], dtype=np.int64)

    @cached_property
    def alike(self) -> NDArray[np.int64]:
        """Return an index for each option, equal for options with the same place: [options]."""
        known: dict[Place, int] = {}
        return np.array([known.setdefault(place, len(known)) for place in self.places], dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Fixed:
    """Constrain a node's strategy: the product of the sizes of the axes that take one of some options. options: whether
    each option is one of them. parts: that product. level: the axes' level; "": all levels.
    """

    options: tuple[bool, ...]
    parts: int
    level: str = ""


@dataclass(frozen=True)
class Node:
    """Describe a node. times: number of nodes of the whole program that it stands for. run: the repeat that it is part
    of, or -1. weight: for a copy, whether it copies a parameter. fixed: constraints on its strategy; empty: free.
    """

    name: str
    options: tuple[Option, ...]
    ports: tuple[Port, ...]  # inputs, then outputs, then residues
    operator: Operator | None = None
    parameter: Parameter | None = None
    times: int = 1
    run: int = -1
    weight: bool = False
    fixed: tuple[Fixed, ...] = ()

    @property
    def copy(self) -> bool:
        """Return whether the node is a copy: it has neither an operator nor a parameter."""
        return self.operator is None and self.parameter is None

    @cached_property
    def splits(self) -> Mapping[str, NDArray[np.bool_]]:
        """Return, by loop, whether each option splits it ([options]); loops that no option splits are absent."""
        members: dict[str, list[bool]] = {}
        for index, option in enumerate(self.options):
            for loop in option.split.loops if option.split else ():
                members.setdefault(loop, [False] * len(self.options))[index] = True
        return {loop: np.array(those) for loop, those in members.items()}


@dataclass(frozen=True, slots=True)
class Link:
    """Describe a tensor on its way from the port of one node to that of another.

    saved: the consumer (or one after a copy node) reads it in its backward. covered: it is kept anyway, by its
    producer or before the copy. inside: both ends are in one instance of a repeat. enters: it enters an instance
    from another one or from elsewhere.
    """

    producer: int
    given: int  # port
    consumer: int
    taken: int
    times: int
    saved: bool
    covered: bool
    inside: bool
    enters: bool


@dataclass(frozen=True)
class Net:
    """Hold the nodes and links of a program. node_of, parameter_of: for each operator and parameter of the program its
    node. instances: number of instances of each repeat.
    """

    program: Program
    nodes: tuple[Node, ...]
    links: tuple[Link, ...]
    node_of: tuple[int, ...]
    parameter_of: tuple[int, ...]
    instances: tuple[int, ...]

    @cached_property
    def links_of(self) -> tuple[tuple[int, ...], ...]:
        """Return, for each node, the indices of the links that begin or end at it."""
        result: list[list[int]] = [[] for _ in self.nodes]
        for index, link in enumerate(self.links):
            result[link.producer].append(index)
            if link.consumer != link.producer:
                result[link.consumer].append(index)
        return tuple(map(tuple, result))


def net(program: Program, classes: Sequence[int] | None = None, runs: Sequence[tuple[int, int, int]] = ()) -> Net:
    """Return the network of a program: nodes of parameters and operators, and the links between them with their counts.

    A tensor with several consumers goes through a copy. Program inputs are not linked, nor are tensors that nothing
    reads. Nodes that are alike are one: operators of one class, parameters (trainable alike) and copies with the same
    consumers; `times` counts them.

    Args:
        classes: for each operator the number of its class. Operators of one class are one node and take one
            strategy, so they must have equal structure. Default: each operator by itself.
        runs: (first operator, operators per instance, instances) of each repeat; they only tell which links stay
            inside an instance or enter one. Operators of several instances are one node only by `classes`.
    """
    operators, weights = program.operators, {one.tensor.name: one for one in program.parameters}
    classes = classes if classes is not None else range(len(operators))
    place = [(-1, 0)] * len(operators)  # each operator's repeat, and which instance of it
    for run, (start, period, times) in enumerate(runs):
        for offset in range(period * times):
            place[start + offset] = (run, offset // period)
    uses: dict[str, list[tuple[int, int]]] = {}  # of each tensor (operator, port) of its consumers
    for index, op in enumerate(operators):
        for at, operand in enumerate(op.inputs):
            uses.setdefault(operand.name, []).append((index, at))
    numbers, nodes, links = (
        dict[object, int](),
        list[Node](),
        Counter[tuple[int, int, int, int, bool, bool, bool, bool]](),
    )
    count = Counter[int]()

    def node(key: object, make: Callable[[], Node]) -> int:
        """Return the index of the node with this key, made if it is new, and count one more occurrence of it."""
        if key not in numbers:
            numbers[key] = len(nodes)
            nodes.append(make())
        count[numbers[key]] += 1
        return numbers[key]

    def run_of(*among: int) -> int:
        """Return the repeat that all these operators are in; -1 for none or several."""
        found = {place[index][0] for index in among}
        return found.pop() if len(found) == 1 else -1

    def link(source: tuple[int, int], tensor: str, producer: int | None) -> None:
        """Count the link of a tensor from its (node, port) to its consumer; with several consumers, to a copy node, and
        from that to each of them. producer: its operator; None: a parameter, whose links are neither saved nor
        entering.

        The copy's link has the flags of any consumer (`inside`: of all). Links from it are covered if the producer or
        any consumer keeps the tensor or it enters an instance.
        """
        consumers = uses[tensor]
        here = place[producer] if producer is not None else None
        kept = producer is not None and tensor in operators[producer].saved
        saves = [producer is not None and tensor in operators[index].saved for index, _ in consumers]
        inside = [place[index][0] >= 0 and here in (None, place[index]) for index, _ in consumers]
        enters = [place[index][0] >= 0 and here not in (None, place[index]) for index, _ in consumers]
        if len(consumers) == 1:
            index, at = consumers[0]
            links[(*source, node_of[index], at, saves[0], kept, inside[0], enters[0])] += 1
            return
        key = ("copy", source, tuple(sorted((node_of[index], at) for index, at in consumers)))
        run = run_of(*(index for index, _ in consumers), *([producer] if producer is not None else []))
        copied = nodes[source[0]].ports[source[1]].tensor
        copy = node(key, lambda: _of_copy(program, copied, run, producer is None))
        links[(*source, copy, 0, any(saves), kept, all(inside), any(enters))] += 1
        together = len({place[index] for index, _ in consumers}) == 1
        covered = kept or any(saves) or any(enters)
        for (index, at), saved, within in zip(consumers, saves, inside, strict=True):
            near = within or (together and place[index][0] >= 0)
            links[(copy, 1, node_of[index], at, saved, covered, near, False)] += 1

    used = {}
    for name, one in weights.items():
        mine = uses.get(name, [])
        readers = tuple(sorted((classes[index], at) for index, at in mine))
        key = ("parameter", readers, one.trainable) if mine else ("unused", name)
        run = run_of(*(index for index, _ in mine))
        used[name] = node(key, partial(_of_parameter, program, one, run))
    node_of = [
        node(("operator", classes[index]), partial(_of_operator, program, op, place[index][0]))
        for index, op in enumerate(operators)
    ]
    made = {use.name: (n, len(op.inputs) + at) for n, op in enumerate(operators) for at, use in enumerate(op.outputs)}
    for tensor in uses:
        if tensor in weights:
            link((used[tensor], 0), tensor, None)
        elif tensor in made:
            index, at = made[tensor]
            link((node_of[index], at), tensor, index)
    return Net(
        program=program,
        nodes=tuple([replace(one, times=count[number]) for number, one in enumerate(nodes)]),
        links=tuple([Link(*key[:4], times, *key[4:]) for key, times in links.items()]),
        node_of=tuple(node_of),
        parameter_of=tuple(used[one.tensor.name] for one in program.parameters),
        instances=tuple(times for _, _, times in runs),
    )


def resized(net: Net, program: Program) -> Net:
    """Return the network of a program that differs from `net.program` in sizes and in operators' traffic only: the
    nodes with its sizes, and the links, classes and repeats of `net`.
    """
    first = dict(zip(reversed(net.node_of), reversed(program.operators), strict=True))

    def made(index: int, node: Node) -> Node:
        if node.parameter is not None:
            return _of_parameter(program, node.parameter, node.run)
        if node.operator is not None:
            return _of_operator(program, first[index], node.run)
        return _of_copy(program, node.ports[0].tensor, node.run, node.weight)

    nodes = tuple([replace(made(index, node), times=node.times) for index, node in enumerate(net.nodes)])
    return replace(net, program=program, nodes=nodes)


def _of_operator(program: Program, op: Operator, run: int) -> Node:
    options = operator_options(program, op)
    ports = [_port(program, operand, options, False) for operand in op.inputs]
    ports += [_port(program, operand, options, True) for operand in (*op.outputs, *op.residues)]
    return Node(op.name, options, tuple(ports), op, run=run)


def _of_parameter(program: Program, parameter: Parameter, run: int) -> Node:
    """Return the node of a parameter. Its options: replicated ("whole"), ZeRO stages 1 to 3 (only 3 if it is frozen),
    and sharded along each dim of more than one element.

    Stage 1 leaves weight and gradient replicated (only the state is flat), 2 has the gradient FLAT, 3 both.
    """
    sizes = _sizes(program, parameter.tensor)
    stages = (1, 2, 3) if parameter.trainable else (3,)
    options = (
        Option("whole"),
        *(Option(f"zero{stage}", zero=stage) for stage in stages),
        *(Option(dim, parts=size) for dim, size in zip(parameter.tensor.dims, sizes, strict=True) if size > 1),
    )
    at = [position for position, size in enumerate(sizes) if size > 1]
    places = (
        Place(WHOLE, WHOLE),
        *(Place(FLAT if stage == 3 else WHOLE, FLAT if stage >= 2 else WHOLE) for stage in stages),
        *(Place(position, position) for position in at),
    )
    port = Port(parameter.tensor, sizes, places, True)
    return Node(parameter.tensor.name, options, (port,), parameter=parameter, run=run)


def _of_copy(program: Program, tensor: Tensor, run: int, weight: bool) -> Node:
    """Return the node that passes a tensor on to several consumers. Its options: replicated ("whole"), sharded along
    each dim of more than one element and, if the tensor has a gradient, a partial gradient ("pending") or partial
    values ("partial").
    """
    sizes = _sizes(program, tensor)
    dims = [position for position, size in enumerate(sizes) if size > 1]
    options = (Option("whole"), *(Option(tensor.dims[position], parts=sizes[position]) for position in dims))
    places: tuple[Place, ...] = (Place(WHOLE, WHOLE), *(Place(position, position) for position in dims))
    if tensor.gradient:
        options += (Option("pending"), Option("partial"))
        places += (Place(WHOLE, PARTIAL), Place(PARTIAL, WHOLE))
    both = (Port(tensor, sizes, places, False), Port(tensor, sizes, places, True))
    return Node(f"copy of {tensor.name}", options, both, run=run, weight=weight)


def _port(program: Program, operand: Use, options: tuple[Option, ...], output: bool) -> Port:
    tensor = program.tensors[operand.name]
    return Port(tensor, _sizes(program, tensor), tuple(_place(operand, option, output) for option in options), output)


def _sizes(program: Program, tensor: Tensor) -> tuple[int, ...]:
    return tuple([program.sizes[dim] for dim in tensor.dims])


def operator_options(program: Program, op: Operator) -> tuple[Option, ...]:
    """Return what an axis can do at an operator: compute replicated ("whole"), split the loops of one of its splits
    that has more than one part or, for a linear operator with gradients, work on partial sums backward ("pending")
    or forward ("partial").
    """
    splits = tuple(Option(s.loops[0], s, program.parts(s)) for s in op.splits if program.parts(s) > 1)
    linear = op.linear and any(operand.tensor.gradient for operand in op.inputs)
    return (Option("whole"), *splits, *((Option("pending"), Option("partial")) if linear else ()))


def _place(operand: Use, option: Option, output: bool) -> Place:
    """Return where an axis with this option lies in an operand and in its gradient, as a `Place`. Without a split:
    "pending" makes the gradient partial, "partial" the tensor; else both are whole.

    For a split: the dim along which it runs. An operand without such a dim is replicated forward with a partial
    gradient if it is an input; as an output it is partial, or replicated if the operator reduces it itself.
    """
    if option.split is None:
        return {"pending": Place(WHOLE, PARTIAL), "partial": Place(PARTIAL, WHOLE)}.get(
            option.name, Place(WHOLE, WHOLE)
        )
    for position, loop in enumerate(operand.loops):
        if loop in option.split.loops:
            return Place(position, position)
    if not output:
        return Place(WHOLE, PARTIAL)
    return Place(WHOLE, WHOLE) if option.split.sums else Place(PARTIAL, WHOLE)
