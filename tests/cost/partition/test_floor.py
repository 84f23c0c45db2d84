"""What no strategy can go below falls with every GPU, and is what is kept of the whole program on one."""

from __future__ import annotations

from math import prod

import pytest

from symconfig.cost.partition.costs import floor_bytes
from symconfig.graph.program.net import net
from tests.solve.partition.programs import transformer
from tests.solve.partition.solved import solved

COSTS = solved(net(transformer(1))).costs


@pytest.mark.parametrize("gpus", [2, 8, 64])
def test_an_equal_share_on_each_gpu(gpus: int) -> None:
    assert floor_bytes(COSTS, gpus) * gpus == pytest.approx(floor_bytes(COSTS, 1))


def test_states_of_all_parameters_are_there() -> None:
    sizes = COSTS.framework.bytes
    parameters = sum(node.times * prod(node.ports[0].sizes) for node in COSTS.net.nodes if node.parameter is not None)
    assert floor_bytes(COSTS, 1) > (2 + sizes.gradient + sizes.optimizer) * parameters
