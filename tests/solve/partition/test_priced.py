"""Fixed strategies under one cost; a parameter server's is what passes its links."""

from __future__ import annotations

from itertools import product
from math import prod

import numpy as np
import pytest

from symconfig.cost.machine import machine
from symconfig.cost.partition import rates
from symconfig.cost.partition.costs import Costs, Objective, Training
from symconfig.descriptor.load import load_cluster
from symconfig.descriptor.mesh import Mesh, MeshLevel
from symconfig.graph.program.build import build
from symconfig.graph.program.net import net
from symconfig.solve.partition.assemble import assemble
from symconfig.solve.partition.baselines import NAMES
from symconfig.solve.partition.priced import price, priced, sums
from tests.solve.partition.programs import Maker, transformer

CLUSTER = load_cluster("h100")
MESH = Mesh((MeshLevel("nvlink", 4, 4e11, 1e-6), MeshLevel("rail", 2, 5e10, 1e-5)))
AXES = MESH.axes()
NET = net(transformer(2))
PARAMETERS = sum(prod(node.ports[0].sizes) for node in NET.nodes if node.parameter is not None)


def costs(objective: Objective, flat: bool = True, hide: float = 0.8) -> Costs:
    speeds = rates.elements(AXES) if objective is Objective.SYMTENSOR else rates.seconds(AXES, MESH, CLUSTER)
    return Costs(NET, speeds, machine(CLUSTER, "bf16"), Training(hide=hide), objective, flat)


def test_a_server_receives_every_workers_gradients_and_sends_every_worker_weights() -> None:
    server, plain = priced(costs(Objective.SYMTENSOR), AXES, ["parameter-server", "data"])
    ranks = MESH.gpus
    around = sum((axis.size - 1) / axis.size for axis in AXES)  # an axis after the other, each over all parameters
    ring = 2 * (ranks - 1) / ranks * PARAMETERS
    assert server.cost == pytest.approx(2 * (ranks - 1) * PARAMETERS)
    assert plain.cost <= 2 * around * PARAMETERS
    assert plain.cost == pytest.approx(ring)


def test_a_server_is_slower_than_all_reduces_and_holds_as_much() -> None:
    server, plain = priced(costs(Objective.TIME), AXES, ["parameter-server", "data"])
    assert server.cost > plain.cost
    assert server.memory == plain.memory


def test_seconds_at_the_server_are_those_of_its_links() -> None:
    """Nothing hides them here: gradients of 4 bytes, weights of 2, a message each way for every axis and weight."""
    of = costs(Objective.TIME, hide=0.0)
    (server,) = priced(of, AXES, ["parameter-server"])
    assert server.rows is not None
    work = sum(float(of.node(index, row[None]).cost[0]) for index, row in enumerate(server.rows))
    inner, outer = of.rates[0].send, of.rates[2].send
    weights = sum(node.parameter is not None for node in NET.nodes)
    messages = 2 * weights * (2 * inner.fixed + outer.fixed)
    assert server.cost - work == pytest.approx((3 * inner.each + 4 * outer.each) * 6 * PARAMETERS + messages)


def test_many_strategies_at_once_cost_what_each_does_alone() -> None:
    """All of a program of three nodes, on one axis."""
    make = Maker({"b": 64, "h": 256, "f": 1024})
    x, u, g = make.tensor("x", "b", "h"), make.tensor("u", "b", "f"), make.tensor("g", "b", "f")
    make.add(build("*", "up", [x, make.weight("up", "h", "f")], [u]))
    make.add(build("gelu", "gelu", [u], [g]))
    of, axes = net(make.program(("x",), "g", "b")), MESH.axes(((4,), (2,)))[:1]
    weighed = Costs(of, rates.seconds(axes, MESH, CLUSTER), machine(CLUSTER, "bf16"), Training())
    every = [np.arange(len(node.options))[:, None] for node in of.nodes]
    problem = assemble(weighed, every, np.inf)
    choices = list(product(*(range(len(some)) for some in every)))
    cost, memory = sums(weighed, np.array(choices)[:, :, None])
    np.testing.assert_allclose(cost, [problem.cost(choice) for choice in choices])
    np.testing.assert_allclose(memory, [problem.memory(choice) for choice in choices])
    assert price(weighed, np.array(choices[-1])[:, None]) == (cost[-1], memory[-1])


def test_every_name_has_a_price_or_a_reason() -> None:
    for one in priced(costs(Objective.TIME), AXES, NAMES):
        assert (one.cost < float("inf")) == (not one.why)


def test_where_nothing_may_lie_flat_the_others_have_a_price() -> None:
    found = {one.name: one for one in priced(costs(Objective.TIME, flat=False), AXES, ["zero3", "megatron-tp"])}
    assert "ruled out" in found["zero3"].why
    assert not found["megatron-tp"].why
