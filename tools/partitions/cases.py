"""Partitions for docs/evidence/partitions.md: what is asked, and strategies kept from before a change."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import gcd, prod
from typing import TypeVar

import numpy as np

from symconfig.cost.partition.costs import Costs, Keep, Objective, Training
from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.load import load_cluster, load_model
from symconfig.descriptor.mesh import Axis, of_cluster
from symconfig.descriptor.model import ModelDescriptor
from symconfig.graph.implementation import Implementation
from symconfig.graph.program.net import Node
from symconfig.graph.program.of_model import program
from symconfig.graph.program.program import Program
from symconfig.solve.partition.adaptive import Strategy
from symconfig.solve.partition.problem import assemble
from symconfig.solve.partition.run import Ask, Case, Partition, Solver, costs_of, folded, partition
from tests.solve.partition.strategies import Arrival, Settling, matching, named_rows, way

MARGIN = 0.04  # of the GPU's memory, as `symconfig partition` leaves free
T = TypeVar("T")
VOCAB_MULTIPLE = 128  # as Megatron pads it
TURNS = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class Question:
    """A model to be trained: batch in sequences of a step."""

    model: ModelDescriptor
    cluster: ClusterDescriptor
    gpus: int
    batch: int
    seq_length: int = 4096
    how: Implementation | None = None

    @property
    def turns(self) -> tuple[int, ...]:
        return tuple(turns for turns in TURNS if self.batch % turns == 0)

    @property
    def tokens(self) -> int:
        return self.batch * self.seq_length

    @property
    def limit_bytes(self) -> float:
        """Of tensors: what a plan may use of a GPU, without its context."""
        gpu = self.cluster.gpu
        return gpu.memory_bytes.value * (1 - MARGIN) - gpu.context_bytes.value

    def program(self, turns: int) -> Program:
        return program(self.model, self.batch // turns, self.seq_length, self.how, vocab_multiple=VOCAB_MULTIPLE)

    def ask(self, solver: Solver = Solver.ADAPTIVE, limit_bytes: float | None = None) -> Ask:
        limit = self.limit_bytes if limit_bytes is None else limit_bytes
        return Ask(of_cluster(self.cluster, self.gpus), self.cluster, limit, solver=solver, turns=self.turns)

    def solved(self, solver: Solver = Solver.ADAPTIVE) -> Partition | None:
        return partition(self.program, self.ask(solver))


def question(model: str, cluster: str, gpus: int, batch: int, seq_length: int = 4096) -> Question:
    return Question(load_model(model), load_cluster(cluster), gpus, batch, seq_length)


@dataclass(frozen=True, slots=True)
class Weighed:
    """A strategy in one way of running the step: cost in seconds, bytes at the peak."""

    cost: float
    memory: float
    turns: int
    keep: Keep
    rows: Strategy

    def fits(self, limit_bytes: float) -> bool:
        return self.memory <= limit_bytes


def weighed(costs: Costs, rows: np.ndarray | Strategy) -> Weighed:
    every = [np.array([row], dtype=np.int64) for row in rows]
    problem, at = assemble(costs, every, np.inf), (0,) * len(every)
    chosen = tuple(tuple(row[0].tolist()) for row in every)
    return Weighed(problem.cost(at), problem.memory(at), costs.training.turns, costs.training.keep, chosen)


def answer(found: Partition) -> Weighed:
    training = found.costs.training
    return Weighed(found.cost, found.memory, training.turns, training.keep, found.rows)


def best(asked: Question, axes: Sequence[Axis], cost_of: Callable[[Costs], Weighed | str]) -> Weighed | str:
    """The fastest way of running a strategy that fits, or the one that needs least where none does; or why not."""
    ask, tried, why = asked.ask(), list[Weighed](), ""
    for turns, keep in product(asked.turns, Keep):
        costs = costs_of(Case(folded(asked.program(turns)), Training(turns=turns, keep=keep)), ask, axes)
        found = cost_of(costs)
        if isinstance(found, str):
            why = found  # a smaller batch may not be cut as often
        else:
            tried.append(found)
    limit = ask.memory_limit
    if not tried:
        return why
    return min(tried, key=lambda one: (not one.fits(limit), one.cost if one.fits(limit) else one.memory))


def of_name(name: str, axes: Sequence[Axis]) -> Callable[[Costs], Weighed | str]:
    def cost_of(costs: Costs) -> Weighed | str:
        rows = named_rows(costs.net, axes, name)
        return weighed(costs, rows) if rows is not None else "the program or the mesh does not have what it splits"

    return cost_of


def customary(asked: Question, axes: Sequence[Axis]) -> Weighed | str:
    """Megatron's habit: tensor and sequence parallel within the node, experts there, too, and data parallel with ZeRO-1
    across."""
    inner = prod(axis.size for axis in axes if axis.level == axes[0].level)
    experts = gcd(inner, asked.model.experts.num_experts) if asked.model.experts is not None else 1
    made = way(tp=inner, dp=asked.gpus // inner, ep=experts, sequence_parallel=True, zero=1)

    def cost_of(costs: Costs) -> Weighed | str:
        rows = named_rows(costs.net, axes, "megatron-tp-sp", made)
        return weighed(costs, rows) if rows is not None else "an operator cannot be split in this way"

    return best(asked, axes, cost_of)


def kept(before: Partition, asked: Question) -> Weighed:
    """The strategy of another program on this one, run in as many turns and keeping as much as before.

    An operator or parameter with the name and the options of an old one takes its row. Any other operator lies as its
    inputs come, a copy as costs its neighbours least, a parameter as it is read, and where every rank reads all of it,
    flat in the ZeRO stage that most of the old parameters have on that axis.
    """
    training, axes = before.costs.training, before.axes
    net = folded(asked.program(training.turns))
    old = {_key(node): row for node, row in zip(before.net.nodes, before.rows, strict=True)}
    stages = [_stage(before, number) for number in range(len(axes))]
    making = Settling(net, axes)
    for number in range(len(axes)):

        def wish(index: int, arrivals: Sequence[Arrival], number: int = number) -> Iterator[int]:
            row = old.get(_key(net.nodes[index]))
            if row is not None:
                yield row[number]
            else:
                yield from matching(net.nodes[index], arrivals)

        def stage(index: int, number: int = number) -> int:
            node = net.nodes[index]
            row = old.get(_key(node))
            return node.options[row[number]].zero if row is not None else stages[number]

        making.axis(number, wish, stage)
    costs = costs_of(Case(net, training), asked.ask(), axes)
    return weighed(costs, making.rows)


def _key(node: Node) -> tuple[str, tuple[str, ...]]:
    return re.sub(r"\d+", "*", node.name), tuple(option.name for option in node.options)


def _stage(of: Partition, axis: int) -> int:
    """That most of the parameters' elements have."""
    elements = [0.0] * 4
    for node, row in zip(of.net.nodes, of.rows, strict=True):
        if node.parameter is not None and node.parameter.trainable:
            elements[node.options[row[axis]].zero] += node.times * prod(node.ports[0].sizes)
    return max(range(4), key=lambda stage: (elements[stage], -stage))


@dataclass(frozen=True, slots=True)
class Pair:
    """The adaptive and the exact solver on one problem. bound: below every answer."""

    name: str
    nodes: int
    adaptive: float
    exact: float
    bound: float
    adaptive_s: float
    exact_s: float

    @property
    def ratio(self) -> float:
        return self.adaptive / min(self.bound, self.adaptive)


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """What it gives, and the processor's seconds."""
    started = time.process_time()
    return work(), time.process_time() - started


def first_case(asked: Question, objective: Objective, keep: Keep, axes: Sequence[Axis]) -> Costs:
    """All in one turn."""
    mesh = of_cluster(asked.cluster, asked.gpus)
    case = Case(folded(asked.program(1)), Training(keep=keep))
    return costs_of(case, Ask(mesh, asked.cluster, np.inf, objective), axes)
