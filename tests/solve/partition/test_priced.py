"""Strategies with names under one cost."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from symconfig.cost.machine import machine
from symconfig.cost.partition import rates
from symconfig.cost.partition.costs import Costs, Objective, Training
from symconfig.descriptor.load import load_cluster
from symconfig.descriptor.mesh import Mesh, MeshLevel
from symconfig.graph.program.net import net
from symconfig.solve.partition.baselines import NAMES, Priced, baseline, of_baseline
from tests.solve.partition.programs import transformer

CLUSTER = load_cluster("h100")
MESH = Mesh((MeshLevel("nvlink", 4, 4e11, 1e-6), MeshLevel("rail", 2, 5e10, 1e-5)))
AXES = MESH.axes()
NET = net(transformer(2))


def costs(objective: Objective, flat: bool = True, hide: float = 0.8) -> Costs:
    speeds = rates.elements(AXES) if objective is Objective.SYMTENSOR else rates.seconds(AXES, MESH, CLUSTER)
    return Costs(NET, speeds, machine(CLUSTER, "bf16"), Training(hide=hide), objective, flat)


def priced(of: Costs, names: Sequence[str]) -> list[Priced]:
    return [of_baseline(of, baseline(of.net, AXES, name), np.inf) for name in names]


def test_every_name_has_a_price_or_a_reason() -> None:
    for one in priced(costs(Objective.TIME), NAMES):
        assert (one.cost < float("inf")) == (not one.why)


def test_where_nothing_may_lie_flat_the_others_have_a_price() -> None:
    found = {one.name: one for one in priced(costs(Objective.TIME, flat=False), ["zero3", "megatron-tp"])}
    assert "ruled out" in found["zero3"].why
    assert not found["megatron-tp"].why
