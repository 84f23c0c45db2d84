"""How Megatron-LM lays parameters into gradient buffers and cuts these into buckets and shards: whole numbers only.

DistributedOptimizer._compute_per_buffer_param_layout and, without the distributed optimizer,
_compute_default_per_buffer_param_layout (core_v0.19.2; the same in _ParamAndGradBuffer since core_v0.12).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm

LEAST_BUCKET = 40_000_000  # elements (training.py, resolve_ddp_bucket_size)
BUCKET_OF_A_RANK = 1_000_000  # elements that each data-parallel rank adds to that, when there are many
PARAMETER_STARTS = 64  # elements: 128 bytes in 16 bits
BUCKET_ENDS = 128  # elements: 256 bytes in 16 bits


@dataclass(frozen=True, slots=True)
class Piece:
    """A parameter to lay: its elements, and whether it wants a bucket of its own."""

    elements: int
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket from `start` to `end` in the buffer, of which the last part is padding from `filled` on.

    places: where its parameters begin and end; there may be padding between them.
    """

    start: int
    filled: int
    end: int
    places: tuple[tuple[int, int], ...]

    def shard(self, ranks: int, rank: int) -> tuple[int, ...]:
        """Count the elements of each parameter that fall into one rank's equal share of the bucket."""
        share = (self.end - self.start) // ranks
        low = self.start + rank * share
        return tuple(max(0, min(end, low + share) - max(start, low)) for start, end in self.places)


def bucket_size(ranks: int) -> int:
    """Return the elements after which a bucket is closed, where the reduction of gradients overlaps the backward."""
    return max(LEAST_BUCKET, BUCKET_OF_A_RANK * ranks)


def buckets(pieces: Sequence[Piece], size: int | None, ranks: int, sharded: bool) -> tuple[Bucket, ...]:
    """Divide the buffer of parameters into buckets.

    They are in their order of registration, of which the last comes first.

    size: elements that close a bucket; None: all in one. sharded: over `ranks`, so that parameters and buckets are
    padded and a piece that wants to is alone; else nothing is.
    """
    starts, ends = (PARAMETER_STARTS, lcm(ranks, BUCKET_ENDS)) if sharded else (1, 1)
    closed: list[Bucket] = []
    places: list[tuple[int, int]] = []
    begin = start = 0

    def close(end: int) -> int:
        closed.append(Bucket(begin, end, _padded(end, ends), tuple(places)))
        places.clear()
        return closed[-1].end

    for piece in reversed(pieces):
        start = _padded(start, starts)
        alone = sharded and piece.alone
        if alone and places:
            begin = start = close(start)
        end = start + piece.elements
        places.append((start, end))
        start = end
        if alone or (size is not None and end - begin >= size):
            begin = start = close(end)
    if places:
        close(start)
    return tuple(closed)


def _padded(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
