"""Rows made from degrees give those degrees back; what no degrees give is listed, with the nearest that do."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

import symconfig
from symconfig.cost.partition.work import Rows
from symconfig.descriptor.mesh import Axis, Mesh, MeshLevel
from symconfig.graph.program.net import Net, net
from symconfig.solve.partition.baselines import baseline, random_rows
from symconfig.solve.partition.degrees import Way, way
from symconfig.solve.partition.project import pins, project, weight
from tests.solve.partition.programs import convolutions, transformer

AXES = Mesh((MeshLevel("nvlink", 4, 1e11, 1e-6), MeshLevel("rail", 2, 1e10, 1e-5))).axes()
DENSE, EXPERTS = net(transformer(2)), net(transformer(1, experts=True))


def made(of: Net, asked: Way, axes: tuple[Axis, ...] = AXES) -> Rows:
    found = baseline(of, axes, "megatron-tp", asked)
    assert found.rows is not None, found.why
    return found.rows


def every_degrees(ranks: int) -> list[Way]:
    powers = [1, 2, 4, 8]
    return [
        way(tp, cp, ranks // (tp * cp), sequence_parallel=sp, cp_comm=comm, zero=zero)
        for tp, cp, sp, comm, zero in product(powers, powers, (False, True), ("p2p", "a2a"), range(4))
        if tp * cp <= ranks and (tp > 1 or not sp) and (cp > 1 or comm == "p2p") and (cp * tp < ranks or not zero)
    ]


@pytest.mark.parametrize("asked", every_degrees(8), ids=str)
def test_degrees_come_back(asked: Way) -> None:
    found = project(DENSE, AXES, made(DENSE, asked))
    assert found.exact, list(map(str, found.differences))
    assert found.way == asked
    assert found.agreement == pytest.approx(1.0)


@pytest.mark.parametrize(("ep", "etp"), [(1, 1), (2, 1), (4, 1), (8, 1), (2, 2), (4, 2), (1, 4), (1, 8)])
@pytest.mark.parametrize("tp", [1, 2, 4])
def test_degrees_of_experts_come_back(tp: int, ep: int, etp: int) -> None:
    asked = way(tp, 1, 8 // tp, ep, etp, sequence_parallel=tp > 1)
    assert project(EXPERTS, AXES, made(EXPERTS, asked)).way == asked


def test_which_of_equal_axes_carries_what_makes_no_difference() -> None:
    asked = way(tp=2, dp=4, sequence_parallel=True, zero=1)
    swapped = made(DENSE, asked)[:, [1, 0, 2]]
    found = project(DENSE, AXES, swapped)
    assert found.exact
    assert found.way == asked


def test_one_operator_on_other_axes_than_the_rest_is_a_difference() -> None:
    rows = made(DENSE, way(tp=2, dp=4, sequence_parallel=True))
    index = next(i for i, node in enumerate(DENSE.nodes) if node.name == "layers.0.gelu" and node.operator)
    rows[index] = rows[index][[1, 0, 2]]
    found = project(DENSE, AXES, rows)
    both = "batch/2, intermediate_size/2"
    assert [str(what) for what in found.differences] == [
        f"layers.*.gelu: {both} instead of {both} along other axes over nvlink"
    ]


def test_axes_of_one_level_may_be_taken_in_another_order() -> None:
    axes = Mesh((MeshLevel("nvlink", 6, 1e11, 1e-6),)).axes(((2, 3),))
    of = net(
        transformer(
            1,
            batch=12,
            sequence=48,
            num_attention_heads=18,
            num_key_value_heads=18,
            intermediate_size=96,
            padded_vocab_size=96,
        )
    )
    swapped = made(of, way(tp=3, dp=2), (axes[1], axes[0]))[:, [1, 0]]
    found = project(of, axes, swapped)
    assert found.exact
    assert [axis.size for axis in found.axes] == [3, 2]
    assert (found.way.degrees.tp, found.way.degrees.dp) == (3, 2)


def test_what_differs_is_told_by_level_and_counted() -> None:
    rows = made(DENSE, way(tp=4, dp=2, sequence_parallel=True))
    for index, node in enumerate(DENSE.nodes):
        if node.operator is not None and node.name.endswith("mlp_norm"):
            rows[index, :2] = 0
    found = project(DENSE, AXES, rows)
    assert found.way == way(tp=4, dp=2, sequence_parallel=True)
    assert not found.exact
    assert [str(what) for what in found.differences] == [
        "layers.*.mlp_norm (x 2): whole instead of sequence/4 over nvlink"
    ]
    assert np.array_equal(found.rows, made(DENSE, found.way))


def test_the_nearest_degrees_agree_with_most_of_the_work() -> None:
    rows = made(DENSE, way(dp=8))
    other = made(DENSE, way(tp=2, dp=4))
    attention = [index for index, node in enumerate(DENSE.nodes) if "attention" in node.name and node.operator]
    rows[attention] = other[attention]
    found = project(DENSE, AXES, rows)
    assert found.way == way(dp=8)
    assert 0.8 < found.agreement < 1.0
    assert {what.name for what in found.differences} >= {"layers.*.attention"}


def alike(rows: Rows, other: Rows) -> float:
    """The share of the work on axes that do the same, node by node: of each level's axes, options that both have."""
    levels = [[n for n, axis in enumerate(AXES) if axis.level == level] for level in {axis.level for axis in AXES}]
    shared = total = 0.0
    for index, node in enumerate(DENSE.nodes):
        if node.operator is not None:
            work = weight(DENSE.program, node)
            total += work * len(AXES)
            for mine in levels:
                shared += work * (Counter(rows[index, mine]) & Counter(other[index, mine])).total()
    return shared / total


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_no_degrees_agree_with_more_of_the_work(seed: int) -> None:
    rows = random_rows(DENSE, AXES, seed)
    found = project(DENSE, AXES, rows)
    every = [replace(one, zero=found.way.zero) for one in every_degrees(8) if not one.zero]
    able = (baseline(DENSE, AXES, "megatron-tp", one).rows for one in every)
    assert found.agreement == pytest.approx(max(alike(rows, each) for each in able if each is not None))


