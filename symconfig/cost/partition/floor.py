"""Bytes that no strategy can go below: everything that is kept, cut into as many parts as there are GPUs."""

from __future__ import annotations

from symconfig.cost.partition.costs import Costs
from symconfig.graph.program.net import Node


def floor_bytes(costs: Costs, gpus: int) -> float:
    """Return a lower bound of the bytes on the busiest GPU: everything that is kept, divided by the number of GPUs.

    It does not check whether dims divide that often.
    """
    net = costs.net
    held = sum(_node_bytes(costs, node) for node in net.nodes)
    for link in net.links:
        port, sink = net.nodes[link.producer].ports[link.given], net.nodes[link.consumer]
        if costs.holds(link) and not link.covered:
            held += port.bytes * costs.link_times(link, sink)
    return held / gpus


def _node_bytes(costs: Costs, node: Node) -> float:
    """Return the bytes that a node keeps on all GPUs together.

    Weight, gradient and optimizer state of a parameter, outputs that an operator saves for its backward; else 0.
    """
    if node.parameter is not None:
        size, training = node.ports[0].elements, costs.training
        states = training.gradient_bytes + training.optimizer_bytes if node.parameter.trainable else 0.0
        return node.times * (node.ports[0].bytes + size * states)
    if node.operator is None:
        return 0.0
    made = node.ports[len(node.operator.inputs) :]
    kept = sum(port.bytes for port in made if port.tensor.name in node.operator.saved)
    return kept * costs.kept_times(node)
