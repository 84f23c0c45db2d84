"""How many keys a query attends to."""

from __future__ import annotations

from symconfig.descriptor.job import Packing


def attended(seq_length: int, window: int | None = None, packing: Packing | None = None) -> float:
    """Keys of a query in the mean under the causal mask, by document when sequences are packed."""
    lengths: tuple[int, ...] = packing.lengths if packing else (seq_length,)
    shares = packing.weights if packing and packing.weights else (1.0,) * len(lengths)
    pairs = tokens = 0.0
    for length, share in zip(lengths, shares, strict=True):
        length = min(length, seq_length)
        near = min(window or length, length)
        pairs += share * (near * near / 2 + (length - near) * near)
        tokens += share * length
    return pairs / tokens
