"""What a partition spends, and on what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from symconfig.cost.partition.costs import Costs
from symconfig.descriptor.mesh import Axis
from symconfig.solve.partition.collectives import collectives
from symconfig.solve.partition.problem import assemble


@dataclass(frozen=True, slots=True)
class Spent:
    """The costs of a step in the unit of the objective, and the memory at the peak in bytes.

    communication: exposed; hidden: overlapped by computation. relative: the paper's Cost_mem over gamma, of the
    objective symtensor. transient_bytes: the largest memory that is alive only while one node runs.
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
    """Return the cost and memory breakdown of a step, summed over all nodes; of the transients, the largest.

    rows: the chosen row of options of every node.
    """
    every = shares(costs, axes, rows, gamma)
    sums = {one.name: sum(getattr(share, one.name) for share in every) for one in fields(Spent)}
    return Spent(**{**sums, "transient_bytes": max((share.transient_bytes for share in every), default=0.0)})


def shares(
    costs: Costs, axes: Sequence[Axis], rows: Sequence[Sequence[int]], gamma: float = float("inf")
) -> list[Spent]:
    """Return each node's share of the cost and memory breakdown, in order of the net's nodes.

    A node is charged for the exposed communication and the memory of links to it; transient_bytes is the node's own.
    Parameters have no computation but the optimizer's; copies have none.
    """
    net, every = costs.net, [np.array([row], dtype=np.int64) for row in rows]
    problem = assemble(costs, every, float("inf"), gamma)
    held = [node.memory.item() for node in problem.nodes]
    for edge in problem.edges:
        held[edge.v] += edge.memory.item()
    moved = np.zeros((len(net.nodes), 2))
    operators = {node.name: index for index, node in enumerate(net.nodes) if node.operator is not None}
    for one in collectives(costs, axes, rows):
        moved[net.links[one.link].consumer if one.link >= 0 else operators[one.consumer]] += one.shown, one.cost
    result = []
    for index, (node, row) in enumerate(zip(net.nodes, every, strict=True)):
        alone, work, states = costs.node(index, row), 0.0, np.zeros(3)
        if node.parameter is not None:
            states = node.times * np.concatenate(costs.stored(node, row))
        elif node.operator is not None:
            passes = costs.passes(node, row)
            work = costs.training.turns * node.times * (costs.forwards(node) * passes.forward + passes.backward).item()
        shown, cost = moved[index].tolist()
        result.append(
            Spent(
                computation=work,
                optimizer=alone.cost.item() if node.parameter is not None else 0.0,
                communication=shown,
                hidden=cost - shown,
                relative=alone.relative.item() / gamma,
                weights_bytes=float(states[0]),
                gradients_bytes=float(states[1]),
                optimizer_bytes=float(states[2]),
                activations_bytes=held[index] - float(states.sum()),
                transient_bytes=problem.nodes[index].transient.item(),
            )
        )
    return result
