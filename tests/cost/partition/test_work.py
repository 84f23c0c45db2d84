"""Seconds of operators on one GPU, and of messages along one axis of a mesh, by the oracle's arithmetic."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

from symconfig.cost.partition import rates
from symconfig.cost.partition.work import work
from symconfig.descriptor.load import load_cluster
from symconfig.descriptor.mesh import Mesh, MeshLevel, of_cluster
from symconfig.graph.layout import Kind
from symconfig.graph.operator import Work
from symconfig.graph.program.build import build
from symconfig.graph.program.net import Net, Node, net
from tests.oracle import given, seconds
from tests.oracle.given import ATTENTION_BACKWARD, PEAK
from tests.oracle.judged import cluster, gpu
from tests.solve.partition.programs import Maker, transformer

PROGRAM = net(transformer(1))
NODE_AXES = Mesh((MeshLevel("nvlink", 4, 4e11, 1e-6),)).axes()
PARTS = rates.elements(NODE_AXES)


def whole(of: Net, node: Node) -> tuple[float, float]:
    """Forward and backward where nothing is split."""
    found = work(of.program, node, np.zeros((1, len(PARTS)), dtype=np.int64), PARTS, gpu())
    return float(found.forward[0]), float(found.backward[0])


def of_kind(kind: Work) -> list[Node]:
    return [node for node in PROGRAM.nodes if node.operator is not None and node.operator.work is kind]


def test_attention_is_two_products_forward_and_five_backward() -> None:
    nodes = of_kind(Work.ATTENTION)
    assert nodes
    for node in nodes:
        op = node.operator
        rows = float(np.prod([PROGRAM.program.sizes[loop] for loop in op.outputs[0].loops[:-1]]))
        each = op.channels / 2  # of queries and keys, and of values
        wanted = tuple(seconds.attention(rows, op.attended, each, 1, backward) for backward in (False, True))  # type: ignore[arg-type]
        assert whole(PROGRAM, node) == pytest.approx(wanted)
    assert cluster().gpu.peak_flops.fp16.value == PEAK
    assert ATTENTION_BACKWARD < 1


def test_a_product_takes_three_products_of_the_oracle_and_a_split_one_those_of_its_part() -> None:
    sizes = PROGRAM.program.sizes
    for node in of_kind(Work.MATMUL):
        op = node.operator
        assert op is not None
        for option, what in enumerate(node.options):
            parts = {loop: 4 if what.split and loop in what.split.loops else 1 for loop in op.loops}
            first, second, out = (set(operand.loops) for operand in (*op.inputs, *op.outputs))
            m, n, k = (
                prod(sizes[loop] // parts[loop] for loop in loops) for loops in (out - second, out - first, first - out)
            )
            found = work(PROGRAM.program, node, np.full((1, len(PARTS)), option), PARTS, gpu())
            assert found.forward[0] == pytest.approx(seconds.product(1, m, n, k))
            assert found.backward[0] == pytest.approx(seconds.product(1, m, k, n) + seconds.product(1, k, n, m))


def test_a_product_of_an_input_without_a_gradient_is_followed_by_that_of_its_weight_only() -> None:
    make = Maker({"b": 512, "h": 256, "f": 1024})
    x, weight, y = make.tensor("x", "b", "h", gradient=False), make.weight("w", "h", "f"), make.tensor("y", "b", "f")
    make.add(build("*", "up", [x, weight], [y]))
    of = net(make.program(("x",), "y", "b"))
    node = next(node for node in of.nodes if node.operator is not None)
    assert whole(of, node) == pytest.approx((seconds.product(1, 512, 1024, 256), seconds.product(1, 256, 1024, 512)))


def test_everything_else_reads_and_writes_its_tensors_once() -> None:
    """A gelu reads what came in again backward, beside a gradient of either side; a sum only the gradients."""
    by_name = {node.name: node for node in of_kind(Work.MEMORY)}
    up = 16 * 64 * 512 * 2
    assert whole(PROGRAM, by_name["layers.0.gelu"]) == pytest.approx(
        (seconds.memory_bound(2 * up), seconds.memory_bound(3 * up))
    )
    stream = 16 * 64 * 128 * 2
    assert whole(PROGRAM, by_name["layers.0.mlp_residual"]) == pytest.approx((seconds.memory_bound(3 * stream),) * 2)


def test_a_look_up_reads_the_rows_that_it_takes_and_writes_a_gradient_of_the_whole_table() -> None:
    embed = next(node for node in of_kind(Work.MEMORY) if node.name == "embed")
    ids, rows, table = 16 * 64 * 8, 16 * 64 * 128 * 2, 256 * 128 * 2
    read = min(rows, table)
    assert whole(PROGRAM, embed) == pytest.approx(
        (seconds.memory_bound(read + rows + ids), seconds.memory_bound(table + rows + ids))
    )


MESH = of_cluster(cluster(), 4 * given.NODE)
AXES = MESH.axes()
SPEEDS = rates.seconds(AXES, MESH, cluster())
AMOUNTS = 10.0 ** np.arange(11)


@pytest.mark.parametrize("index", range(len(AXES)), ids=[axis.name for axis in AXES])
def test_collectives_take_what_the_oracle_counts_from_a_byte_to_ten_billion(index: int) -> None:
    axis, rate = AXES[index], SPEEDS[index]
    for amount in AMOUNTS.tolist():
        assert rate.cost(Kind.ALL_GATHER, amount) == pytest.approx(seconds.ring(amount, axis.size, axis.stride))
        assert rate.cost(Kind.ALL_REDUCE, amount) == pytest.approx(
            seconds.ring(amount, axis.size, axis.stride, passes=2)
        )
        assert rate.cost(Kind.ALL_TO_ALL, amount) == pytest.approx(seconds.all_to_all(amount, axis.size, axis.stride))
        assert rate.send(amount) == pytest.approx(seconds.send(amount, axis.size, axis.stride))


def test_the_axes_are_of_both_levels() -> None:
    assert {axis.level for axis in AXES} == {"nvlink", "spine"}
    assert [rate.size for rate in SPEEDS] == [axis.size for axis in AXES]


def test_links_between_pairs_are_a_mesh() -> None:
    amd = load_cluster("mi300x")
    found = rates.levels(of_cluster(amd, 16), amd)
    assert [found[f"level{index}_mesh"] for index in (0, 1)] == [1.0, 0.0]


def test_one_gpu_has_no_links() -> None:
    assert rates.levels(of_cluster(cluster(), 1), cluster()) == {}


def test_elements_that_leave_a_rank_do_not_depend_on_the_link() -> None:
    for axis, rate in zip(AXES, rates.elements(AXES), strict=True):
        share = (axis.size - 1) / axis.size
        prices = [float(rate.cost(kind, 60.0)) for kind in (Kind.ALL_GATHER, Kind.ALL_REDUCE, Kind.ALL_TO_ALL)]
        assert [*prices, float(rate.send(60.0))] == [60 * share, 120 * share, 60 * share, 60.0]


def test_a_collective_over_several_axes_is_the_oracles_over_all_of_their_ranks() -> None:
    """Neighbours from the first axis on, of several levels too: one axis after the other adds up to it."""
    for amount in AMOUNTS.tolist():
        group, sums = 0, dict.fromkeys((Kind.ALL_GATHER, Kind.ALL_REDUCE, Kind.ALL_TO_ALL), 0.0)
        for index, rate in enumerate(SPEEDS):
            sums = {kind: sums[kind] + float(rate.cost(kind, amount, group)) for kind in sums}
            group += rate.step
            ranks = AXES[index].stride * AXES[index].size
            assert sums[Kind.ALL_GATHER] == pytest.approx(seconds.ring(amount, ranks, 1))
            assert sums[Kind.ALL_REDUCE] == pytest.approx(seconds.ring(amount, ranks, 1, passes=2))
            assert sums[Kind.ALL_TO_ALL] == pytest.approx(seconds.all_to_all(amount, ranks, 1))


def test_a_group_with_gaps_in_two_levels_has_the_time_of_its_members_alone() -> None:
    """Every second GPU of a node and every node: half of the node's links cross the border."""
    inner, outer = SPEEDS[1:3], SPEEDS[3:]
    size, group, total = 1, 0, 0.0
    for rate in (*inner, *outer):
        total, group, size = total + float(rate.cost(Kind.ALL_GATHER, 1e10, group)), group + rate.step, size * rate.size
    assert total == pytest.approx(seconds.ring(1e10, size, 2))


def test_on_links_between_pairs_a_group_of_all_has_all_links() -> None:
    """Eight GPUs with a link between each two: a group of n has n - 1 of seven links, however the mesh is cut."""
    bandwidth = 7e11
    mesh = Mesh((MeshLevel("xgmi", 8, bandwidth, 0.0, mesh=True),))
    share = cluster().kernels.link_efficiency.value
    for cuts in (((8,),), ((2, 4),), ((2, 2, 2),)):
        group, total = 0, 0.0
        for rate in rates.seconds(mesh.axes(cuts), mesh, cluster()):
            total, group = total + float(rate.cost(Kind.ALL_GATHER, 1e10, group)), group + rate.step
        assert total == pytest.approx(7 / 8 * 1e10 / (bandwidth * share))
