"""What a partition spends by part, counted from the program's sizes, and the best of each strategy that has a name."""

from __future__ import annotations

from dataclasses import replace
from math import inf, prod

import numpy as np
import pytest

from symconfig.cost.framework import Hide
from symconfig.cost.partition.costs import Keep, Objective, Training
from symconfig.descriptor.load import load_cluster
from symconfig.frameworks.megatron.behaviour import MEGATRON
from symconfig.graph import dims as d
from symconfig.graph.program.program import Program
from symconfig.solve.partition.account import spent
from symconfig.solve.partition.problem import assemble
from symconfig.solve.partition.run import Ask, Solver, baselines, folded, partition
from tests.solve.partition.programs import transformer
from tests.solve.partition.solved import MESH, solved
from tests.solve.partition.strategies import named_rows

NET = folded(transformer(3))
AXES = MESH.axes()
PARAMETERS = sum(prod(NET.program.sizes[dim] for dim in one.tensor.dims) for one in NET.program.parameters)


def rows(name: str) -> list[list[int]]:
    found = named_rows(NET, AXES, name)
    return found.tolist()


@pytest.mark.parametrize("name", ["data", "zero3", "megatron-tp-sp"])
@pytest.mark.parametrize("objective", Objective)
@pytest.mark.parametrize("keep", Keep)
def test_its_parts_are_all_that_it_costs_and_holds(name: str, objective: Objective, keep: Keep) -> None:
    costs = replace(solved(NET, objective=objective, training=Training(2, keep)).costs, gamma=5.0)
    found = spent(costs, AXES, rows(name))
    problem, first = assemble(costs, [np.array([row]) for row in rows(name)], inf), (0,) * len(NET.nodes)
    assert found.cost == pytest.approx(problem.cost(first))
    assert found.memory == pytest.approx(problem.memory(first))
    assert found.transient_bytes == max(float(node.transient[0]) for node in problem.nodes)
    assert (found.relative > 0) == (objective is Objective.SYMTENSOR)
    assert (found.computation > 0) == (objective is Objective.TIME) == (found.optimizer > 0)


@pytest.mark.parametrize(
    ("name", "parts"), [("data", (1, 1, 1)), ("zero1", (1, 1, 8)), ("zero2", (1, 8, 8)), ("zero3", (8, 8, 8))]
)
def test_states_are_two_four_and_twelve_bytes_of_each_parameter(name: str, parts: tuple[int, int, int]) -> None:
    """Rajbhandari et al., ZeRO (2020), figure 1, with fp32 gradients. Adam reads and writes 34 bytes of each."""
    costs = solved(NET).costs
    found = spent(costs, AXES, rows(name))
    states = (found.weights_bytes, found.gradients_bytes, found.optimizer_bytes)
    wanted = tuple(bytes_ * PARAMETERS / each for bytes_, each in zip((2, 4, 12), parts, strict=True))
    assert states == pytest.approx(wanted)
    assert found.optimizer == pytest.approx(34 * PARAMETERS / parts[2] / costs.machine.hbm_bytes_per_s)


def test_what_is_flat_has_a_part_of_every_dim_in_the_relative_cost() -> None:
    """The source paper's sum of d_i / s_i over gamma; eight ranks."""
    costs = replace(solved(NET, objective=Objective.SYMTENSOR).costs, gamma=5.0)
    whole, flat = (spent(costs, AXES, rows(name)).relative for name in ("data", "zero3"))
    dims = sum(NET.program.sizes[dim] for one in NET.program.parameters for dim in one.tensor.dims)
    assert whole - flat == pytest.approx(7 / 8 * dims / 5)


def test_a_dim_that_is_cut_counts_its_part_in_the_relative_cost() -> None:
    """Three weights of 128 x 512, as eighths of their columns, of both, or as they are."""
    costs = solved(NET, objective=Objective.SYMTENSOR).costs
    index = next(i for i, node in enumerate(NET.nodes) if node.parameter and node.name.endswith("up_proj"))
    names = [option.name for option in NET.nodes[index].options]
    width, ffn = names.index("hidden_size"), names.index("intermediate_size")
    found = costs.node(index, np.array([[ffn] * 3, [ffn, ffn, width], [0, 0, 0]])).relative
    assert found.tolist() == [3 * (128 + 512 / 8), 3 * (128 / 2 + 512 / 4), 3 * (128 + 512)]


def test_what_runs_forward_again_is_computed_once_more() -> None:
    """Only layers do: embedding, last norm, head and loss have no repeat."""
    used, borders = (solved(NET, training=Training(2, keep)).costs for keep in (Keep.USED, Keep.BORDERS))
    again = sum(
        2 * node.times * float(used.passes(node, np.array([row])).forward[0])
        for node, row in zip(NET.nodes, rows("data"), strict=True)
        if node.operator is not None and node.name.startswith("layers.")
    )
    more = spent(borders, AXES, rows("data")).computation - spent(used, AXES, rows("data")).computation
    assert more == pytest.approx(again)


def test_what_work_hides_is_not_what_communication_shows() -> None:
    costs = solved(NET).costs
    each = replace(costs, framework=replace(MEGATRON, hide=Hide())), costs
    plain, beside = (spent(one, AXES, rows("data")) for one in each)
    assert plain.overlapped == 0.0 < beside.overlapped
    assert beside.communication + beside.overlapped == pytest.approx(plain.communication)


def test_well_known_strategies_keep_to_their_definition_and_cost_no_less_than_what_is_free() -> None:
    """Of two layers and eight examples on eight GPUs; of four examples no data parallelism has enough."""

    def programs(turns: int, batch: int = 8) -> Program:
        return transformer(2, batch=batch // turns)

    free = partition(programs, Ask(MESH, load_cluster("h100"), inf, solver=Solver.ADAPTIVE))
    found = baselines(programs, free)
    assert list(found) == ["data", "zero1", "zero2", "zero3", "tensor"]
    for name, one in found.items():
        assert one.cost >= free.cost * (1 - 1e-9)
        for node, row in zip(one.net.nodes, one.rows, strict=True):
            taken = {node.options[option].name for option in row}
            if node.operator is not None:
                assert (d.BATCH not in taken) if name == "tensor" else taken == {d.BATCH}
            elif node.parameter is not None and name != "tensor":
                assert taken == {"whole" if name == "data" else name}
    few = partition(lambda turns: programs(turns, 4), free.ask)
    assert few is not None
    assert [one is None for one in baselines(lambda turns: programs(turns, 4), few).values()] == [True] * 4 + [False]
