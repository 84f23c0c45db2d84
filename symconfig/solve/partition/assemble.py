"""A network, its costs and some rows of every node, as the arrays that the solvers take."""

from __future__ import annotations

from collections.abc import Sequence

from symconfig.cost.partition.costs import Costs
from symconfig.cost.partition.work import Rows
from symconfig.solve.partition.problem import Edge, Node, Problem


def assemble(costs: Costs, rows: Sequence[Rows], memory_limit: float, gamma: float = float("inf")) -> Problem:
    """Assemble the problem. rows: of every node, [rows, axes]; memory_limit: bytes of tensors that a GPU may hold at
    once.
    """
    nodes = tuple(_node(costs, i, rows[i], gamma) for i in range(len(costs.net.nodes)))
    edges = (
        Edge(link.producer, link.consumer, *costs.grouped(i, rows[link.producer], rows[link.consumer]))
        for i, link in enumerate(costs.net.links)
    )
    return Problem(nodes, tuple(edges), memory_limit)


def _node(costs: Costs, index: int, rows: Rows, gamma: float) -> Node:
    cost, memory, transient, relative = costs.node(index, rows)
    return Node(costs.net.nodes[index].name, cost + relative / gamma, memory, transient)
