"""What a fixed strategy costs under the same rules as a solved one, so that they can be compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np

from symconfig.cost.partition.costs import Costs, Training
from symconfig.cost.partition.server import Reach, passed_s
from symconfig.cost.partition.work import Rows
from symconfig.descriptor.mesh import Axis
from symconfig.graph.layout import PARTIAL
from symconfig.graph.program.net import Link
from symconfig.solve.partition.baselines import Baseline, baseline
from symconfig.solve.partition.degrees import Way
from symconfig.solve.partition.problem import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """A strategy with its costs under a way of running the step.

    name: its own, or that of the framework that can be told it. cost: of the objective, infinite where the strategy
    cannot be had, `why`, or where the costs rule it out. memory: bytes at the peak. fits: within the limit. rows:
    [nodes, axes] on the axes as they were given.
    """

    name: str
    training: Training = field(default_factory=Training)
    cost: float = float("inf")
    memory: float = float("inf")
    fits: bool = False
    why: str = ""
    way: Way | None = None
    rows: Rows | None = None

    @property
    def standing(self) -> tuple[bool, float]:
        """Rank what fits by cost, the others by memory."""
        return (not self.fits, self.cost if self.fits else self.memory)


def price(costs: Costs, rows: Rows, gamma: float = float("inf")) -> tuple[float, float]:
    """Return cost and bytes at the peak of rows [nodes, axes]."""
    cost, memory = sums(costs, rows[None], gamma)
    return float(cost[0]), float(memory[0])


def sums(costs: Costs, rows: Rows, gamma: float = float("inf")) -> tuple[Array, Array]:
    """Return the costs of many strategies at once, [strategies, nodes, axes]. What they have in common is
    weighed once.
    """
    nodes = costs.net.nodes
    coded = rows @ max(len(node.options) for node in nodes) ** np.arange(rows.shape[2])
    cost, held, transient = np.zeros((3, len(rows)))
    for index in range(len(nodes)):
        first, back = _once(coded[:, index])
        node_cost = costs.node(index, rows[first, index])
        cost += (node_cost.cost + node_cost.relative / gamma)[back]
        held += node_cost.memory[back]
        transient = np.maximum(transient, node_cost.transient[back])
    for index, link in enumerate(costs.net.links):
        first, back = _once(coded[:, link.producer] * (int(coded.max(initial=0)) + 1) + coded[:, link.consumer])
        pair = costs.pairwise(index, rows[first, link.producer], rows[first, link.consumer])
        cost += pair.cost[back]
        held += pair.memory[back]
    return cost, held + transient


def _once(codes: Rows) -> tuple[Rows, Rows]:
    """Return where each value is first, and for each place which of them it has."""
    _, first, back = np.unique(codes, return_index=True, return_inverse=True)
    return first, back


def priced(costs: Costs, axes: Sequence[Axis], names: Sequence[str], gamma: float = float("inf")) -> tuple[Priced, ...]:
    """Price the strategies of these names, in their order."""
    return tuple(of_baseline(costs, baseline(costs.net, axes, name), gamma) for name in names)


def of_baseline(costs: Costs, strategy: Baseline, gamma: float, limit: float = float("inf")) -> Priced:
    """Price one strategy, with its parameter server where it has one. limit: bytes that a GPU may hold."""
    name, way = strategy.name, strategy.way
    if strategy.rows is None:
        return Priced(name=name, training=costs.training, why=strategy.why, way=way)
    cost, memory = price(costs, strategy.rows, gamma)
    if strategy.server:
        cost += sum(_at_server(costs, index, strategy.rows) for index in range(len(costs.net.links)))
    why = "" if np.isfinite(cost) else "it keeps weights in smaller parts than they are used in, which is ruled out"
    fits = bool(memory <= limit and np.isfinite(cost))
    return Priced(
        name=name, training=costs.training, cost=cost, memory=memory, fits=fits, why=why, way=way, rows=strategy.rows
    )


def _at_server(costs: Costs, index: int, rows: Rows) -> float:
    """Return what a link costs more with a parameter server than with an all-reduce of its weight's gradient.

    The same work hides the gradients on their way to the server; the weights come back when all of them are there.
    """
    link = costs.net.links[index]
    parameter = costs.net.nodes[link.producer].parameter
    if parameter is None or not parameter.trainable:
        return 0.0
    exchanges = costs.exchanges(index, rows[link.producer][None], rows[link.consumer][None])
    reductions = [exchange for exchange in exchanges if exchange.phase.once]
    instead, share = _reach(costs, link, rows)
    elements = costs.net.nodes[link.producer].ports[0].elements * share
    wide = costs.training.gradient_bytes, parameter.tensor.element_bytes
    gradient, weight = (elements * (bytes_ if costs.timed else 1.0) for bytes_ in wide)
    hidden = sum(_number(exchange.hidden) for exchange in reductions[:1] if exchange.hidden is not None)
    shown = max(passed_s(instead, gradient) - hidden, 0.0) + passed_s(instead, weight)
    return link.times * (shown - sum(_number(exchange.cost) for exchange in reductions))


def _reach(costs: Costs, link: Link, rows: Rows) -> tuple[list[Reach], float]:
    """Return the axes along which ranks have data of their own, and the share of the weight that each of them has."""
    port = costs.net.nodes[link.consumer].ports[link.taken]
    row = rows[link.consumer]
    forward, backward = port.forward[row], port.backward[row]
    share = prod(1.0 / rate.size for rate, place in zip(costs.rates, forward, strict=True) if place >= 0)
    reach = [
        Reach(rate.size, 1.0 / rate.send.each, rate.send.fixed)
        for rate, place in zip(costs.rates, backward, strict=True)
        if place == PARTIAL
    ]
    return reach, share


def _number(value: object) -> float:
    return float(np.asarray(value, dtype=float).reshape(-1)[0])
