"""Partitions of small programs by the adaptive solver, for tests of what is said about them."""

from __future__ import annotations

from typing import NamedTuple

from symconfig.cost.machine import machine
from symconfig.cost.partition import rates
from symconfig.cost.partition.costs import Costs, Objective, Training
from symconfig.descriptor.mesh import Axis, Mesh, MeshLevel
from symconfig.frameworks.megatron.behaviour import MEGATRON
from symconfig.graph.program.net import Net
from symconfig.solve.partition.adaptive import Strategy, adaptive
from tests.sample_models import sample_cluster


class Solved(NamedTuple):
    costs: Costs
    axes: tuple[Axis, ...]
    rows: Strategy


MESH = Mesh((MeshLevel("nvlink", 4, 4e11, 1e-6), MeshLevel("rail", 2, 5e10, 1e-5)))


def solved(
    net: Net,
    mesh: Mesh = MESH,
    objective: Objective = Objective.TIME,
    training: Training | None = None,
    memory_limit: float = float("inf"),
) -> Solved:
    cluster = sample_cluster()
    axes = mesh.axes()
    speeds = rates.seconds(axes, mesh, cluster) if objective is Objective.TIME else rates.elements(axes)
    costs = Costs(net, speeds, machine(cluster, "bf16"), MEGATRON, training or Training(), objective)
    found = adaptive(costs, axes, memory_limit).best
    return Solved(costs, axes, found.rows)
