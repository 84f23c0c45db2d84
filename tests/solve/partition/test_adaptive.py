"""Cuts of the mesh one axis at a time: each is the best of its axis; gamma ends near the optimum that fits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from symconfig.cost.machine import machine
from symconfig.cost.partition import rates
from symconfig.cost.partition.costs import Costs, Keep, Objective, Training
from symconfig.descriptor.mesh import Axis, Mesh, MeshLevel
from symconfig.frameworks.megatron.behaviour import MEGATRON
from symconfig.graph.program.build import build
from symconfig.graph.program.fold import fold
from symconfig.graph.program.net import Net, net
from symconfig.solve.partition import exact
from symconfig.solve.partition.adaptive import Cutter, Lines, Strategy, adaptive, least, plan
from symconfig.solve.partition.problem import Array, Problem, assemble
from symconfig.solve.partition.rows import allowed, spaces
from tests.sample_models import sample_cluster
from tests.solve.partition import brute
from tests.solve.partition.programs import Maker, convolutions, transformer
from tests.solve.partition.samples import small

CLUSTER = sample_cluster()
MESH = Mesh((MeshLevel("nvlink", 2, 4e11, 1e-6), MeshLevel("rail", 2, 5e10, 1e-5)))
AXES = MESH.axes()


def perceptron() -> Net:
    """Two products with a gelu between them: few enough options to try all of them."""
    make = Maker({"b": 64, "h": 256, "f": 1024})
    x, u, g, y = (make.tensor(name, "b", dim) for name, dim in (("x", "h"), ("u", "f"), ("g", "f"), ("y", "h")))
    make.add(build("*", "up", [x, make.weight("up", "h", "f")], [u]))
    make.add(build("gelu", "gelu", [u], [g]))
    make.add(build("*", "down", [g, make.weight("down", "f", "h")], [y]))
    return net(make.program(("x",), "y", "b"))


SMALL, DENSE, IMAGES = perceptron(), net(transformer(1)), net(convolutions())


def weighed(of: Net, objective: Objective = Objective.TIME, mesh: Mesh = MESH, keep: Keep = Keep.USED) -> Costs:
    axes = mesh.axes()
    speeds = rates.seconds(axes, mesh, CLUSTER) if objective is Objective.TIME else rates.elements(axes)
    return Costs(of, speeds, machine(CLUSTER, "bf16"), MEGATRON, Training(keep=keep), objective)


def along(of: Net, axes: tuple[Axis, ...], rows: Strategy, axis: int) -> list[np.ndarray]:
    """Of every node all rows that differ from the given one along the axis only, as far as its dims divide."""
    result = []
    for node, row in zip(of.nodes, rows, strict=True):
        some = np.array([[*row[:axis], option, *row[axis + 1 :]] for option in range(len(node.options))])
        result.append(some[allowed(of, node, some, axes)])
    return result


def total(costs: Costs, rows: Strategy) -> tuple[float, float, float]:
    """Cost, bytes at the peak, and those of them that are held."""
    problem, first = assemble(costs, [np.array([row]) for row in rows], np.inf), (0,) * len(rows)
    return (
        problem.cost(first),
        problem.memory(first),
        problem.memory(first) - max(float(node.transient[0]) for node in problem.nodes),
    )


def best(problem: Problem, price: float) -> float:
    """The least cost with a price on bytes held, of all assignments."""
    nodes = (replace(node, cost=node.cost + price * node.memory) for node in problem.nodes)
    edges = (replace(edge, cost=edge.priced(price)) for edge in problem.edges)
    return brute.solve(Problem(tuple(nodes), tuple(edges))).cost


@pytest.mark.parametrize("price", [0.0, 1e-12, 1e-9])
def test_a_cut_is_the_best_of_all_along_its_axis(price: float) -> None:
    costs = weighed(SMALL)
    cutter, rows = Cutter(costs, AXES, by_bytes=True), ((0, 0),) * len(SMALL.nodes)
    for axis in (1, 0, 1):
        expected = best(assemble(costs, along(SMALL, AXES, rows, axis), np.inf), price)
        rows = cutter.cut(axis, rows, price)
        cost, _, held = total(costs, rows)
        assert cost + price * held == pytest.approx(expected)


@pytest.mark.parametrize("of", [SMALL, IMAGES], ids=["perceptron", "convolutions"])
def test_where_a_network_is_too_tangled_no_node_alone_can_do_better(of: Net) -> None:
    costs = weighed(of)
    cutter, rows = Cutter(costs, AXES, by_bytes=True), ((0, 0),) * len(of.nodes)
    cutter.steps, whole = None, total(costs, rows)[0]
    for axis in (1, 0, 1):
        before, rows = rows, cutter.cut(axis, rows, 0.0)
        cost = total(costs, rows)[0]
        assert cost <= total(costs, before)[0] * (1 + 1e-12)
        for v, some in enumerate(along(of, AXES, rows, axis)):
            others = (total(costs, (*rows[:v], tuple(row), *rows[v + 1 :]))[0] for row in some.tolist())
            assert cost <= min(others) * (1 + 1e-12)
    assert cost < whole


@pytest.mark.parametrize("seed", range(0, 90, 6))
def test_elimination_finds_the_least_of_all_sums(seed: int) -> None:
    problem = replace(small(seed), memory_limit=np.inf)
    scopes: list[tuple[int, ...]] = [(v,) for v in range(len(problem.nodes))]
    tables: list[Array] = [node.cost for node in problem.nodes]
    for edge in problem.edges:
        scopes.append((min(edge.u, edge.v), max(edge.u, edge.v)))
        tables.append(edge.cost if edge.u < edge.v else edge.cost.T)
    steps = plan(scopes, [len(node.cost) for node in problem.nodes])
    assert steps is not None
    assert problem.cost(least(steps, tables)) == brute.solve(problem).cost


def test_a_table_that_would_be_too_large_is_not_planned() -> None:
    ring = [(0, 1), (1, 2), (2, 3), (0, 3)]
    assert plan(ring, [158] * 4) is not None  # 158 cubed is just below four million
    assert plan(ring, [159] * 4) is None


@pytest.mark.parametrize("of", [SMALL, DENSE, IMAGES], ids=["perceptron", "dense", "convolutions"])
@pytest.mark.parametrize("objective", Objective)
def test_what_is_found_costs_and_holds_what_its_rows_do(of: Net, objective: Objective) -> None:
    costs = weighed(of, objective)
    costs = costs if costs.timed else replace(costs, gamma=3.0)
    adapted = adaptive(costs, AXES, np.inf)
    found = adapted.best
    assert not adapted.tight
    problem, first = assemble(costs, [np.array([row]) for row in found.rows], np.inf), (0,) * len(of.nodes)
    assert found.gamma == costs.gamma
    assert (found.cost, found.memory) == pytest.approx((problem.cost(first), problem.memory(first)))
    assert adaptive(costs, AXES, np.inf, ceiling=found.cost * 0.999).best is None
    again = adaptive(costs, AXES, np.inf, ceiling=found.cost * 1.001).best
    assert again.rows == found.rows


@pytest.mark.parametrize("of", [SMALL, DENSE, IMAGES], ids=["perceptron", "dense", "convolutions"])
@pytest.mark.parametrize("objective", Objective)
@pytest.mark.parametrize("room", [0.02, 0.3, 0.9])
def test_within_a_limit_it_is_near_the_optimum(of: Net, objective: Objective, room: float) -> None:
    """room: of what is between the least memory that cuts find and what the cheapest holds."""
    costs = weighed(of, objective)
    free = adaptive(costs, AXES, np.inf).best
    rows = spaces(costs, AXES)
    assert rows is not None
    cutter, orders = Cutter(costs, AXES, by_bytes=True), ((0, 1), (1, 0))
    lightest = min(cutter.partitioned(2.0**20 * free.moved / free.memory, order).memory for order in orders)
    limit = lightest + room * (free.memory - lightest)
    adapted = adaptive(costs, AXES, limit)
    found = adapted.best
    assert found.memory <= limit
    costs = replace(costs, gamma=found.gamma)
    assert found.cost <= 1.07 * exact.solve(assemble(costs, rows, limit), limit_s=2.0).cost
    assert adapted.tight == (free.memory > limit)


FOLDED = fold(transformer(3))
NETS = {"perceptron": SMALL, "dense": DENSE, "convolutions": IMAGES}
NETS["layers"] = net(FOLDED.program, FOLDED.of, FOLDED.runs)


@pytest.mark.parametrize("of", NETS)
@pytest.mark.parametrize("keep", Keep)
@pytest.mark.parametrize("objective", Objective)
def test_a_line_has_the_costs_of_its_rows(of: str, keep: Keep, objective: Objective) -> None:
    costs, source = weighed(NETS[of], objective, keep=keep), np.random.default_rng(1)
    nodes, links = costs.net.nodes, costs.net.links
    lines, axes = Lines(costs, AXES), range(len(AXES))
    rows = np.array([[source.integers(len(node.options)) for _ in axes] for node in nodes])
    for axis in axes:
        every, pairs = lines.along(axis, tuple(map(tuple, rows.tolist())))
        some = []
        for index, own in enumerate(every):
            mine = np.tile(rows[index], (len(nodes[index].options), 1))
            mine[:, axis] = np.arange(len(mine))
            expected, able = costs.node(index, mine), allowed(costs.net, nodes[index], mine, AXES)
            able &= costs.timed | np.isfinite(own.cost)
            np.testing.assert_allclose(own.cost, np.where(able, expected.cost, np.inf))
            np.testing.assert_allclose(own.memory, expected.memory)
            some.append(mine)
        for number, (link, pair) in enumerate(zip(links, pairs, strict=True)):
            found = costs.link(number, some[link.producer], some[link.consumer])
            np.testing.assert_allclose(pair.cost, found.cost)
            np.testing.assert_allclose(pair.memory, found.memory)
