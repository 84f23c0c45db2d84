"""What `partition` answers is the best of all ways of running a step, each solved by itself."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import inf

import numpy as np
import pytest

from symconfig.cost.partition.costs import Keep, Objective, Training
from symconfig.descriptor.load import load_cluster
from symconfig.descriptor.mesh import Mesh, MeshLevel
from symconfig.graph.program.build import build
from symconfig.graph.program.program import Program
from symconfig.solve.partition import exact
from symconfig.solve.partition.problem import Solution, assemble
from symconfig.solve.partition.rows import spaces
from symconfig.solve.partition.run import Ask, Partition, Programs, Solver, cases, costs_of, partition
from tests.solve.partition.programs import Maker

CLUSTER = load_cluster("h100")
MESH = Mesh((MeshLevel("nvlink", 2, 4e11, 1e-6), MeshLevel("rail", 2, 5e10, 1e-5)))
LARGE = Mesh((MeshLevel("nvlink", 64, 4e11, 1e-6),))  # six axes, which make four in two ways
ASK = Ask(MESH, CLUSTER, inf, turns=(1, 2, 4), limit_s=60.0)


@cache
def programs(turns: int, layers: int = 2) -> Program:
    """Layers of two products with a gelu between them, on a batch of 256."""
    make = Maker({"b": 256 // turns, "h": 256, "f": 1024})
    x = make.tensor("x", "b", "h")
    for layer in range(layers):
        u, g, y = (make.tensor(f"{layer}.{name}", "b", dim) for name, dim in (("u", "f"), ("g", "f"), ("y", "h")))
        make.add(build("*", f"{layer}.up", [x, make.weight(f"{layer}.up", "h", "f")], [u]))
        make.add(build("gelu", f"{layer}.gelu", [u], [g]))
        make.add(build("*", f"{layer}.down", [g, make.weight(f"{layer}.down", "f", "h")], [y]))
        x = y
    return make.program(("x",), x.tensor.name, "b")


def each(ask: Ask, programs: Programs = programs) -> dict[Training, Solution]:
    """The optimum of every way of running the step, over all ways of cutting the mesh."""
    found: dict[Training, Solution] = {}
    for case in cases(programs, ask):
        for axes in ask.mesh.shapes():
            costs = costs_of(case, ask, axes)
            rows = spaces(costs, axes)
            assert rows is not None
            one = exact.solve(assemble(costs, rows, ask.memory_limit))
            assert one.optimal
            found[case.training] = min(one, found.get(case.training, one), key=lambda some: some.cost)
    return found


def solved(ask: Ask, programs: Programs = programs) -> Partition:
    found = partition(programs, ask)
    problem = assemble(found.costs, [np.array([row]) for row in found.rows], inf)
    first = (0,) * len(found.rows)
    assert (found.cost, found.memory) == pytest.approx((problem.cost(first), problem.memory(first)))
    assert found.memory <= ask.memory_limit
    assert found.bound <= found.cost
    assert not found.closed or found.optimal
    return found


@cache
def cheapest_bytes() -> float:
    """What the cheapest holds where there is no limit."""
    return solved(ASK).memory


@pytest.mark.parametrize("room", [inf, 0.65])
def test_exact_is_the_best_of_all_ways_and_closes_them(room: float) -> None:
    ask = replace(ASK, memory_limit=room * cheapest_bytes(), solver=Solver.EXACT)
    best = min(each(ask).values(), key=lambda one: one.cost)
    found = solved(ask)
    assert found.cost == pytest.approx(best.cost, rel=1e-9)
    assert found.optimal
    assert found.closed
    assert found.bound == pytest.approx(found.cost)
    assert found.gap == 0.0
    assert replace(found, bound=0.75 * found.cost).gap == pytest.approx(0.25)
    assert {trial.solver for trial in found.trials} == {"adaptive", "exact"}
    searched = [trial for trial in found.trials if trial.solver == "exact"]
    assert len({trial.training for trial in searched}) == len(searched)
    assert all(trial.bound is not None and trial.bound >= found.cost * (1 - 1e-9) for trial in searched)
    assert all(trial.bound is None for trial in found.trials if trial.solver == "adaptive")


@pytest.mark.parametrize("room", [inf, 0.6])
def test_auto_proves_the_best_of_the_microbatches_that_the_adaptive_solver_chose(room: float) -> None:
    ask = replace(ASK, memory_limit=room * cheapest_bytes())
    adaptive, found = solved(replace(ask, solver=Solver.ADAPTIVE)), solved(ask)
    assert found.costs.training == adaptive.costs.training
    assert found.cost == pytest.approx(each(ask)[found.costs.training].cost, rel=1e-9)
    assert found.cost <= adaptive.cost <= 1.15 * found.cost  # at 0.6 its cuts end 7 % above
    assert found.optimal
    assert not found.closed  # of others it knows nothing
    assert not adaptive.optimal
    assert adaptive.bound == 0.0
    assert {trial.solver for trial in adaptive.trials} == {"adaptive"}


def test_auto_closes_what_can_be_run_in_one_way_only() -> None:
    found = solved(replace(ASK, turns=(1,), keeps=(Keep.USED,)))
    assert found.closed
    assert found.optimal


def test_more_microbatches_are_tried_only_where_memory_rules_fewer_out() -> None:
    """Adaptive: where all fits with one, more are not."""
    free = solved(replace(ASK, solver=Solver.ADAPTIVE))
    assert {trial.training.turns for trial in free.trials} == {1}
    tight = solved(replace(ASK, solver=Solver.ADAPTIVE, memory_limit=0.65 * free.memory))
    assert {trial.training.turns for trial in tight.trials} > {1}
    every = solved(replace(ASK, solver=Solver.EXACT))
    assert {trial.training.turns for trial in every.trials if trial.solver == "exact"} == {1, 2, 4}


def test_out_of_time_nothing_is_called_closed() -> None:
    found = solved(replace(ASK, solver=Solver.EXACT, limit_s=0.0))
    assert not found.closed


def test_the_relative_cost_is_that_of_the_fewest_microbatches_that_fit() -> None:
    ask = replace(ASK, objective=Objective.SYMTENSOR, gamma=50.0, keeps=(Keep.USED, Keep.SHARDS))
    found = solved(ask)
    first = Training(turns=1, keep=Keep.USED)
    assert found.costs.training == first
    assert found.gamma == 50.0
    assert found.cost == pytest.approx(each(ask)[first].cost)
    assert found.optimal
    assert not found.closed
    assert solved(replace(ask, turns=(1,), keeps=(Keep.USED,))).closed


def test_without_a_gamma_the_relative_cost_is_proved_at_the_one_that_was_found() -> None:
    ask = replace(
        ASK, objective=Objective.SYMTENSOR, turns=(1,), keeps=(Keep.USED,), memory_limit=0.75 * cheapest_bytes()
    )
    found = solved(ask)
    assert found.optimal
    assert found.cost == pytest.approx(each(replace(ask, gamma=found.gamma))[found.costs.training].cost)


def test_every_way_of_cutting_a_large_mesh_is_tried() -> None:
    limit = cheapest_bytes() / 4
    ask = replace(ASK, mesh=LARGE, turns=(1,), keeps=(Keep.USED,), memory_limit=limit, solver=Solver.EXACT, limit_s=2.0)
    shapes = LARGE.shapes()
    found = solved(ask)
    assert len(shapes) > 1
    assert {trial.axes for trial in found.trials if trial.bound is not None} == set(shapes)
    assert {trial.axes for trial in solved(replace(ask, solver=Solver.ADAPTIVE)).trials} == set(shapes)
    assert 0 < found.bound <= found.cost
    assert found.gap < 0.1  # memory is tight: in two seconds nothing is proved


def test_below_what_any_strategy_holds_there_is_none() -> None:
    assert partition(programs, replace(ASK, memory_limit=1.0)) is None
