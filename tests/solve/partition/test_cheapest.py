"""The cheapest strategy that a framework can be told is the cheapest of all, one degrees after the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import product
from math import inf

import numpy as np
import pytest

from symconfig.cost.machine import machine
from symconfig.cost.partition import rates
from symconfig.cost.partition.costs import Costs, Keep, Objective, Training
from symconfig.descriptor.load import load_cluster, load_model
from symconfig.descriptor.mesh import Mesh, MeshLevel
from symconfig.graph.program.net import Net, net
from symconfig.graph.program.program import Program
from symconfig.solve.partition.assemble import assemble
from symconfig.solve.partition.baselines import baseline
from symconfig.solve.partition.cheapest import cheapest, expressed, of_all, space
from symconfig.solve.partition.collectives import Rows
from symconfig.solve.partition.degrees import Way, way
from symconfig.solve.partition.expressible import expressible
from symconfig.solve.partition.frameworks import Framework, Step, blockers, runs
from symconfig.solve.partition.project import project
from symconfig.solve.partition.run import Ask, Case, Partition
from tests.solve.partition import programs
from tests.solve.partition.programs import convolutions, transformer

CLUSTER = load_cluster("h100")
MESH = Mesh((MeshLevel("nvlink", 4, 4e11, 1e-6), MeshLevel("rail", 2, 5e10, 1e-5)))
AXES = MESH.axes()
RANKS = (1, 2, 4, 8)
STEP = Step(batch=16)


def frozen(program: Program) -> Program:
    """Weights that are not trained, but for the last one's."""
    return programs.frozen(program, [one.tensor.name for one in program.parameters[:-1]])


NETS = {
    "dense": net(transformer(1)),
    "experts": net(transformer(1, experts=True)),
    "images": net(convolutions()),
    "frozen": net(frozen(convolutions())),
}


def costs(of: Net, objective: Objective = Objective.TIME, keep: Keep = Keep.USED) -> Costs:
    timed = objective is Objective.TIME
    speeds = rates.seconds(AXES, MESH, CLUSTER) if timed else rates.elements(AXES)
    return Costs(of, speeds, machine(CLUSTER, "bf16"), Training(keep=keep), objective)


