"""Every cost of splitting a network on the axes of a mesh: of nodes by row, of links by pairs of rows.

Both objectives run through the same rules. `time`: seconds of a step, computation and what shows of communication.
`symtensor`: elements moved, and sum over dims of d_i / s_i of every tensor over gamma; no computation, no hardware.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from symconfig.cost import compiled
from symconfig.cost.machine import Machine
from symconfig.cost.partition.change import Column, change, columns, cut, local
from symconfig.cost.partition.rates import Array, Rate
from symconfig.cost.partition.work import Passes, Rows, held, inside, work
from symconfig.tensors.net import FLAT, PARTIAL, WHOLE, Link, Net, Node, Port


class Objective(StrEnum):
    TIME = "time"
    SYMTENSOR = "symtensor"


class Keep(StrEnum):
    """What stays for the backward, from most memory and least time to least and most.

    used: every tensor as the backward reads it. shards: what is gathered for an operator stays as its shard, and is
    gathered again. borders: of every repeated part only what enters it; it runs forward again, one instance at a time.
    """

    USED = "used"
    SHARDS = "shards"
    BORDERS = "borders"


@dataclass(frozen=True, slots=True)
class Training:
    """How a step runs. turns: microbatches that the program runs for, one after the other, before the weights change.

    Bytes are per parameter. hide: the share of an operator's work that its weights' gathers and its gradients'
    reductions may run beside.
    """

    turns: int = 1
    keep: Keep = Keep.USED
    gradient_bytes: float = 4.0
    optimizer_bytes: float = 12.0
    adam_bytes: float = 34.0
    hide: float = 0.8


class NodeCost(NamedTuple):
    """[rows]: in the objective's unit; bytes held; bytes alive while the node runs.

    relative: the source paper's Cost_mem, which gamma divides and `cost` is without; of the objective symtensor only.
    """

    cost: Array
    memory: Array
    transient: Array
    relative: Array


class LinkCost(NamedTuple):
    """[rows of the producer, rows of the consumer]"""

    cost: Array
    memory: Array


@dataclass(frozen=True)
class Costs:
    """rates: of the axes, in the objective's unit. flat: weights may lie in smaller parts than they are used in."""

    net: Net
    rates: tuple[Rate, ...]
    machine: Machine
    training: Training
    objective: Objective = Objective.TIME
    flat: bool = True

    @property
    def timed(self) -> bool:
        return self.objective is Objective.TIME

    def node(self, index: int, rows: Rows) -> NodeCost:
        """Costs of a node by itself, all that it stands for together."""
        node = self.net.nodes[index]
        if node.parameter is not None:
            return self._parameter(node, rows)
        if node.copy:
            zero = np.zeros(len(rows))
            return NodeCost(zero, zero, zero, zero)
        return self._operator(node, rows)

    def passes(self, node: Node, rows: Rows) -> Passes:
        """Computation of one operator in one turn."""
        if not self.timed or node.operator is None:
            return Passes(np.zeros(len(rows)), np.zeros(len(rows)))
        return work(self.net.program, node, rows, self.rates, self.machine)

    def _operator(self, node: Node, rows: Rows) -> NodeCost:
        assert node.operator is not None
        again = 2.0 if self._repeats(node) else 1.0
        own = self.passes(node, rows)
        exchanged = inside(self.net.program, node, rows, self.rates, per_element=not self.timed)
        cost = again * (own.forward + exchanged.forward) + own.backward + exchanged.backward
        saved, outputs = node.operator.saves, len(node.operator.inputs)
        made = node.ports[outputs:]
        bytes_held = sum(
            (held(p, rows, self.rates) for p in made if p.tensor.name in saved), np.zeros(len(rows))
        ) * self._kept_times(node)
        moved = sum((held(port, rows, self.rates) for port in node.ports), np.zeros(len(rows)))
        times, relative = self.training.turns * node.times, np.zeros(len(rows))
        if not self.timed:
            shown = node.ports[outputs : outputs + len(node.operator.outputs)]
            relative = sum((self._spread(port, rows) for port in shown), relative)
        return NodeCost(times * cost, bytes_held, 2.0 * moved, times * relative)

    def _repeats(self, node: Node) -> bool:
        return self.training.keep is Keep.BORDERS and node.run >= 0

    def _kept_times(self, node: Node) -> float:
        """Of recomputed repeats one instance is alive at a time."""
        return node.times / self.net.instances[node.run] if self._repeats(node) else float(node.times)

    def _spread(self, port: Port, rows: Rows) -> Array:
        """[rows] sum over dims of d_i / s_i; what is flat is smaller as a whole."""
        places = _forward(port)[rows]
        total = np.zeros(len(rows))
        for position, size in enumerate(port.sizes):
            share = np.full(len(rows), float(size))
            for axis, rate in enumerate(self.rates):
                share = np.where(places[:, axis] == position, share / rate.size, share)
            total = total + share
        for axis, rate in enumerate(self.rates):
            total = np.where(places[:, axis] == FLAT, total / rate.size, total)
        return total

    def _parameter(self, node: Node, rows: Rows) -> NodeCost:
        assert node.parameter is not None
        port, training = node.ports[0], self.training
        size = float(prod(port.sizes))
        shares = [_flattened(local(columns(state), self.rates), len(rows)) for state in _states(node, rows)]
        memory = port.tensor.element_bytes * size * shares[0]
        cost = relative = np.zeros(len(rows))
        if node.parameter.trainable:
            memory = memory + size * (training.gradient_bytes * shares[1] + training.optimizer_bytes * shares[2])
        if not self.timed:
            relative = self._spread(port, rows)
        elif node.parameter.trainable:
            cost = compiled.optimizer_s(
                size * shares[2], 1.0, training.adam_bytes, self.machine.hbm_bytes_per_s, self.machine.launch_s
            )
        return NodeCost(node.times * cost, node.times * memory, np.zeros(len(rows)), node.times * relative)

    def link(self, index: int, given: Rows, taken: Rows) -> LinkCost:
        """Costs of a link for every pair of rows of its two ends."""
        link = self.net.links[index]
        if self.net.nodes[link.producer].parameter is not None:
            return self._weight(link, given, taken)
        return self._activation(link, given, taken)

    def _amount(self, port: Port, element_bytes: float) -> float:
        return float(prod(port.sizes)) * (element_bytes if self.timed else 1.0)

    def _activation(self, link: Link, given: Rows, taken: Rows) -> LinkCost:
        source, sink = self.net.nodes[link.producer], self.net.nodes[link.consumer]
        first, second = source.ports[link.given], sink.ports[link.taken]
        tensor = first.tensor
        # Layouts of one tensor are fewer than the rows of its two nodes.
        seen, back = _distinct(first, given)
        wanted, there = _distinct(second, taken)
        a = columns(_forward(first)[seen])
        b = columns(_forward(second)[wanted], across=True)
        amount = self._amount(first, tensor.element_bytes)
        forward = change(a, b, amount, self.rates) + np.zeros((len(seen), len(wanted)))
        once_more = 2.0 if self.training.keep is Keep.BORDERS and link.inside else 1.0
        total = once_more * forward
        if tensor.gradient:
            p = columns(_backward(first)[seen])
            q = columns(_backward(second)[wanted], across=True)
            total = total + change(q, p, amount, self.rates)
        memory = np.zeros_like(total)
        if link.saved:
            same, gathered = _gathered(a, b)
            size, kept = float(prod(first.sizes)) * tensor.element_bytes, local(b, self.rates)
            if self.training.keep is Keep.SHARDS or (self.training.keep is Keep.BORDERS and not link.inside):
                total = total + np.where(gathered, forward, 0.0)
                kept = np.where(gathered, local(a, self.rates), kept)
                same = same | gathered
            kept = size * (np.where(same, 0.0, kept) if link.covered else kept)
            memory = kept * self._link_times(link, sink) + np.zeros_like(total)
        pairs = np.ix_(back, there)
        return LinkCost((self.training.turns * link.times * total)[pairs], memory[pairs])

    def _link_times(self, link: Link, sink: Node) -> float:
        if self.training.keep is Keep.BORDERS and link.inside and sink.run >= 0:
            return link.times / self.net.instances[sink.run]
        return float(link.times)

    def _weight(self, link: Link, given: Rows, taken: Rows) -> LinkCost:
        """Weights on their way to where they are used, and their gradients back.

        Every turn: weights that lie flat are gathered forward and again backward, and gradients that lie flat are
        reduced. Once a step: what was summed locally is reduced, and updated weights are gathered. Each shows as far as
        the operator's own work does not hide it.
        """
        source, sink = self.net.nodes[link.producer], self.net.nodes[link.consumer]
        assert source.parameter is not None
        store, use = source.ports[0], sink.ports[link.taken]
        stored = _states(source, given)
        w, g, o = (columns(state) for state in stored)
        forward = columns(_forward(use)[taken], across=True)
        backward = columns(_backward(use)[taken], across=True)
        weight_bytes = self._amount(store, store.tensor.element_bytes)
        gather = change(w, forward, weight_bytes, self.rates) + np.zeros((len(given), len(taken)))
        own, hide, turns = self.passes(sink, taken), self.training.hide, self.training.turns

        def shows(communication: Array | float, beside: Array) -> Array:
            result: Array = np.maximum(communication - hide * beside[None, :], 0.0)
            return result

        cost = turns * shows(gather, own.forward)
        in_backward = gather
        if source.parameter.trainable:
            gradient_bytes = self._amount(store, self.training.gradient_bytes)
            summed = [_summed(at, back) for at, back in zip(g, backward, strict=True)]
            in_backward = gather + change(backward, summed, gradient_bytes, self.rates)
            reduce = change(summed, o, gradient_bytes, self.rates)
            cost = cost + shows(reduce, own.backward) + shows(change(o, w, weight_bytes, self.rates), own.forward)
        cost = cost + turns * shows(in_backward, own.backward)
        senseless = np.zeros((len(given), len(taken)), dtype=bool)
        for state, used in zip(o, forward, strict=True):
            split = np.asarray(cut(used))
            # What is used in parts is not kept in others across them; nor in smaller ones where that is ruled out.
            senseless = senseless | ((state == FLAT) & split) | ((not self.flat) & cut(state) & ~split)
        return LinkCost(np.where(senseless, np.inf, link.times * cost), np.zeros_like(cost))


