"""What is said where no partition fits is true of the partitions of the problem."""

from __future__ import annotations

from dataclasses import replace

import pytest

from symconfig.cost.partition.costs import Keep, Objective, floor_bytes
from symconfig.descriptor.load import load_model
from symconfig.descriptor.mesh import Mesh, MeshLevel
from symconfig.graph import dims as d
from symconfig.graph.program.of_model import program as of_model
from symconfig.graph.program.program import Program
from symconfig.solve.partition.run import Ask, Solver, cases, costs_of, infeasible, partition
from tests.sample_models import sample_cluster
from tests.solve.partition.programs import transformer

PROGRAM = transformer(2)


def mesh(gpus: int) -> Mesh:
    return Mesh((MeshLevel("nvlink", gpus, 4e11, 1e-6),))


def programs(turns: int) -> Program:
    return PROGRAM


ASK = Ask(mesh(2), sample_cluster(), 1.0, solver=Solver.ADAPTIVE, keeps=(Keep.USED,))


@pytest.mark.parametrize("share", [0.6, 0.2])
def test_the_mesh_that_is_named_holds_it_and_the_one_of_half_as_many_does_not(share: float) -> None:
    floor = floor_bytes(costs_of(next(cases(programs, ASK)), ASK, ()), 2)
    ask = replace(ASK, memory_limit=share * floor)
    said = str(infeasible(programs, ask, lambda times: mesh(2 * times)))
    assert f"at least {floor / 2**20:,.2f} MiB are kept on a GPU" in said
    gpus = int(said.split("Try: ")[1].split()[0])
    assert partition(programs, replace(ask, mesh=mesh(gpus))) is not None
    assert partition(programs, replace(ask, mesh=mesh(gpus // 2))) is None


@pytest.mark.parametrize(
    ("sizes", "name", "expected"),
    [  # on two GPUs: states of 18 bytes; what is kept of every layer
        (
            {d.FFN: 8192, d.BATCH: 2},
            "weight layers.*.up_proj with its gradient and optimizer state",
            3 * 18 * 128 * 8192 / 2,
        ),
        ({d.BATCH: 512, "layers": 6}, "tensor layers.*.up", 6 * 512 * 64 * 512 * 2 / 2),
    ],
)
def test_what_binds_is_the_largest_of_states_and_of_what_is_kept(
    sizes: dict[str, int], name: str, expected: float
) -> None:
    said = str(infeasible(lambda turns: transformer(**{"layers": 3, **sizes}), ASK, lambda times: None))
    assert f"most of it is {name} ({expected / 2**20:.2f} MiB)" in said
    assert "no larger mesh was found to hold it" in said


@pytest.mark.parametrize("limit", [1.0, 1e4])
def test_a_limit_below_everything_is_refused_by_the_search(limit: float) -> None:
    assert partition(programs, replace(ASK, memory_limit=limit)) is None


@pytest.mark.parametrize("objective", Objective)
def test_the_adaptive_solver_comes_near_to_what_nothing_can_hold_less_than(objective: Objective) -> None:
    """States of 6.7 thousand million parameters on eight GPUs; the floor is everything in eighths."""
    model = load_model("llama2-7b")
    ask = replace(ASK, mesh=mesh(8), objective=objective, keeps=(Keep.BORDERS,))

    def large(turns: int) -> Program:
        return of_model(model, 8, 2048)

    floor = floor_bytes(costs_of(next(cases(large, ask)), ask, ()), 8)
    assert partition(large, replace(ask, memory_limit=1.05 * floor)) is not None
