"""What is said where no partition fits is true of the partitions of the problem."""

from __future__ import annotations

from dataclasses import replace

import pytest

from symconfig.cost.partition.costs import Keep, Objective
from symconfig.descriptor.load import load_model
from symconfig.descriptor.mesh import Mesh, MeshLevel
from symconfig.graph import dims as d
from symconfig.graph.program.of_model import program as of_model
from symconfig.graph.program.program import Program
from symconfig.solve.partition.infeasible import infeasible, lightest
from symconfig.solve.partition.run import Ask, Solver, partition
from tests.sample_models import sample_cluster
from tests.solve.partition.programs import transformer

PROGRAM = transformer(2)


def mesh(gpus: int) -> Mesh:
    return Mesh((MeshLevel("nvlink", gpus, 4e11, 1e-6),))


def programs(turns: int) -> Program:
    return PROGRAM


def long(turns: int) -> Program:
    one_head = {d.SEQUENCE: 65536, d.KEYS: 65536, d.HEADS: 1, d.KV_HEADS: 1, d.HEAD_DIM: 128}
    return transformer(1, **one_head, **{d.BATCH: 2 // turns})


LONG = Ask(mesh(8), sample_cluster(), 1.0, solver=Solver.ADAPTIVE, turns=(1, 2), keeps=(Keep.USED, Keep.SHARDS))
ASK = Ask(mesh(2), sample_cluster(), 1.0, solver=Solver.ADAPTIVE)


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


def odd(turns: int) -> Program:
    """Examples that can be cut oddly."""
    return transformer(1, **{d.BATCH: 3 * 5 * 7 * 16, d.SEQUENCE: 8, d.KEYS: 8})


@pytest.mark.parametrize("room", [0.9, 0.3, 0.15, 0.143])
def test_the_mesh_is_the_least_in_eighths_of_the_first_doubled_one_that_does(room: float) -> None:
    ask = replace(ASK, keeps=(Keep.USED,))
    limit = room * lightest(odd, ask).memory

    def fits(times: int) -> bool:
        return lightest(odd, replace(ask, mesh=mesh(2 * times))).memory <= limit

    doubled = next(2**power for power in range(1, 8) if fits(2**power))
    between = [doubled * eighths // 8 for eighths in (5, 6, 7) if doubled * eighths % 8 == 0]
    least = next((times for times in between if fits(times)), doubled)
    said = str(infeasible(odd, replace(ask, memory_limit=limit), lambda times: mesh(2 * times)))
    assert f"Try: {2 * least} GPUs, on which" in said


@pytest.mark.parametrize(
    ("sizes", "name", "expected"),
    [  # on two GPUs: states of 18 bytes; what is kept of every layer; twice what a gelu reads and writes
        (
            {d.FFN: 8192, d.BATCH: 2},
            "weight layers.*.up_proj with its gradient and optimizer state",
            3 * 18 * 128 * 8192 / 2,
        ),
        ({d.BATCH: 512, "layers": 6}, "tensor layers.*.up", 6 * 512 * 64 * 512 * 2 / 2),
        ({d.BATCH: 512}, "what layers.*.gelu reads and writes while it runs", 2 * 2 * 512 * 64 * 512 * 2 / 2),
    ],
)
def test_what_binds_is_the_largest_of_states_of_what_is_kept_and_of_what_runs(
    sizes: dict[str, int], name: str, expected: float
) -> None:
    ask = replace(ASK, keeps=(Keep.USED,))
    said = str(infeasible(lambda turns: transformer(**{"layers": 3, **sizes}), ask, lambda times: None))
    assert f"most of it is {name} ({expected / 2**20:.2f} MiB)" in said


@pytest.mark.parametrize(
    ("gib", "words"), [(0.09, "92.16 MiB"), (0.101, "0.10 GiB"), (99.4, "99.40 GiB"), (100.6, "101 GiB")]
)
def test_sizes_are_said_in_units_that_suit_them(gib: float, words: str) -> None:
    large = transformer(1, **{d.BATCH: 2**16, d.SEQUENCE: 2**10, d.KEYS: 2**10, d.HIDDEN: 2**12, d.FFN: 2**14})
    error = infeasible(lambda turns: large, replace(ASK, memory_limit=gib * 2**30), lambda times: None)
    assert f"), of {words}; most of it is" in str(error)


def test_what_was_found_is_said_with_the_bytes_that_nothing_is_below() -> None:
    said, found = str(infeasible(long, LONG, lambda times: None)), lightest(long, LONG)
    assert found.bound < found.memory
    what = "with 1 or 2 microbatches the least-memory partition that was found holds"
    assert f"{what} {found.memory / 2**30:,.2f} GiB on a GPU" in said
    assert f"(none can hold less than {found.bound / 2**20:,.2f} MiB), of" in said


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


@pytest.mark.parametrize("objective", Objective)
def test_the_adaptive_solver_comes_near_to_what_nothing_can_hold_less_than(objective: Objective) -> None:
    """States of 6.7 thousand million parameters on eight GPUs; the floor is everything in eighths."""
    model = load_model("llama2-7b")
    ask = replace(ASK, mesh=mesh(8), objective=objective, keeps=(Keep.BORDERS,))
    found = lightest(lambda turns: of_model(model, 8, 2048), ask)
    assert found.memory <= 1.05 * found.bound