def _summed(stored: Column, given: Column) -> Column:
    """Where a gradient lies between turns: as it is stored if that is split, else as it comes, summed up or not."""
    result: NDArray[np.int64] = np.where(cut(stored), stored, np.where(given == PARTIAL, PARTIAL, WHOLE))
    return result


def _flattened(share: Array | float, rows: int) -> Array:
    return np.broadcast_to(np.asarray(share).reshape(-1), (rows,))


def _states(node: Node, rows: Rows) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Places [rows, axes] of a parameter's weight, gradient and optimizer state."""
    port = node.ports[0]
    flat = np.array([option.zero > 0 for option in node.options])
    weight, gradient = _forward(port)[rows], _backward(port)[rows]
    return weight, gradient, np.where(flat[rows], FLAT, weight)


def _forward(port: Port) -> NDArray[np.int64]:
    return np.array([place.forward for place in port.places], dtype=np.int64)


def _backward(port: Port) -> NDArray[np.int64]:
    return np.array([place.backward for place in port.places], dtype=np.int64)


def _distinct(port: Port, rows: Rows) -> tuple[Rows, NDArray[np.intp]]:
    """Rows that place the port's tensor differently, and for each given row the one that is like it."""
    codes: dict[tuple[int, int], int] = {}
    code = np.array([codes.setdefault(place, len(codes)) for place in port.places], dtype=np.int64)
    number = np.zeros(len(rows), dtype=np.int64)
    for axis in range(rows.shape[1]):
        number = number * len(codes) + code[rows[:, axis]]
    _, first, inverse = np.unique(number, return_index=True, return_inverse=True)
    return rows[first], inverse


def _gathered(a: list[Column], b: list[Column]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Pairs where nothing changes, and pairs where all that changes is gathered."""
    same, only = np.ones((1, 1), dtype=bool), np.ones((1, 1), dtype=bool)
    for x, y in zip(a, b, strict=True):
        equal = np.asarray(x == y)
        same = same & equal
        only = only & (equal | (cut(x) & (y == WHOLE)))
    return same, only & ~same
