"""What a change of place counts for when rows follow their neighbours is what the cost rules count."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from symconfig.cost.partition.change import change
from symconfig.cost.partition.rates import elements
from symconfig.descriptor.mesh import Axis
from symconfig.graph.program.net import PARTIAL, WHOLE
from symconfig.solve.partition.follow import NEVER, move


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
