"""What is said where no partition fits is true of the partitions of the problem."""

from __future__ import annotations

from dataclasses import replace

import pytest

from symconfig.cost.partition.costs import Keep
from symconfig.descriptor.load import load_cluster
from symconfig.descriptor.mesh import Mesh, MeshLevel
from symconfig.graph import dims as d
from symconfig.graph.program.program import Program
from symconfig.solve.partition.infeasible import infeasible, lightest
from symconfig.solve.partition.run import Ask, Solver, partition
from tests.solve.partition.programs import transformer

PROGRAM = transformer(2)


def mesh(gpus: int) -> Mesh:
    return Mesh((MeshLevel("nvlink", gpus, 4e11, 1e-6),))


def programs(turns: int) -> Program:
    return PROGRAM


def long(turns: int) -> Program:
    one_head = {d.SEQUENCE: 65536, d.KEYS: 65536, d.HEADS: 1, d.KV_HEADS: 1, d.HEAD_DIM: 128}
    return transformer(1, **one_head, **{d.BATCH: 2 // turns})


LONG = Ask(mesh(8), load_cluster("h100"), 1.0, solver=Solver.ADAPTIVE, turns=(1, 2), keeps=(Keep.USED, Keep.SHARDS))
ASK = Ask(mesh(2), load_cluster("h100"), 1.0, solver=Solver.ADAPTIVE)


def test_the_lightest_partition_fits_where_it_is_the_limit_and_nothing_fits_below_its_bound() -> None:
    found = lightest(programs, ASK)
    assert 0 < found.bound <= found.memory
    assert partition(programs, replace(ASK, memory_limit=found.memory * (1 + 1e-9))) is not None
    assert partition(programs, replace(ASK, memory_limit=found.bound * (1 - 1e-6))) is None


def test_the_lightest_is_that_of_all_turns_and_of_all_that_may_be_kept() -> None:
    """Of few sequences and one head only tokens can be split, and keys of all of them are used: what is kept of those
    matters, and no floor says so."""
    least = {
        (turns, keep): lightest(long, replace(LONG, turns=(turns,), keeps=(keep,)))
        for turns in LONG.turns
        for keep in LONG.keeps
    }
    memories = {case: found.memory for case, found in least.items()}
    assert memories[1, Keep.SHARDS] < memories[1, Keep.USED]
    found = lightest(long, LONG)
    assert found.memory == pytest.approx(min(memories.values()), rel=1e-9)
    assert found.bound <= found.memory
    assert (found.case.training.turns, found.case.training.keep) == min(memories, key=lambda case: memories[case])
    assert str(infeasible(long, replace(LONG, memory_limit=2.0**20), lambda times: None)).count(" of 1.00 MiB;") == 1


def test_the_mesh_that_is_named_holds_it_and_what_binds_is_the_largest() -> None:
    least = lightest(programs, ASK).memory
    ask = replace(ASK, memory_limit=0.6 * least)
    error = infeasible(programs, ask, lambda times: mesh(2 * times))
    said = str(error)
    assert "nothing fits in memory" in said
    assert "most of it is" in said
    gpus = int(said.split("Try: ")[1].split()[0])
    assert partition(programs, replace(ask, mesh=mesh(gpus))) is not None


def test_where_no_mesh_helps_it_says_so() -> None:
    error = infeasible(programs, ASK, lambda times: None)
    assert "no larger mesh was found to hold it" in str(error)


def test_a_solver_that_misses_what_fits_does_not_call_it_impossible() -> None:
    least = lightest(programs, ASK).memory
    error = infeasible(programs, replace(ASK, memory_limit=2 * least), lambda times: mesh(2 * times))
    assert "found no partition that fits, though one holds" in str(error)
    assert error.exit_code == 1


@pytest.mark.parametrize("limit", [1.0, 1e4])
def test_a_limit_below_everything_is_refused_by_the_search(limit: float) -> None:
    assert partition(programs, replace(ASK, memory_limit=limit)) is None
