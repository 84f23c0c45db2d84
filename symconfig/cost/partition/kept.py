"""What a step keeps on all GPUs together, however it is split: a lower bound of the memory of every partition."""

from __future__ import annotations

from symconfig.cost.partition.costs import Costs


def floor_bytes(costs: Costs, gpus: int) -> float:
    """Return a lower bound of the bytes on the busiest GPU: everything that is kept, divided by the number of GPUs.

    It does not check whether dims divide that often.
    """
    return sum(size for _, size in kept_bytes(costs)) / gpus


def kept_bytes(costs: Costs) -> list[tuple[str, float]]:
    """Return what is kept on all GPUs together, as (name, bytes) of all instances that are alive at once.

    Each parameter with gradient and optimizer state (a frozen one without), each output or residue that an operator
    saves, and each tensor that a link keeps and its producer does not.
    """
    net, sizes, result = costs.net, costs.framework.bytes, list[tuple[str, float]]()
    for node in net.nodes:
        if node.parameter is not None:
            states = sizes.gradient + sizes.optimizer if node.parameter.trainable else 0.0
            size = node.times * (node.ports[0].bytes + node.ports[0].elements * states)
            result.append((f"weight {node.name} with its gradient and optimizer state", size))
        elif node.operator is not None:
            saved = [
                port for port in node.ports[len(node.operator.inputs) :] if port.tensor.name in node.operator.saved
            ]
            alive = costs.alive(node.times, node.run)
            result += [(f"tensor {port.tensor.name}", port.bytes * alive) for port in saved]
    for link in net.links:
        if costs.holds(link) and not link.covered:
            port, run = net.nodes[link.producer].ports[link.given], net.nodes[link.consumer].run
            size = port.bytes * costs.alive(link.times, run if link.inside else -1)
            result.append((f"tensor {port.tensor.name}", size))
    return result
