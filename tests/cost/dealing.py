"""The longest part of a buffer whose weights Megatron-LM's layer-wise optimizer deals out whole, weight by weight.

core_v0.19, optimizer/layer_wise_optimizer.py, _compute_per_buffer_param_layout: weights come last layer first, until
there are enough of them for a bucket; of a bucket the largest goes first to whoever has least.
"""

from __future__ import annotations

from collections.abc import Sequence

FULL = 0.9  # of a bucket that its largest weight alone would fill on every rank
LEAST = 40_000_000  # elements of a bucket, or a million for each rank


def longest_part(sizes: Sequence[int], ranks: int) -> int:
    """Elements of every rank's part, all buckets together. sizes: in the order of the model."""
    bucket, total = [], 0
    least = max(LEAST, 1_000_000 * ranks)
    for size in reversed(sizes):
        bucket.append(size)
        if sum(bucket) >= max(least, int(ranks * max(bucket) * FULL)):
            total += _packed(bucket, ranks)
            bucket = []
    return total + (_packed(bucket, ranks) if bucket else 0)


def _packed(bucket: Sequence[int], ranks: int) -> int:
    held = [0] * ranks
    for size in sorted(bucket, reverse=True):
        held[held.index(min(held))] += size
    return max(held)
