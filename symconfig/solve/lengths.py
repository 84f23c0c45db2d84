"""Lengths of sequences as few numbers say them: the lognormal distribution of their mean and 95th percentile, cut.

Lengths of responses are skewed to the right; a lognormal distribution is what two numbers tell of such a one.
"""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from symconfig.descriptor.job import Packing
from symconfig.descriptor.tuning import Lengths, Rl

Array = NDArray[np.float64]
GROUPS = 64  # number of quantiles, each of an equal share of the sequences
_HIGH = NormalDist().inv_cdf(0.95)
_WIDEST = 4.0  # largest standard deviation of the log length
_STEPS = 60  # of a bisection


def quantiles(lengths: Lengths, groups: int = GROUPS) -> Array:
    """Return lengths in tokens of equally many sequences each, shortest first, [groups], with the stated mean.

    They follow a lognormal distribution with the stated 95th percentile, cut at `lengths.max`, of the width that gives
    the mean; then they are scaled to it and clipped to 1 and `lengths.max`, which can move the mean.
    """
    deviates = np.array([NormalDist().inv_cdf((index + 0.5) / groups) for index in range(groups)])

    def spread(width: float) -> Array:
        """Return the cut lognormal quantiles with the stated 95th percentile and this log standard deviation."""
        return np.minimum(lengths.high * np.exp(width * (deviates - _HIGH)), lengths.max)

    low, high = 0.0, _WIDEST
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if spread(middle).mean() > lengths.mean else (low, middle)
    points = spread(high)
    scaled: Array = np.clip(points * lengths.mean / points.mean(), 1.0, lengths.max)
    return scaled


def longest_of(lengths: Lengths, count: int) -> float:
    """Return the expected length in tokens of the longest of `count` sequences."""
    shares = (np.arange(GROUPS + 1) / GROUPS) ** count
    return float(quantiles(lengths) @ np.diff(shares))


def documents(lengths: Lengths, before: float = 0.0, groups: int = 8) -> Packing:
    """Return a packing of `groups` documents with the lengths' quantiles in tokens. before: tokens added to each."""
    return Packing(lengths=tuple(round(before + value) for value in quantiles(lengths, groups)))


def packing(rl: Rl) -> Packing:
    """Return a packing of documents: a prompt of mean length with a response each."""
    return documents(rl.response_length, before=rl.prompt_length.mean)