def every_degrees(of: Net) -> Iterator[Way]:
    """Counted out, with no regard to what goes together."""
    grids = product(RANKS, RANKS, RANKS, RANKS, (False, True), ("p2p", "a2a"), range(4))
    for tp, cp, ep, etp, switched, comm, zero in grids:
        known = (tp > 1 or not switched) and (cp > 1 or comm == "p2p") and (of is NETS["experts"] or ep * etp == 1)
        if known and tp * cp <= 8 and ep * etp <= 8:
            yield way(tp, cp, 8 // (tp * cp), ep, etp, sequence_parallel=switched, cp_comm=comm, zero=zero)


@cache
def each_alone(name: str) -> dict[Way, Rows]:
    """The strategy of every degrees that has one, each made by itself."""
    of = NETS[name]
    made = {degrees: baseline(of, AXES, "megatron-tp", degrees).rows for degrees in every_degrees(of)}
    return {degrees: rows for degrees, rows in made.items() if rows is not None}


@cache
def taken(framework: Framework, degrees: Way) -> bool:
    return bool(runs(framework, STEP, [degrees])[0])


def one_by_one(name: str, weighed: Costs, gamma: float) -> list[tuple[Way, float, float]]:
    """Every degrees with its cost and bytes, each strategy made and weighed by itself."""
    found = []
    for degrees, rows in each_alone(name).items():
        if any(taken(framework, degrees) for framework in Framework):
            problem = assemble(weighed, [np.array([row]) for row in rows], inf, gamma)
            first = (0,) * len(rows)
            found.append((degrees, problem.cost(first), problem.memory(first)))
    return found


@pytest.mark.parametrize("name", NETS)
def test_rows_are_those_of_each_degrees_by_themselves(name: str) -> None:
    found = expressible(NETS[name], AXES, lambda degrees: np.ones(len(degrees), dtype=bool))
    assert len(set(found.ways)) == len(found.ways)
    assert set(each_alone(name)) == set(found.ways)
    for degrees, rows in zip(found.ways, found.rows, strict=True):
        assert np.array_equal(rows, np.asarray(each_alone(name)[degrees]))


@pytest.mark.parametrize("objective", Objective)
@pytest.mark.parametrize("name", NETS)
def test_the_cheapest_is_the_cheapest_of_all(name: str, objective: Objective) -> None:
    gamma = inf if objective is Objective.TIME else 2.0
    weighed = costs(NETS[name], objective)
    where = space(NETS[name], AXES, STEP)
    every, free = one_by_one(name, weighed, gamma), cheapest(where, weighed, inf, gamma)
    for told, share in product(free, (inf, 1.0, 0.9, 0.6, 0.0)):
        limit = told.memory * share if share < inf else inf
        mine = [some[1:] for some in every if taken(told.framework, some[0])]
        fitting = [(cost, memory) for cost, memory in mine if memory <= limit]
        found = next(one for one in cheapest(where, weighed, limit, gamma) if one.framework is told.framework)
        assert found.fits == bool(fitting)
        if fitting:
            assert found.cost == pytest.approx(min(fitting)[0], rel=1e-12)
        else:
            assert found.memory == pytest.approx(min(memory for _, memory in mine), rel=1e-12)


def test_what_frameworks_refuse_is_not_told() -> None:
    dense = [
        way(dp=8, zero=3), way(tp=2, dp=4, sequence_parallel=True, zero=1), way(tp=2, dp=4, zero=2),
        way(cp=2, dp=4, cp_comm="a2a", zero=1), way(cp=2, dp=4, zero=1),
        way(tp=2, cp=2, dp=2, cp_comm="a2a"),
    ]  # fmt: skip
    for model in (None, load_model("llama2-7b")):
        step = Step(1, model, 16, 4096, "hopper")
        assert runs(Framework.MEGATRON, step, dense).tolist() == [True, True, False, True, True, True]
        assert runs(Framework.DEEPSPEED, step, dense).tolist() == [True, False, True, True, False, False]
    experts = [way(dp=8, ep=8, zero=1), way(dp=8, ep=8, zero=3), way(dp=8, ep=4, etp=2)]
    step = Step(1, load_model("mixtral-8x7b"), 16, 4096, "hopper")
    assert runs(Framework.MEGATRON, step, experts).tolist() == [True, True, False]
    assert runs(Framework.DEEPSPEED, step, experts).tolist() == [True, True, False]
    adapted = Step(1, load_model("qwen-7b-lora"), 16, 4096, "hopper")
    assert not runs(Framework.MEGATRON, adapted, dense).any()


def test_what_alone_refuses_all_is_named() -> None:
    refused = blockers(Framework.MEGATRON, Step(batch=4), [way(dp=8), way(tp=1, dp=8, zero=2)])
    assert "a microbatch has whole examples on every rank" in refused
    none = blockers(Framework.MEGATRON, Step(batch=4), [way(dp=8), way(tp=2, dp=4)])
    assert "a microbatch has whole examples on every rank" not in none
    assert blockers(Framework.MEGATRON, Step(batch=8), [way(dp=8)]) == ()


def test_a_microbatch_is_whole_examples() -> None:
    assert runs(Framework.MEGATRON, Step(batch=4), [way(dp=8), way(tp=2, dp=4)]).tolist() == [False, True]


def solved(rows: np.ndarray[tuple[int, int], np.dtype[np.int64]], limit: float) -> Partition:
    of = costs(NETS["dense"])
    problem = assemble(of, [row[None] for row in rows], inf)
    alone = (0,) * len(rows)
    ask = Ask(MESH, CLUSTER, limit)
    strategy = tuple(map(tuple, rows.tolist()))
    return Partition(ask, of, AXES, strategy, problem.cost(alone), problem.memory(alone), inf, "by hand")


def told_of(found: Partition, every: tuple[Case, ...] = ()) -> dict[Framework, tuple[Way, bool, bool]]:
    projection = project(found.net, AXES, np.array(found.rows))
    return {
        one.by.framework: (one.by.way, one.exact, one.by.fits)
        for one in expressed(found, projection, lambda _: STEP, lambda: every)
    }


def test_a_framework_is_told_the_partition_itself_where_it_can_be() -> None:
    degrees = way(tp=2, dp=4, sequence_parallel=True, zero=1)
    rows = baseline(NETS["dense"], AXES, "megatron-tp", degrees).rows
    assert rows is not None
    told = told_of(solved(rows[:, [1, 0, 2]], inf))
    assert told[Framework.MEGATRON] == (degrees, True, True)
    other, exact, fits = told[Framework.DEEPSPEED]
    assert not other.sequence_parallel
    assert not exact
    assert fits


def test_where_nothing_fits_another_way_of_running_the_step_is_told() -> None:
    rows = baseline(NETS["dense"], AXES, "zero3").rows
    assert rows is not None
    rows[0] = 0  # no degrees
    of = costs(NETS["dense"])
    least = {told.framework: told.memory for told in cheapest(space(of.net, AXES, STEP), of, 0.0)}
    found = solved(rows, 0.9 * min(least.values()))
    assert told_of(found) == {}
    lean = replace(of.training, keep=Keep.SHARDS)
    small = Case(net(transformer(1, batch=8)), replace(lean, turns=2))
    told = of_all([small], found.ask, AXES, lambda training: Step(training.turns, batch=8))
    assert told_of(found, (small,)).keys() == {one.framework for one in told}
    assert {one.training.turns for one in told} == {2}
