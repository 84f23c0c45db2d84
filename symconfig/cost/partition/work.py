"""Seconds of one operator on one rank, for many rows at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from symconfig.cost.formulas import attention_s, product_s, traffic_s
from symconfig.cost.machine import Machine
from symconfig.cost.partition.rates import Array, Move, Prices, Rate, together
from symconfig.descriptor.mesh import Axis
from symconfig.graph.layout import PARTIAL, Kind
from symconfig.graph.operator import Factors, Split, Work
from symconfig.graph.program.net import Node, Port
from symconfig.graph.program.program import Program

Rows = NDArray[np.int64]  # [rows, axes]: options
Extent = Callable[[Sequence[str]], Array]  # [rows] turns of some loops on one rank
_STATISTIC_BYTES = 4.0  # partial results are summed in fp32


@dataclass(frozen=True, slots=True)
class Passes:
    """Seconds (or elements) of one microbatch forward and backward: [rows] each."""

    forward: Array
    backward: Array


def parts(node: Node, rows: Rows, rates: Sequence[Rate]) -> Mapping[str, Array]:
    """Return by loop the number of parts into which each row (an option per mesh axis) splits it: [rows].

    It is the product of the sizes of the axes whose option splits the loop. Loops that no option splits are absent.
    """
    if not node.splits:
        return {}
    return dict(zip(node.splits, counted(np.array(list(node.splits.values())), rows, rates), strict=True))


def counted(those: NDArray[np.bool_], rows: Rows, axes: Sequence[Rate | Axis]) -> Array:
    """Return for each row the product of the sizes of the axes whose option is marked, 1 if none is: [..., rows].

    those: the marked options, [..., options]. rows: an option per mesh axis.
    """
    result = np.ones((*those.shape[:-1], len(rows)))
    for axis, taken in zip(axes, rows.T, strict=True):
        result *= np.where(those, float(axis.size), 1.0).take(taken, axis=-1)
    return result


def held(ports: Sequence[Port], rows: Rows, rates: Sequence[Rate]) -> Array:
    """Return the bytes of each port's tensor on one rank in the forward pass: [ports, rows].

    rows: an option per mesh axis. Only axes that shard a dim divide the bytes; WHOLE, PARTIAL and FLAT do not.
    """
    sizes = np.array([port.bytes for port in ports])
    cuts = np.array([port.forward for port in ports]) >= 0
    return sizes[:, None] / counted(cuts, rows, rates)


def _extent(program: Program, node: Node, rows: Rows, rates: Sequence[Rate]) -> Extent:
    """Return a function from names of loops to the product of their iterations on one rank, [rows]; 1 for no loops."""
    counts = parts(node, rows, rates)

    def extent(loops: Sequence[str]) -> Array:
        result = np.ones(len(rows))
        for loop in loops:
            result = result * program.sizes[loop] / counts.get(loop, 1.0)
        return result

    return extent


def work(program: Program, node: Node, rows: Rows, rates: Sequence[Rate], machine: Machine) -> Passes:
    """Return the seconds of an operator's computation on one rank in one microbatch, forward and backward: [rows] each.

    Matmul and attention have formulas of their own; everything else takes the time of its memory traffic: the bytes of
    the tensors that it moves, as often as `op.moved` lists them, times `op.traffic` passes. The backward is 0 where no
    gradient is computed. An axis whose option splits no loop saves nothing: all its ranks compute the same.
    """
    assert node.operator is not None
    op, extent = node.operator, _extent(program, node, rows, rates)
    if op.work is Work.MATMUL:
        shapes = [Factors(*map(extent, op.factors))]
        both = zip(op.inputs, shapes[0].gradients, strict=False)
        shapes += [shape for operand, shape in both if op.gives(operand)]  # a product for each input with a gradient
        sizes, element_bytes = np.array(shapes).swapaxes(0, 1), op.inputs[0].tensor.element_bytes
        forward, *backward = product_s(machine, *sizes, efficiency=machine.efficiency, element_bytes=element_bytes)
        return Passes(forward, sum(backward, np.zeros_like(forward)))
    if op.work is Work.ATTENTION:
        queries = extent(op.queries)
        forward, backward = (attention_s(machine, queries, op.attended, op.channels / 2, way) for way in (True, False))
        return Passes(forward, backward if op.backward else 0.0 * forward)
    each = held(node.ports, rows, rates)

    def seconds(forward: bool) -> Array:
        often = Counter(use.name for use in op.moved(forward))
        moved = (np.array([float(often[port.tensor.name]) for port in node.ports])[:, None] * each).sum(axis=0)
        times = float(op.traffic[not forward])
        return traffic_s(machine, times * moved) if times and often else np.zeros(len(rows))

    return Passes(seconds(True), seconds(False))


def passed(node: Node, rows: Rows, rates: Sequence[Rate], between: Prices) -> Passes:
    """Return the seconds per microbatch of a pipeline's RECEIVE or SEND on one rank, forward and backward: [rows] each.

    between: seconds of a message by bytes. What is received (forward at RECEIVE, the gradient at SEND) has the bytes of
    this rank's layout; what is sent is the whole tensor divided by the GPUs of all axes, since replicas send equal
    shares. The backward is 0 if the operator has none.
    """
    op, port = node.operator, node.ports[0]
    assert op is not None
    coming = between(held((port,), rows, rates)[0])
    whole = port.bytes
    going = np.full(len(rows), between(whole / prod(rate.size for rate in rates)))
    forward, backward = (coming, going) if op.work is Work.RECEIVE else (going, coming)
    return Passes(forward, backward if op.backward else np.zeros(len(rows)))


class Inner(NamedTuple):
    """A collective within an operator.

    repeats: executions in a pass. backward: it runs in the backward pass, too.
    """

    move: Move
    repeats: int
    backward: bool


def inner_cost(program: Program, node: Node, rows: Rows, rates: Sequence[Rate], per_element: bool) -> Passes:
    """Return the cost per microbatch of an operator's `inner_collectives`, forward and backward: [rows] each.

    A collective counts `repeats` times in the rows where it happens; in the backward only if it runs there, too.
    per_element: amounts are elements instead of bytes.
    """
    forward, backward = np.zeros(len(rows)), np.zeros(len(rows))
    for move, repeats, returns in inner_collectives(program, node, rows, rates, per_element):
        once = np.where(move.happens, repeats * move.cost, 0.0)
        forward = forward + once
        backward = backward + (once if returns else 0.0)
    return Passes(forward, backward)


def inner_collectives(
    program: Program, node: Node, rows: Rows, rates: Sequence[Rate], per_element: bool
) -> Iterator[Inner]:
    """Yield the collectives within an operator, each along one mesh axis, in this order:

    1. all-reduces (forward only) of outputs that are outputs of the program and partial in the row;
    2. by option, all-reduces of the partial sums of split loops, `split.sums` times, in fp32; also backward if the
       first output has one of these loops;
    3. by option, sends of halo rows to both neighbours, forward and backward. All axes send at once, so that an axis
       costs only what it takes longer than the slowest before it.

    per_element: amounts are elements instead of bytes.
    """
    assert node.operator is not None
    op, extent = node.operator, _extent(program, node, rows, rates)
    for port, operand in zip(node.ports[len(op.inputs) :], op.outputs, strict=False):
        if operand.name in program.outputs:
            amount = held((port,), rows, rates)[0] / (port.tensor.element_bytes if per_element else 1.0)
            partial = [(axis, rate, port.forward[rows[:, axis]] == PARTIAL) for axis, rate in enumerate(rates)]
            for move in together(Kind.ALL_REDUCE, partial, amount):
                yield Inner(move, 1, False)
    for index, option in enumerate(node.options):
        split, here = option.split, (rows == index).T
        if split is not None and split.sums:
            kept = [loop for loop in op.outputs[0].loops if loop not in split.loops]
            # What the loops are in has a gradient that depends on all of them; a loss needs nothing again.
            returns = len(kept) < len(op.outputs[0].loops)
            reduced = extent(kept) * (1.0 if per_element else _STATISTIC_BYTES)
            along = [(axis, rate, here[axis]) for axis, rate in enumerate(rates)]
            for move in together(Kind.ALL_REDUCE, along, reduced):
                yield Inner(move, split.sums, returns)
        if split is not None and split.halo:
            halo_rows = 2 * split.halo * _halo_row(node, split, rows, rates, per_element)
            slowest = np.zeros(len(rows))  # of the links between neighbours: all are used at once
            for axis, rate in enumerate(rates):
                longer = np.maximum(rate.send(halo_rows) - slowest, 0.0)
                yield Inner(Move(Kind.SEND, axis, here[axis], halo_rows, longer), 1, True)
                slowest = slowest + np.where(here[axis], longer, 0.0)


def _halo_row(node: Node, split: Split, rows: Rows, rates: Sequence[Rate], per_element: bool) -> Array:
    """Return one rank's bytes (elements if per_element) of one index along the split dim of the window's input: [rows].

    The split dim is the first input's first dim whose loop is in `split`. Its full size divides the tensor, not the
    loop's, which a stride makes smaller.
    """
    assert node.operator is not None
    port, loops = node.ports[0], node.operator.inputs[0].loops
    at = next(position for position, loop in enumerate(loops) if loop in split.loops)
    along = np.array([place.forward == at for place in port.places])
    row: Array = held((port,), rows, rates)[0] * counted(along, rows, rates) / port.sizes[at]
    return row / port.tensor.element_bytes if per_element else row
