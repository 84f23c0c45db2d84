"""Moves between layouts: nothing is lost."""

from __future__ import annotations

from symconfig.solve.mixed.layers import moves
from symconfig.solve.split import Split

CHUNKS = (("embedding", "dense", "dense"), ("dense",), ("dense", "dense"), ("dense", "head"))


def test_every_move_keeps_every_block_in_order_and_moves_one_layer() -> None:
    found = list(moves(Split(2, 2, CHUNKS)))
    assert len(found) == len(set(found)) == 4 * 3
    for chunks in found:
        assert [kind for chunk in chunks for kind in chunk] == [kind for chunk in CHUNKS for kind in chunk]
        sizes = [len(new) - len(old) for new, old in zip(chunks, CHUNKS, strict=True)]
        assert sorted(sizes) == [-1, 0, 0, 1]
