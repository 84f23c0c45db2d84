"""Every cost of splitting a network on the axes of a mesh: of nodes by row, of links by pairs of rows.

Both objectives run through the same rules. `time`: seconds of a step, computation and what shows of communication.
`symtensor`: elements moved, and sum over dims of d_i / s_i of every tensor over gamma; no computation, no hardware.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple

import numpy as np

from symconfig.cost.framework import Framework
from symconfig.cost.machine import Machine
from symconfig.cost.partition.links import (
    Activation,
    Kept,
    Leg,
    Numbers,
    Weight,
    codes,
    digits,
    every,
    exposed_cost,
    held_bytes,
    legs_cost,
    moved_cost,
    states,
    transfers,
)
from symconfig.cost.partition.rates import Array, Prices, Rate, buffered, local
from symconfig.cost.partition.work import Passes, Rows, held, inner_cost, passed, work
from symconfig.graph.layout import FLAT, Phase
from symconfig.graph.operator import Work
from symconfig.graph.program.net import Link, Net, Node, Port


class Objective(StrEnum):
    TIME = "time"
    SYMTENSOR = "symtensor"


class Keep(StrEnum):
    """What is kept for the backward, from most memory and least time to least memory and most time.

    used: every tensor as the backward reads it. shards: a gathered tensor as its shard, which is gathered again.
    borders: only the inputs of each repeated part; it is recomputed, one instance at a time.
    """

    USED = "used"
    SHARDS = "shards"
    BORDERS = "borders"


@dataclass(frozen=True, slots=True)
class Training:
    """How a step runs.

    turns: microbatches that run one after the other before the weights change. alive: of how many microbatches at a
    time the saved tensors are kept, as in a pipeline stage.
    """

    turns: int = 1
    keep: Keep = Keep.USED
    alive: int = 1


class NodeCost(NamedTuple):
    """Costs of a node by row, [rows]: in the objective's unit; bytes held; bytes alive while the node runs.

    relative: the source paper's Cost_mem, of which `cost` contains 1 / gamma; 0 for the objective `time`.
    """

    cost: Array
    memory: Array
    transient: Array
    relative: Array


class LinkCost(NamedTuple):
    """Costs of a link, [rows of the producer, rows of the consumer]: in the objective's unit; bytes held."""

    cost: Array
    memory: Array


