"""What a change of place counts for when rows follow their neighbours is what the cost rules count."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from symconfig.cost.partition.change import change
from symconfig.cost.partition.rates import elements
from symconfig.descriptor.mesh import Axis
from symconfig.graph import dims as d
from symconfig.graph.layout import PARTIAL, WHOLE
from symconfig.graph.program.net import net
from symconfig.solve.partition.follow import NEVER, Arrival, matching, move
from tests.solve.partition.programs import transformer


@pytest.mark.parametrize("size", [2, 3, 8])
@pytest.mark.parametrize(("before", "after"), list(product((WHOLE, PARTIAL, 0, 1), repeat=2)))
def test_a_move_counts_as_the_elements_that_leave_a_rank(before: int, after: int, size: int) -> None:
    counted = move(before, after, size)
    if after == PARTIAL != before:
        assert counted == NEVER  # sums are not made of what is whole or split
        return
    assert counted == pytest.approx(
        float(np.asarray(change([before], [after], 1.0, elements([Axis("node", size, 1)]))))
    )


def test_options_match_by_how_many_elements_lie_as_they_arrive() -> None:
    """The gelu's input by its rows, sequence or columns; a sum with both inputs by one dim has twice as many."""
    nodes = {node.name: node for node in net(transformer(1)).nodes if node.operator is not None}
    gelu, add = nodes["layers.0.gelu"], nodes["layers.0.mlp_residual"]

    def named(name: str, *arrivals: Arrival) -> list[str]:
        return [nodes[name].options[option].name for option in matching(nodes[name], arrivals)]

    assert [named(gelu.name, Arrival(0, at)) for at in range(3)] == [[d.BATCH], [d.SEQUENCE], [d.FFN]]
    assert named(gelu.name, Arrival(0, WHOLE)) == []
    assert named(add.name, Arrival(0, 1), Arrival(1, 2)) == [d.SEQUENCE, d.HIDDEN]
    lookup = nodes["embed"]  # a table of 256 x 128, ids of 16 x 64
    assert named(lookup.name, Arrival(1, 0), Arrival(0, 1)) == [d.HIDDEN, d.BATCH]
