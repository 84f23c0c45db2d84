"""Seconds of a program's operators on one GPU, by the oracle's arithmetic."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

from symconfig.cost.partition import rates
from symconfig.cost.partition.work import work
from symconfig.descriptor.mesh import Mesh, MeshLevel
from symconfig.graph.operator import Work
from symconfig.graph.program.build import build
from symconfig.graph.program.net import Net, Node, net
from tests.oracle import seconds
from tests.oracle.given import ATTENTION_BACKWARD, PEAK
from tests.oracle.judged import cluster, gpu
from tests.solve.partition.programs import Maker, transformer

PROGRAM = net(transformer(1))
AXES = Mesh((MeshLevel("nvlink", 4, 4e11, 1e-6),)).axes()
SPEEDS = rates.elements(AXES)


def whole(of: Net, node: Node) -> tuple[float, float]:
    """Forward and backward where nothing is split."""
    found = work(of.program, node, np.zeros((1, len(SPEEDS)), dtype=np.int64), SPEEDS, gpu())
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
            found = work(PROGRAM.program, node, np.full((1, len(SPEEDS)), option), SPEEDS, gpu())
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