@dataclass(frozen=True)
class Costs:
    """The costs of all nodes and links of a network on a mesh.

    rates: of the axes, in the objective's unit. framework: its bytes per parameter, and its overlap of data-parallel
    communication (`hide.data`) with the work of the operator that reads a weight. flat: weights may be stored in
    smaller shards than they are used in. between: of a message to another stage; None if the network is no pipeline
    stage. gamma: of the objective symtensor; infinite: memory costs nothing.
    """

    net: Net
    rates: tuple[Rate, ...]
    machine: Machine
    framework: Framework
    training: Training
    objective: Objective = Objective.TIME
    flat: bool = True
    between: Prices | None = None
    gamma: float = float("inf")
    _passes: dict[int, tuple[Rows, Passes]] = field(default_factory=dict, init=False, repr=False, compare=False)
    _rules: dict[int, Activation | Weight] = field(default_factory=dict, init=False, repr=False, compare=False)

    @cached_property
    def rates_of_weights(self) -> tuple[tuple[Rate, ...], ...]:
        """Return the rates of a weight's four transfers, in the order of `Weight.transfers`.

        Reduction and update, once a step, are in buffers of all weights and so have no fixed part.
        """
        once = buffered(self.rates)
        return (self.rates, self.rates, once, once)

    @property
    def timed(self) -> bool:
        return self.objective is Objective.TIME

    def node(self, index: int, rows: Rows) -> NodeCost:
        """Return the costs of all microbatches and instances of a node without its links: [rows]; 0 for a copy.

        rows: an option per mesh axis. Of a parameter, `cost` is its `update_s`, `memory` weight, gradient and optimizer
        state. Of an operator, `cost` is computation and the collectives within it, forward (twice if recomputed) and
        backward, `memory` saved outputs and residues of all instances alive at once (saved inputs belong to links),
        `transient` twice the bytes of one instance's tensors.
        `relative`, of which `cost` contains 1 / gamma, is of the parameter or of the operator's outputs.
        """
        node, training = self.net.nodes[index], self.training
        none = np.zeros(len(rows))
        if node.parameter is not None:
            relative = node.times * (none if self.timed else self._relative_memory(node.ports[0], rows))
            cost, states = (
                self.update_s(node, rows) + relative / self.gamma,
                node.times * sum(self.stored(node, rows), none),
            )
            return NodeCost(cost, states, none, relative)
        if node.operator is None:
            return NodeCost(none, none, none, none)
        own = self.passes(node, rows)
        exchanged = inner_cost(self.net.program, node, rows, self.rates, per_element=not self.timed)
        cost = self.forwards(node) * (own.forward + exchanged.forward) + own.backward + exchanged.backward
        saved, outputs = node.operator.saved, len(node.operator.inputs)
        each = held(node.ports, rows, self.rates)
        kept = [at >= outputs and port.tensor.name in saved for at, port in enumerate(node.ports)]
        memory = each[kept].sum(axis=0) * self.alive(node.times, node.run)
        times, relative = training.turns * node.times, none
        if not self.timed:
            made = node.ports[outputs : outputs + len(node.operator.outputs)]
            relative = times * sum((self._relative_memory(port, rows) for port in made), none)
        return NodeCost(times * cost + relative / self.gamma, memory, 2.0 * each.sum(axis=0), relative)

    def update_s(self, node: Node, rows: Rows) -> Array:
        """Return a parameter's seconds of the one kernel that steps all weights, all instances: [rows].

        0 if it is frozen and for the objective `symtensor`.
        """
        if not self.timed or node.parameter is None or not node.parameter.trainable:
            return np.zeros(len(rows))
        state = self._shares(node, rows)[2]
        update: Array = node.ports[0].elements * state * self.framework.adam_bytes / self.machine.hbm_bytes_per_s
        return node.times * update

    def passes(self, node: Node, rows: Rows) -> Passes:
        """Return the seconds of one instance of an operator in one microbatch, forward and backward: [rows] each.

        0 for nodes that are no operators and for the objective `symtensor`. A pipeline's RECEIVE and SEND take the time
        of their message. The last result of each node is cached and returned again for the same `rows` object.
        """
        if not self.timed or node.operator is None:
            return Passes(np.zeros(len(rows)), np.zeros(len(rows)))
        known = self._passes.get(id(node))
        if known is None or known[0] is not rows:
            if node.operator.work in (Work.RECEIVE, Work.SEND):
                assert self.between is not None
                passes = passed(node, rows, self.rates, self.between)
            else:
                passes = work(self.net.program, node, rows, self.rates, self.machine)
            known = self._passes[id(node)] = rows, passes
        return known[1]

    def forwards(self, node: Node) -> float:
        """Return how often an operator runs forward in a microbatch: 2.0 if it is recomputed, else 1.0."""
        return 2.0 if self.training.keep is Keep.BORDERS and node.run >= 0 else 1.0

    def alive(self, times: int, run: int) -> float:
        """Return how many instances' saved tensors are alive at once: `times` x microbatches (`training.alive`).

        run: the repeat that they are in, -1 for none. In a repeat that is recomputed (Keep.BORDERS) only those of one
        instance of it, in one microbatch: `times` / its instances.
        """
        if self.training.keep is Keep.BORDERS and run >= 0:
            return times / self.net.instances[run]
        return float(times * self.training.alive)

    def _relative_memory(self, port: Port, rows: Rows) -> Array:
        """Return the sum of a tensor's dims on one rank over the product of the sizes of its FLAT axes: [rows]."""
        places, sizes = port.forward[rows], np.array([rate.size for rate in self.rates], dtype=np.float64)
        parts = np.where(places[..., None] == np.arange(len(port.sizes)), sizes[:, None], 1.0).prod(axis=1)
        flat = np.where(places == FLAT, sizes, 1.0).prod(axis=1)
        result: Array = (np.array(port.sizes) / parts).sum(axis=1) / flat
        return result

    def stored(self, node: Node, rows: Rows) -> tuple[Array, Array, Array]:
        """Return a rank's bytes of weight, gradient and optimizer state of one instance of a parameter: [rows] each.

        Each is divided by the axes that shard it, flat or along a dim. Gradient and state are 0 if it is frozen.
        """
        port, sizes = node.ports[0], self.framework.bytes
        size = port.elements
        weight, gradient, state = self._shares(node, rows)
        trained = size if node.parameter is not None and node.parameter.trainable else 0.0
        return (
            port.tensor.element_bytes * size * weight,
            sizes.gradient * trained * gradient,
            sizes.optimizer * trained * state,
        )

    def _shares(self, node: Node, rows: Rows) -> Array:
        """Return the shares of a parameter's weight, gradient and optimizer state that one rank holds: [3, rows]."""
        ones, places = np.ones((3, len(rows))), np.array(states(node, rows))
        return ones * local(tuple(np.moveaxis(places, -1, 0)), self.rates)

    def grouped(self, index: int, given: Rows, taken: Rows) -> tuple[Array, Array, Rows, Rows]:
        """Return (cost, memory, group of each given row, group of each taken row) of a link.

        cost, memory: `link` between one row of each group, [groups of given rows, groups of taken rows]. Rows that the
        link's costs do not distinguish share a group.
        """
        first, back = self._indistinguishable(index, given, False)
        second, there = self._indistinguishable(index, taken, True)
        return (*self.link(index, first, second), back, there)

    def _indistinguishable(self, index: int, rows: Rows, end: bool) -> tuple[Rows, Rows]:
        """Return a row of each group of rows that cost the same on a link, [groups, axes], and the rows' groups.

        end: the rows are the consumer's, else the producer's. Rows are grouped by the layouts of the link's tensor on
        all axes; of a parameter's consumer also by the seconds that hide its transfers. A parameter's own rows are not
        grouped.
        """
        link = self.net.links[index]
        node, port = (link.consumer, link.taken) if end else (link.producer, link.given)
        weight = self.net.nodes[link.producer].parameter is not None
        if weight and not end:
            return rows, np.arange(len(rows))
        alike = self.net.nodes[node].ports[port].alike
        powers = len(alike) ** np.arange(rows.shape[1], dtype=np.int64)
        keys: list[Array] = [(alike[rows] @ powers).astype(np.float64)]  # a number for each layout
        if weight:
            keys += self.overlappable_s(self.net.nodes[node], rows)
        _, at, numbers = np.unique(np.array(keys), axis=1, return_index=True, return_inverse=True)
        return rows[at], numbers.reshape(-1)

    def link(self, index: int, given: Rows, taken: Rows) -> LinkCost:
        """Return a link's cost per step of all instances, and the bytes that its consumer keeps: [given, taken] each.

        Activations: the legs forward and backward. Parameters: the exposed cost of gathers, reduction and update, with
        memory 0; infinite where the optimizer state is sharded and the operator uses the weight sharded otherwise or,
        without `flat`, whole.
        """
        tables = self.tables(index)
        numbers = {
            id(pairs): codes(pairs, given, taken) for pairs in {id(pairs): pairs for pairs, _ in tables}.values()
        }
        amounts = [values.take(numbers[id(pairs)]) for pairs, values in tables]
        weight = isinstance(self.rule(index), Weight)
        sink = self.net.nodes[self.net.links[index].consumer]
        return self.combined(index, amounts, *(self.overlappable_s(sink, taken) if weight else ()))

    def tables(self, index: int) -> list[tuple[Numbers, Array]]:
        """Return a link's tables: (digits of its pairs of options, values by number of the pair of layouts).

        Of an activation cost forward, cost backward, and bytes kept; of a weight the costs of its four transfers.
        """
        rule, table = self.rule(index), every(self.rates)
        if isinstance(rule, Activation):
            forward, backward = (tuple(leg for leg in rule.legs if leg.backward is way) for way in (False, True))
            return [
                (rule.there, legs_cost(table, forward, rule.times)),
                (rule.back, legs_cost(table, backward, rule.times)),
                (rule.there, held_bytes(table, rule.kept)),
            ]
        each = zip(rule.transfers, self.rates_of_weights, strict=True)
        return [(pairs, moved_cost(every(rates), amount)) for (pairs, amount), rates in each]

    def combined(
        self, index: int, amounts: Sequence[Array], ahead: Array | float = 0.0, behind: Array | float = 0.0
    ) -> LinkCost:
        """Return a link's cost and bytes kept, in the shape of the values that were read from its `tables`.

        ahead, behind: of a weight's consumer the forward and backward seconds that transfers may overlap with.
        """
        rule = self.rule(index)
        if isinstance(rule, Activation):
            return LinkCost(amounts[0] + amounts[1], amounts[2])
        exposed = exposed_cost(rule, amounts, ahead, behind)
        return LinkCost(rule.times * exposed, np.broadcast_to(0.0, exposed.shape))

    def rule(self, index: int) -> Activation | Weight:
        """Return a link's digits, amounts and counts, cached: Weight if its producer is a parameter, else Activation.

        A weight is gathered again for the backward if its consumer is a copy, or an operator with a backward and
        another input that has a gradient.
        """
        if (known := self._rules.get(index)) is not None:
            return known
        link = self.net.links[index]
        source, sink = self.net.nodes[link.producer], self.net.nodes[link.consumer]
        port, use = source.ports[link.given], sink.ports[link.taken]
        if source.parameter is None:
            there = digits(port.forward[:, None], use.forward)
            back = digits(use.backward, port.backward[:, None])
            size = port.bytes * self.alive(link.times, sink.run if link.inside else -1)
            kept = Kept(size, self._keeps_shards(link), link.covered) if self.holds(link) else None
            self._rules[index] = Activation(there, back, self._legs(link), kept, float(link.times))
            return self._rules[index]
        op = sink.operator
        others = (at for at in range(len(op.inputs)) if at != link.taken) if op is not None else ()
        amounts = (self._amount(port, port.tensor.element_bytes), self._amount(port, self.framework.bytes.gradient))
        self._rules[index] = Weight(
            transfers=transfers(source, use, flat=self.flat, amounts=amounts),
            trainable=source.parameter.trainable,
            regathers=op is None or (op.backward and any(sink.ports[at].tensor.gradient for at in others)),
            turns=float(self.training.turns),
            times=float(link.times),
        )
        return self._rules[index]

    def overlappable_s(self, sink: Node, taken: Rows) -> tuple[Array, Array]:
        """Return the seconds of forward and of backward that a weight's collectives may overlap with: [rows]."""
        own = self.passes(sink, taken)
        return self.framework.hide.data * own.forward, self.framework.hide.data * own.backward

    def _amount(self, port: Port, element_bytes: float) -> float:
        """Return a whole tensor's bytes, or for the objective `symtensor` its elements."""
        return port.elements * (element_bytes if self.timed else 1.0)

    def _legs(self, link: Link) -> tuple[Leg, ...]:
        """Return the transfers of an activation (or of a parameter's copy) over a link in each microbatch.

        FORWARD always; RECOMPUTED with Keep.BORDERS inside a repeat; KEPT if the tensor is a copy of a weight, or (only
        where it is all-gathered) if it is kept as its shard; BACKWARD if it has a gradient, for a copy of a weight with
        the bytes of a gradient per element.
        """
        source, turns = self.net.nodes[link.producer], float(self.training.turns)
        port = source.ports[link.given]
        amount = self._amount(port, port.tensor.element_bytes)
        legs = [Leg(Phase.FORWARD, False, amount, turns)]
        if self.training.keep is Keep.BORDERS and link.inside:
            legs.append(Leg(Phase.RECOMPUTED, False, amount, turns))
        if source.weight:  # nothing of it is held until the backward
            legs.append(Leg(Phase.KEPT, False, amount, turns))
        elif self.holds(link) and self._keeps_shards(link):
            legs.append(Leg(Phase.KEPT, False, amount, turns, gathered=True))
        if port.tensor.gradient:
            back_amount = self._amount(port, self.framework.bytes.gradient) if source.weight else amount
            legs.append(Leg(Phase.BACKWARD, True, back_amount, turns))
        return tuple(legs)

    def holds(self, link: Link) -> bool:
        """Return whether a link's tensor is kept: for the backward, or to recompute a repeated part from it."""
        return link.saved or (link.enters and self.training.keep is Keep.BORDERS)

    def _keeps_shards(self, link: Link) -> bool:
        """Return whether an all-gathered tensor is kept as its shard; with Keep.BORDERS only between instances."""
        keep = self.training.keep
        return keep is Keep.SHARDS or (keep is Keep.BORDERS and not link.inside)
