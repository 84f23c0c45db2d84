"""Alpa's space as a filter: counted against the number of its strategies, and what it leaves out."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from benchmarks.alpa import alpa_space, alpa_spaces
from symconfig.descriptor.mesh import Mesh, MeshLevel
from symconfig.graph.program.net import net
from tests.solve.partition.programs import transformer
from tests.solve.partition.strategies import Way, named_rows, way

AXES = Mesh((MeshLevel("nvlink", 4, 1e11, 1e-6), MeshLevel("rail", 4, 1e10, 1e-5))).axes()
NET = net(transformer(1))


def test_each_mesh_dim_splits_one_dim_or_none() -> None:
    space = alpa_space(AXES)
    assert space.mesh == (0, 0, 1, 1)
    for node in NET.nodes:
        every = np.array(list(product(range(len(node.options)), repeat=4)))
        able = [
            option
            for option, what in enumerate(node.options)
            if what.zero == 0 and (what.name != "partial" and (node.copy or what.name != "pending"))
        ]
        assert space.allows(node, every).sum() == len(able) ** 2


def test_tensor_and_data_parallel_are_in_it_and_three_kinds_at_once_are_not() -> None:
    space = alpa_space(AXES)

    def all_allowed(degrees: Way) -> bool:
        rows = named_rows(NET, AXES, "megatron-tp", degrees)
        assert rows is not None
        return all(space.allows(node, row[None])[0] for node, row in zip(NET.nodes, rows, strict=True))

    assert all_allowed(way(tp=4, dp=4, sequence_parallel=True))
    assert not all_allowed(way(tp=4, cp=2, dp=2, sequence_parallel=True))
    assert not all_allowed(way(tp=4, dp=4, zero=1))


def test_every_mesh_of_two_dims_is_tried() -> None:
    assert [sum(part == 0 for part in space.mesh) for space in alpa_spaces(AXES)] == [1, 2, 3, 4]
    assert alpa_space(AXES, 8).mesh == (0, 0, 0, 1)
    with pytest.raises(ValueError, match="no axis of the mesh ends after 3 ranks"):
        alpa_space(AXES, 3)
