"""The space of rows that a parameter may have."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from symconfig.graph.program.net import net
from symconfig.solve.partition.rows import spaces
from tests.solve.partition.programs import convolutions, transformer
from tests.solve.partition.solved import MESH, solved

NETS = {"dense": net(transformer(1)), "tied": net(transformer(1, tied=True)), "convolutions": net(convolutions())}


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("flat", [True, False])
def test_every_row_of_a_parameter_goes_with_some_row_of_each_that_reads_it(name: str, flat: bool) -> None:
    costs = replace(solved(NETS[name]).costs, flat=flat)
    rows = spaces(costs, MESH.axes())
    assert rows is not None
    for index, link in enumerate(costs.net.links):
        parameter = costs.net.nodes[link.producer]
        if parameter.parameter is None:
            continue
        able = np.isfinite(costs.link(index, rows[link.producer], rows[link.consumer]).cost)
        assert able.any(axis=1).all()
        assert able.any(axis=0).all()
        taken = {parameter.options[option].zero for option in rows[link.producer].flat}
        assert taken == ({0, 1, 2, 3} if flat else {0})
