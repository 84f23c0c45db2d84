"""The next best row of a node is what a search over the node and its neighbours finds."""

from __future__ import annotations

from itertools import product
from time import process_time

import numpy as np
import pytest

from symconfig.cost.partition.costs import Objective
from symconfig.graph.program.net import net
from symconfig.solve.partition.assemble import assemble
from symconfig.solve.partition.eliminate import least, plan
from symconfig.solve.partition.problem import Problem
from symconfig.solve.partition.reasons import Solved, candidates, reasons
from symconfig.solve.partition.rows import allowed
from symconfig.solve.partition.strategy import alike
from tests.solve.partition.programs import convolutions, transformer
from tests.solve.partition.solved import solved

NETS = {"dense": net(transformer(1, tied=True)), "convolutions": net(convolutions())}


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
        if edge.u == edge.v:
            factors.append(((edge.u,), np.diagonal(edge.cost)))
        else:
            factors.append(((edge.u, edge.v), edge.cost) if edge.u < edge.v else ((edge.v, edge.u), edge.cost.T))
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


def test_forty_nodes_of_hundreds_of_rows_take_a_moment() -> None:
    found = solved(net(transformer(2)))
    started = process_time()
    told = reasons(found)
    assert len(told) > 25
    assert process_time() - started < 1.5
