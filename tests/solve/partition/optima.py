"""Optima of whole models on small meshes, for tests of what the solvers find."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from symconfig.cost.partition.costs import Costs, Keep, Objective, Training
from symconfig.cost.partition.work import Rows
from symconfig.descriptor.load import load_cluster, load_model
from symconfig.descriptor.mesh import Axis, Mesh, of_cluster
from symconfig.descriptor.model import ModelDescriptor
from symconfig.graph.operator import Work
from symconfig.graph.program.net import Net, Node
from symconfig.graph.program.of_model import program
from symconfig.graph.program.program import Program
from symconfig.solve.partition import exact
from symconfig.solve.partition.problem import assemble
from symconfig.solve.partition.rows import spaces
from symconfig.solve.partition.run import Ask, Case, costs_of, folded
from tests.solve.partition.strategies import named_rows

CLUSTER = load_cluster("h100")
NODE = of_cluster(CLUSTER, 8)
WHOLE_NODE = NODE.axes(((8,),))  # one axis of all its GPUs
Among = Callable[[Node, Rows], np.ndarray]


@dataclass(frozen=True)
class Weighed:
    """A network on a mesh. rows: of every node."""

    costs: Costs
    axes: tuple[Axis, ...]
    rows: tuple[tuple[int, ...], ...]
    cost: float
    memory: float

    @property
    def net(self) -> Net:
        return self.costs.net

    def options(self, name: str) -> list[str]:
        """What the axes do at the first node whose name ends so."""
        index = next(i for i, node in enumerate(self.net.nodes) if node.name.endswith(name))
        return [self.net.nodes[index].options[option].name for option in self.rows[index]]

    def products(self) -> dict[str, list[str]]:
        """Of each product and attention, its options."""
        return {
            node.name: [node.options[option].name for option in row]
            for node, row in zip(self.net.nodes, self.rows, strict=True)
            if node.operator is not None and node.operator.work is not Work.MEMORY
        }


def model(name: str, **changes: int) -> ModelDescriptor:
    return load_model(name).model_copy(update=changes)


def of(model: ModelDescriptor, batch: int, seq_length: int) -> Program:
    return program(model, batch, seq_length, vocab_multiple=128)


def weights(
    program: Program,
    axes: Sequence[Axis] = WHOLE_NODE,
    mesh: Mesh = NODE,
    objective: Objective = Objective.TIME,
    flat: bool = True,
    keep: Keep = Keep.USED,
) -> Costs:
    """Costs of one turn of a program."""
    return costs_of(Case(folded(program), Training(keep=keep)), Ask(mesh, CLUSTER, np.inf, objective, flat=flat), axes)


def optimum(
    costs: Costs, axes: tuple[Axis, ...] = WHOLE_NODE, memory_limit: float = np.inf, among: Among | None = None
) -> Weighed:
    """Proved. among: which rows of a node are allowed."""
    rows = spaces(costs, axes)
    assert rows is not None
    if among is not None:
        rows = [some[among(node, some)] for node, some in zip(costs.net.nodes, rows, strict=True)]
    problem = assemble(costs, rows, memory_limit)
    found = exact.solve(problem)
    assert found.optimal
    assert found.choice is not None
    chosen = tuple(tuple(some[c].tolist()) for some, c in zip(rows, found.choice, strict=True))
    return Weighed(costs, axes, chosen, found.cost, problem.memory(found.choice))


def named(costs: Costs, name: str, axes: tuple[Axis, ...] = WHOLE_NODE) -> Weighed:
    """The strategy of a name."""
    rows = named_rows(costs.net, axes, name)
    assert rows is not None
    return priced(costs, axes, rows)


def priced(costs: Costs, axes: tuple[Axis, ...], rows: Rows) -> Weighed:
    problem, at = assemble(costs, [row[None] for row in rows], np.inf), (0,) * len(rows)
    return Weighed(costs, axes, tuple(map(tuple, rows.tolist())), problem.cost(at), problem.memory(at))


def in_parts(node: Node, rows: Rows) -> np.ndarray:
    """Rows that keep weights, gradients and optimizer states on one rank only, along every axis."""
    if node.parameter is None:
        return np.ones(len(rows), dtype=bool)
    able = np.array([bool(option.parts) or option.zero == 3 for option in node.options])
    return np.asarray(able[rows].all(axis=1))
