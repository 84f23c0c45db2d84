"""The next best row of a node is what a search over the node and its neighbours finds."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from time import process_time

import numpy as np
import pytest

from symconfig.cost.partition.costs import Objective
from symconfig.descriptor.mesh import Mesh, MeshLevel
from symconfig.graph.program.net import Net, net
from symconfig.solve.partition.adaptive import least, plan
from symconfig.solve.partition.problem import Problem, assemble
from symconfig.solve.partition.reasons import Solved, candidates, reasons
from symconfig.solve.partition.rows import allowed, spaces
from symconfig.solve.partition.strategy import alike
from tests.solve.partition.optima import least_memory
from tests.solve.partition.programs import convolutions, frozen, transformer
from tests.solve.partition.solved import solved

NETS = {"dense": net(transformer(1, tied=True)), "convolutions": net(convolutions())}
IMAGES = convolutions()
FROZEN = net(frozen(IMAGES, [one.tensor.name for one in IMAGES.parameters]))


def alone(found: Solved, v: int, row: tuple[int, ...], parameters: bool) -> Problem:
    """Only this node changed; parameters and copies beside it free, or nothing."""
    costs, rows = found.costs, [np.array([row]) for row in found.rows]
    rows[v] = np.array([row])
    for number in costs.net.links_of[v] if parameters else ():
        for w in (costs.net.links[number].producer, costs.net.links[number].consumer):
            node = costs.net.nodes[w]
            if node.operator is None:
                every = np.array(list(product(range(len(node.options)), repeat=len(found.axes))))
                rows[w] = every[allowed(costs.net, node, every, found.axes)]
    return assemble(costs, rows, found.memory_limit, found.gamma)


def cheapest(problem: Problem) -> float:
    factors = [((v,), node.cost) for v, node in enumerate(problem.nodes)]
    for edge in problem.edges:
        table = edge.full(edge.cost)
        if edge.u == edge.v:
            factors.append(((edge.u,), np.diagonal(table)))
        else:
            factors.append(((edge.u, edge.v), table) if edge.u < edge.v else ((edge.v, edge.u), table.T))
    steps = plan([scope for scope, _ in factors], [len(node.cost) for node in problem.nodes])
    assert steps is not None
    choice = least(steps, [table for _, table in factors])
    return problem.cost(choice)


@pytest.mark.parametrize("program", NETS)
@pytest.mark.parametrize("objective", Objective)
def test_it_costs_no_more_than_the_node_changed_alone_and_no_less_than_with_all_freedom(
    program: str, objective: Objective
) -> None:
    found = solved(NETS[program], objective=objective)
    for reason in reasons(found)[::3]:
        other = reason.others[0]
        assert alike(other.row, found.axes) != alike(found.rows[reason.node], found.axes)
        assert other.cost == pytest.approx(
            found.cost + other.computation + other.communication + other.relative, rel=1e-9
        )
        single = alone(found, reason.node, other.row, parameters=False)
        assert other.cost <= single.cost((0,) * len(single.nodes)) * (1 + 1e-9)
        free = alone(found, reason.node, other.row, parameters=True)
        assert other.cost >= cheapest(free) * (1 - 1e-9)


def test_no_other_row_of_any_node_is_cheaper_with_the_parameters_left_as_they_are() -> None:
    found = solved(NETS["dense"])
    for reason in reasons(found, top=3):
        costs = [other.cost for other in reason.others]
        assert costs == sorted(costs)
        for row in candidates(found, reason.node)[1:60:7]:
            single = alone(found, reason.node, tuple(row.tolist()), parameters=False)
            if alike(row.tolist(), found.axes) != alike(found.rows[reason.node], found.axes):
                assert costs[0] <= single.cost((0,) * len(single.nodes)) * (1 + 1e-9)


def test_a_row_that_does_not_fit_is_not_the_next_best_but_is_told() -> None:
    free = solved(NETS["dense"])
    problem = assemble(free.costs, [np.array([row]) for row in free.rows], float("inf"))
    peak = problem.memory((0,) * len(free.rows))
    tight = solved(NETS["dense"], memory_limit=0.7 * peak)
    told = reasons(tight)
    assert all(other.fits for reason in told for other in reason.others)
    unfit = [reason.unfit for reason in told if reason.unfit is not None]
    assert all(not other.fits and other.cost < tight.cost and other.memory > 0 for other in unfit)


def held(problem: Problem, choice: list[int]) -> float:
    return problem.memory(choice) - max(float(n.transient[c]) for n, c in zip(problem.nodes, choice, strict=True))


@pytest.mark.parametrize(
    ("objective", "room"),
    [(Objective.TIME, 1.0), (Objective.TIME, 0.8), (Objective.TIME, 0.6), (Objective.SYMTENSOR, 1.0)],
)
def test_where_no_parameter_or_copy_follows_every_row_is_weighed_as_it_is(objective: Objective, room: float) -> None:
    """room: the limit over what the cheapest holds."""
    free = solved(NETS["dense"], objective=objective)
    peak = assemble(free.costs, [np.array([row]) for row in free.rows], float("inf")).memory((0,) * len(free.rows))
    found = solved(NETS["dense"], objective=objective, memory_limit=room * peak)
    costs, told = found.costs, 0
    for reason in reasons(found, top=4):
        v, links = reason.node, [costs.net.links[number] for number in costs.net.links_of[reason.node]]
        if any(costs.net.nodes[w].operator is None for link in links for w in (link.producer, link.consumer)):
            continue
        rows = [np.array([row]) for row in found.rows]
        rows[v] = candidates(found, v)  # the chosen one first

        def with_choice(v: int, c: int, nodes: int = len(rows)) -> list[int]:
            return [c if w == v else 0 for w in range(nodes)]

        problem, node = assemble(costs, rows, found.memory_limit, found.gamma), costs.net.nodes[v]
        work, relative = costs.passes(node, rows[v]), costs.node(v, rows[v]).relative / found.gamma
        seconds = costs.training.turns * node.times * (work.forward + work.backward)
        best: dict[object, float] = {}
        unfit = []
        for c, row in enumerate(rows[v].tolist()):
            choice, look = with_choice(v, c), alike(row, found.axes)
            cost, fits = problem.cost(choice), problem.memory(choice) <= found.memory_limit * (1 + 1e-12)
            if look == alike(found.rows[v], found.axes):
                continue
            if fits:
                best[look] = min(best.get(look, cost), cost)
            elif cost < found.cost * (1 - 1e-9):
                unfit.append(cost)
        assert [other.cost for other in reason.others] == pytest.approx(sorted(best.values())[:4])
        for other in reason.others:
            c = next(n for n, row in enumerate(rows[v].tolist()) if tuple(row) == other.row)
            assert other.memory == pytest.approx(held(problem, with_choice(v, c)) - held(problem, with_choice(v, 0)))
            assert other.computation == pytest.approx(seconds[c] - seconds[0])
            assert other.relative == pytest.approx(relative[c] - relative[0])
            told += 1
        assert (reason.unfit is None) == (not unfit)
        if reason.unfit is not None:
            assert reason.unfit.cost == pytest.approx(min(unfit))
    assert told > 5


@pytest.mark.parametrize("of", [*NETS.values(), FROZEN], ids=[*NETS, "frozen"])
def test_parameters_follow_in_the_best_way_there_is(of: Net) -> None:
    """One axis a level, so that along each they may lie whole or flat by themselves."""
    found = solved(of, mesh=Mesh((MeshLevel("nvlink", 2, 4e11, 1e-6), MeshLevel("rail", 2, 5e10, 1e-5))))
    net, told = found.costs.net, 0
    for reason in reasons(found, top=16):
        links = [net.links[number] for number in net.links_of[reason.node]]
        beside = {w for link in links for w in (link.producer, link.consumer)}
        if any(net.nodes[w].copy for w in beside):
            continue
        for other in reason.others:
            free = alone(found, reason.node, other.row, parameters=True)
            assert other.cost == pytest.approx(cheapest(free))
            told += any(net.nodes[w].parameter is not None for w in beside)
    assert told > 2


@pytest.mark.parametrize("room", [0.45, 0.5, 0.8])
def test_whatever_can_be_made_to_fit_by_its_parameters_is_among_the_others(room: float) -> None:
    """room: of what is between the least that this program can do with and what its cheapest partition holds."""
    mesh = Mesh((MeshLevel("nvlink", 2, 4e11, 1e-6), MeshLevel("rail", 2, 5e10, 1e-5)))
    free = solved(NETS["convolutions"], mesh=mesh)
    rows = spaces(free.costs, free.axes)
    assert rows is not None
    least = least_memory(assemble(free.costs, rows, float("inf")))
    cheap = assemble(free.costs, [np.array([row]) for row in free.rows], float("inf"))
    limit = least + room * (cheap.memory((0,) * len(free.rows)) - least)
    found = solved(NETS["convolutions"], mesh=mesh, memory_limit=limit)
    told = 0
    for reason in reasons(found, top=1000):
        looks = set()
        for row in candidates(found, reason.node).tolist():
            able = alone(replace(found, memory_limit=limit), reason.node, tuple(row), parameters=True)
            if least_memory(able) <= limit:
                looks.add(alike(row, found.axes))
        mine = {alike(other.row, found.axes) for other in reason.others}
        assert mine == looks - {alike(found.rows[reason.node], found.axes)}
        told += len(mine)
    assert told > 20


def test_forty_nodes_of_hundreds_of_rows_take_a_moment() -> None:
    found = solved(net(transformer(2)))
    started = process_time()
    told = reasons(found)
    assert len(told) > 25
    assert process_time() - started < 1.5
