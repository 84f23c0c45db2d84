"""Layers of a chunk that are recomputed together: the input of the first one of each group is kept."""

from __future__ import annotations

import pytest

from symconfig.solve.costed import begins

CHUNK = ("embedding", "dense", "moe", "dense", "moe", "dense", "head")


@pytest.mark.parametrize(
    ("together", "kept"),
    [(1, (1, 2, 3, 4, 5)), (2, (1, 3, 5)), (3, (1, 4)), (5, (1,))],
)
def test_every_group_begins_with_a_layer_that_keeps_its_input(together: int, kept: tuple[int, ...]) -> None:
    expected = tuple(kind if place in (0, 6, *kept) else None for place, kind in enumerate(CHUNK))
    assert begins(CHUNK, together) == expected
