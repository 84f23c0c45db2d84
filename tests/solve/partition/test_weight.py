"""What an operator weighs when degrees are read off a strategy: FLOPs of a product, elements of anything else."""

from __future__ import annotations

from math import prod

import pytest

from symconfig.graph.operator import Work
from symconfig.graph.program.net import net
from symconfig.solve.partition.project import weight
from tests.solve.partition.programs import transformer


@pytest.mark.parametrize("layers", [1, 2])
def test_a_product_weighs_its_flops(layers: int) -> None:
    of = net(transformer(layers))
    seen = set()
    for node in of.nodes:
        op = node.operator
        if op is None:
            continue
        seen.add(op.work)
        if op.work is Work.MEMORY:
            assert weight(of.program, node) == node.times * sum(prod(port.sizes) for port in node.ports)
        elif op.work is not Work.ATTENTION:
            loops = {loop for one in op.inputs[:2] for loop in one.loops}
            assert weight(of.program, node) == 2 * node.times * prod(of.program.sizes[loop] for loop in loops)
    assert len(seen) > 1
