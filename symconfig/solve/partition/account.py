"""What a partition spends, on what, and what strategies with names would spend on the same graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

import numpy as np

from symconfig.cost.partition.costs import Costs
from symconfig.descriptor.mesh import Axis
from symconfig.solve.partition.assemble import assemble
from symconfig.solve.partition.baselines import NAMES, Baseline, baseline
from symconfig.solve.partition.collectives import collectives
from symconfig.solve.partition.degrees import Degrees
from symconfig.solve.partition.priced import of_baseline
from symconfig.solve.partition.run import Ask, Case, costs_of
from symconfig.tensors.net import Net

MEGATRON = "megatron"
Made = Callable[[Net], list[Baseline]]


@dataclass(frozen=True, slots=True)
class Spent:
    """Of a step, in the unit of the objective. hidden: communication that work beside it hides; relative: what is kept
    over gamma, of the objective symtensor. Bytes at the peak, which transient is the largest part alive for a moment.
    """

    computation: float
    optimizer: float
    communication: float
    hidden: float
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


def spent(costs: Costs, axes: Sequence[Axis], rows: Sequence[Sequence[int]], gamma: float = float("inf")) -> Spent:
    """rows: of every node."""
    every = [np.array([row], dtype=np.int64) for row in rows]
    problem = assemble(costs, every, float("inf"), gamma)
    at = (0,) * len(every)
    moved = collectives(costs, axes, rows)
    work = optimizer = relative = 0.0
    states = np.zeros(3)
    for index, (node, row) in enumerate(zip(costs.net.nodes, every, strict=True)):
        alone = costs.node(index, row)
        relative += float(alone.relative[0]) / gamma
        if node.parameter is not None:
            optimizer += float(alone.cost[0])
            states += node.times * np.concatenate(costs.stored(node, row))
        elif node.operator is not None:
            passes = costs.passes(node, row)
            often = costs.training.turns * node.times
            work += often * float((costs.forwards(node) * passes.forward + passes.backward)[0])
    transient = max((float(node.transient[0]) for node in problem.nodes), default=0.0)
    shown = sum(one.shown for one in moved)
    return Spent(
        work,
        optimizer,
        shown,
        sum(one.cost for one in moved) - shown,
        relative,
        float(states[0]),
        float(states[1]),
        float(states[2]),
        problem.memory(at) - transient - float(states.sum()),
        transient,
    )


@dataclass(frozen=True, slots=True)
class Compared:
    """A strategy with a name on the same graph. cost, memory: None where it cannot be had, `why`. training: the best of
    those that were asked for that fits, or the leanest where none does."""

    name: str
    cost: float | None = None
    memory: float | None = None
    fits: bool = False
    why: str = ""
    turns: int = 1
    keep: str = ""
    degrees: Degrees | None = None


def compared(found: Sequence[Case], ask: Ask, axes: Sequence[Axis], gamma: float = float("inf")) -> list[Compared]:
    """Every strategy that has a name, and the best of Megatron's with any tensor parallelism, ZeRO 1.

    found: ways of running the step, of which each strategy takes its best.
    """
    ways: dict[str, Made] = {MEGATRON: partial(_megatron, axes)}
    ways |= {name: partial(_named, axes, name) for name in NAMES}
    return [_best(found, ask, axes, gamma, name, made) for name, made in ways.items()]


def _named(axes: Sequence[Axis], name: str, net: Net) -> list[Baseline]:
    return [baseline(net, axes, name)]


def _megatron(axes: Sequence[Axis], net: Net) -> list[Baseline]:
    ranks, tp = prod(axis.size for axis in axes), 1
    inner = [axis for axis in axes if axis.level == axes[0].level] if axes else []
    result = []
    for axis in (None, *inner):
        tp *= axis.size if axis is not None else 1
        for switched in (False, True) if tp > 1 else (False,):
            degrees = Degrees(tp=tp, dp=ranks // tp, sequence_parallel=switched, zero=1)
            result.append(baseline(net, axes, "megatron-tp-sp" if switched else "megatron-tp", degrees))
    return result


def _best(
    found: Sequence[Case],
    ask: Ask,
    axes: Sequence[Axis],
    gamma: float,
    name: str,
    made: Made,
) -> Compared:
    tried = [
        weighed(case, ask, axes, gamma, name, strategy)
        for case in found
        for strategy in made(case.net)
        if strategy.rows is not None
    ]
    if not tried:
        every = made(found[0].net)
        return Compared(name, why=every[-1].why if every else "")
    return min(tried, key=_standing)


def _standing(one: Compared) -> tuple[bool, float]:
    """Those that fit by cost, the others by memory."""
    assert one.cost is not None
    assert one.memory is not None
    return (not one.fits, one.cost if one.fits else one.memory)


def weighed(case: Case, ask: Ask, axes: Sequence[Axis], gamma: float, name: str, strategy: Baseline) -> Compared:
    """A strategy in one way of running the step."""
    found, training = of_baseline(costs_of(case, ask, axes), strategy, gamma), case.training
    fits = bool(found.memory <= ask.memory_limit and np.isfinite(found.cost))
    return Compared(
        name, found.cost, found.memory, fits, found.why, training.turns, training.keep.value, strategy.degrees
    )
