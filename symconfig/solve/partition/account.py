"""What a solved partition spends: the collectives of a step by name, and the breakdown of its cost and memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from symconfig.cost.partition.costs import Costs, Keep
from symconfig.cost.partition.links import PAIRS, Activation, Numbers, exchanges, is_gather
from symconfig.cost.partition.rates import Move, Rate, moves, total
from symconfig.cost.partition.work import inner_collectives
from symconfig.descriptor.mesh import Axis
from symconfig.graph.layout import Kind, Phase
from symconfig.graph.program.net import Link

Rows = Sequence[Sequence[int]]  # of every node


@dataclass(frozen=True, slots=True)
class Moved:
    """A collective over one level of the mesh, possibly over several axes of it.

    amount: of the larger buffer on a rank, per call, in bytes (elements with the objective symtensor). times: calls per
    step. cost, exposed: per step; exposed is the part of the cost that no computation overlaps. link: index in
    the net, or -1 for a collective within the operator `producer`.
    """

    tensor: str
    producer: str
    consumer: str
    link: int
    phase: Phase
    kind: Kind
    level: str
    ranks: int
    amount: float
    times: float
    cost: float
    exposed: float


# Phase, changes of layout that follow one another, each as its moves, times per step for one link, overlapped work.
_Exchange = tuple[Phase, tuple[list[Move], ...], float, float]


def collectives(costs: Costs, axes: Sequence[Axis], rows: Rows) -> tuple[Moved, ...]:
    """Return all collectives of a step: first those on links between nodes, then those within operators.

    rows: the chosen row of every node. Changes of layout that need no collective or run 0 times are left out. The
    overlapped part of an exchange is shared among its collectives in proportion to their costs; the sum of all
    `exposed` is the communication in the partition's cost.
    """
    every: list[Moved] = []
    for number, link in enumerate(costs.net.links):
        source, sink = costs.net.nodes[link.producer], costs.net.nodes[link.consumer]
        names = (source.ports[link.given].tensor.name, source.name, sink.name)
        for phase, transfers, times, overlapped in _exchanges(costs, number, link, rows):
            whole = sum(_number(total(run)) for run in transfers)
            share = max(whole - overlapped, 0.0) / whole if whole else 0.0
            for run in transfers if times else ():
                every += _merged_by_level(
                    ((move, link.times * times) for move in run), axes, names, number, phase, share
                )
    return (*every, *_within_operators(costs, axes, rows))


def _exchanges(costs: Costs, number: int, link: Link, rows: Rows) -> Iterator[_Exchange]:
    """Yield the exchanges over a link between two nodes, also those without moves; `times` is per step, for one link.

    An activation: one per leg, without overlap; a `gathered` leg runs 0 times unless the change is nothing but an
    all-gather. A weight: its `exchanges`.
    """
    given, taken, rule = rows[link.producer], rows[link.consumer], costs.rule(number)

    def run(digits: Numbers, amount: float, rates: Sequence[Rate]) -> list[Move]:
        pairs = [PAIRS[digits[a, b]] for a, b in zip(given, taken, strict=True)]
        return list(moves([before for before, _ in pairs], [after for _, after in pairs], amount, rates))

    if isinstance(rule, Activation):
        gathers = is_gather([int(rule.there[a, b]) for a, b in zip(given, taken, strict=True)])
        for leg in rule.legs:
            digits = rule.back if leg.backward else rule.there
            times = leg.times * (gathers if leg.gathered else 1.0)
            yield leg.phase, (run(digits, leg.amount, costs.rates),), times, 0.0
        return
    runs = [run(*each, rates) for each, rates in zip(rule.transfers, costs.rates_of_weights, strict=True)]
    moved = [_number(total(each)) for each in runs]
    work = costs.overlappable_s(costs.net.nodes[link.consumer], np.array([taken], dtype=np.int64))
    for phase, transfers, times, overlapped in exchanges(rule, moved, *map(_number, work)):
        yield phase, tuple(runs[way] for way in transfers), times, _number(overlapped)


def _within_operators(costs: Costs, axes: Sequence[Axis], rows: Rows) -> Iterator[Moved]:
    """Yield the collectives within operators (not on links between them): link -1, fully exposed, forward and backward.

    Backward are only those that run there, too. With Keep.BORDERS, operators in repeats have those of the forward again
    as RECOMPUTED. Parameters and copies have none. `tensor` is the operator's first output.
    """
    for node, row in zip(costs.net.nodes, rows, strict=True):
        if node.operator is None:
            continue
        recomputes = costs.training.keep is Keep.BORDERS and node.run >= 0
        some, often = np.array([row], dtype=np.int64), float(costs.training.turns * node.times)
        every = list(inner_collectives(costs.net.program, node, some, costs.rates, per_element=not costs.timed))
        names = (node.operator.outputs[0].name, node.name, node.name)
        for phase in (Phase.FORWARD, *([Phase.RECOMPUTED] if recomputes else []), Phase.BACKWARD):
            inner = [(move, often * n) for move, n, returns in every if returns or phase is not Phase.BACKWARD]
            yield from _merged_by_level(inner, axes, names, -1, phase, 1.0)


def _merged_by_level(
    run: Iterable[tuple[Move, float]],
    axes: Sequence[Axis],
    names: tuple[str, str, str],
    link: int,
    phase: Phase,
    share: float,
) -> Iterator[Moved]:
    """Yield moves as collectives, adjacent ones merged if they have the same kind, level and number of calls per step.

    run: (move over one axis, calls per step); moves that do not happen are skipped. names: tensor, producer, consumer.
    When merged, ranks are multiplied, costs per call added, and the largest amount kept; cost is per call times calls.
    share: the exposed part of the cost.
    """
    happening = ((move, times) for move, times in run if np.all(move.happens))
    for (kind, level, times), same in groupby(
        happening, key=lambda one: (one[0].kind, axes[one[0].axis].level, one[1])
    ):
        each = [move for move, _ in same]
        cost = times * sum(_number(move.cost) for move in each)
        yield Moved(
            *names,
            link=link,
            phase=phase,
            kind=kind,
            level=level,
            ranks=int(np.prod([axes[move.axis].size for move in each])),
            amount=max(_number(move.amount) for move in each),
            times=times,
            cost=cost,
            exposed=share * cost,
        )


def _number(value: object) -> float:
    return float(np.asarray(value).reshape(-1)[0])


@dataclass(frozen=True, slots=True)
class Spent:
    """The costs of a step in the unit of the objective, and the memory at the peak in bytes.

    communication: exposed; overlapped: the communication that computation overlaps. relative: the paper's Cost_mem over
    gamma, of the objective symtensor. transient_bytes: the largest memory that is alive only while one node runs.
    """

    computation: float
    optimizer: float
    communication: float
    overlapped: float
    relative: float
    weights_bytes: float
    gradients_bytes: float
    optimizer_bytes: float
    activations_bytes: float
    transient_bytes: float

    @property
    def cost(self) -> float:
        return self.computation + self.optimizer + self.communication + self.relative

    @property
    def memory(self) -> float:
        parts = (self.weights_bytes, self.gradients_bytes, self.optimizer_bytes, self.activations_bytes)
        return sum(parts) + self.transient_bytes


def spent(costs: Costs, axes: Sequence[Axis], rows: Rows) -> Spent:
    """Return the breakdown of a strategy's cost and memory in a step, summed over all nodes and links.

    rows: the chosen row of every node. Communication, exposed and overlapped, is that of `collectives`; activations are
    all bytes held less those of parameters; transient_bytes is the largest of a node.
    """
    net, every = costs.net, [np.array([row], dtype=np.int64) for row in rows]
    alone = [costs.node(index, row) for index, row in enumerate(every)]
    states, work, optimizer = np.zeros(3), 0.0, 0.0
    for node, row in zip(net.nodes, every, strict=True):
        if node.parameter is not None:
            states += node.times * np.concatenate(costs.stored(node, row))
            optimizer += costs.update_s(node, row).item()
        elif node.operator is not None:
            passes = costs.passes(node, row)
            work += costs.training.turns * node.times * (costs.forwards(node) * passes.forward + passes.backward).item()
    links = (costs.link(n, every[link.producer], every[link.consumer]) for n, link in enumerate(net.links))
    held = sum(own.memory.item() for own in alone) + sum(link.memory.item() for link in links)
    moved = collectives(costs, axes, rows)
    weights, gradients, state = states.tolist()
    return Spent(
        computation=work,
        optimizer=optimizer,
        communication=sum(one.exposed for one in moved),
        overlapped=sum(one.cost - one.exposed for one in moved),
        relative=sum(own.relative.item() for own in alone) / costs.gamma,
        weights_bytes=weights,
        gradients_bytes=gradients,
        optimizer_bytes=state,
        activations_bytes=held - float(states.sum()),
        transient_bytes=max((own.transient.item() for own in alone), default=0.0),
    )