def test_tensor_parallel_between_nodes_is_not_what_ranks_can_have() -> None:
    """Megatron's ranks have tp innermost."""
    rows = made(DENSE, way(tp=2, dp=4))[:, [2, 1, 0]]
    found = project(DENSE, AXES, rows)
    assert not found.exact
    assert found.way in (way(dp=8), way(tp=2, dp=4), way(tp=8))


def test_a_program_without_heads_is_data_parallel_at_most() -> None:
    of = net(convolutions())
    rows = baseline(of, AXES, "zero2").rows
    assert rows is not None
    assert project(of, AXES, rows).way == way(dp=8, zero=2)
    spatial = baseline(of, AXES, "spatial").rows
    assert spatial is not None
    nearest = project(of, AXES, spatial)
    assert nearest.way.degrees.dp == 8
    assert any("i/4" in str(what) or "i/2" in str(what) for what in nearest.differences)


def test_pins_say_all_degrees() -> None:
    asked = way(tp=4, cp=2, dp=2, sequence_parallel=True, zero=1)
    assert pins(asked, 16) == {
        "tp": "4", "pp": "1", "cp": "2", "ep": "1", "etp": "1", "dp": "2", "zero": "1", "mbs": "8", "sp": "on",
        "cp_comm": "p2p",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("model", "asked", "args"),
    [
        ("llama2-7b", way(tp=4, cp=2, dp=1, sequence_parallel=True), ("--context-parallel-size 2", "p2p")),
        ("llama2-7b", way(tp=2, cp=2, dp=2, sequence_parallel=True, cp_comm="a2a", zero=1), ("a2a",)),
        ("llama2-7b", way(tp=8, dp=1), ()),
        ("mixtral-8x7b", way(tp=2, dp=4, ep=4, sequence_parallel=True, zero=1), {"--expert-model-parallel-size 4"}),
    ],
    ids=str,
)
def test_the_planner_renders_the_degrees_that_are_pinned(model: str, asked: Way, args: set[str]) -> None:
    limits = {"memory_margin": 0.0}
    found = symconfig.plan(
        model=model,
        cluster="b200",
        gpus=8,
        global_batch_size=16,
        seq_length=2048,
        pins=pins(asked, 2 * asked.degrees.dp),
        limits=limits,
        top=1,
    )
    best, line = found.best, " ".join(found.megatron_args())
    p = best.parallel
    assert (p.tp, p.pp, p.cp, p.dp, p.ep, p.etp) == (
        asked.degrees.tp,
        1,
        asked.degrees.cp,
        asked.degrees.dp,
        asked.degrees.ep,
        asked.degrees.etp,
    )
    assert (best.options.zero_stage, best.batch.micro) == (asked.zero, 2)
    assert f"--tensor-model-parallel-size {asked.degrees.tp}" in line
    assert ("--sequence-parallel" in line) == asked.sequence_parallel
    assert ("--use-distributed-optimizer" in line) == (asked.zero == 1)
    assert all(arg in line for arg in args)
