"""Seconds of a program's operators on one GPU, by the oracle's arithmetic."""

from __future__ import annotations

import numpy as np
import pytest

from symconfig.cost.partition import rates
from symconfig.cost.partition.work import work
from symconfig.descriptor.mesh import Mesh, MeshLevel
from symconfig.graph.program.net import Net, Node, net
from symconfig.graph.program.program import Work
from tests.oracle import seconds
from tests.oracle.given import ATTENTION_BACKWARD, PEAK
from tests.oracle.judged import cluster, gpu
from tests.solve.partition.programs import transformer

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
        assert op is not None
        rows = float(np.prod([PROGRAM.program.sizes[loop] for loop in op.outputs[0].loops[:-1]]))
        each = op.channels / 2  # of queries and keys, and of values
        wanted = tuple(seconds.attention(rows, op.attended, each, 1, backward) for backward in (False, True))  # type: ignore[arg-type]
        assert whole(PROGRAM, node) == pytest.approx(wanted)
    assert cluster().gpu.peak_flops.fp16.value == PEAK
    assert ATTENTION_BACKWARD < 1
