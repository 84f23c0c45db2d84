"""Lengths of sequences as few numbers say them: the lognormal distribution of their mean and 95th percentile, cut.

Lengths of responses are skewed to the right; a lognormal distribution is what two numbers tell of such a one.
"""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from symconfig.descriptor.job import Packing
from symconfig.descriptor.rl import Lengths, Rl

Array = NDArray[np.float64]
GROUPS = 64  # of equal share
_HIGH = NormalDist().inv_cdf(0.95)
_WIDEST = 4.0  # standard deviation of the logarithm
_STEPS = 60  # of a bisection


def quantiles(lengths: Lengths, groups: int = GROUPS) -> Array:
    """Return [groups] lengths, each of an equal share of the sequences, shortest first, with the stated mean."""
    deviates = np.array([NormalDist().inv_cdf((index + 0.5) / groups) for index in range(groups)])

    def spread(width: float) -> Array:
        """The distribution with this percentile, so wide; a wider one has a lower mean."""
        return np.minimum(lengths.high * np.exp(width * (deviates - _HIGH)), lengths.max)

    low, high = 0.0, _WIDEST
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if spread(middle).mean() > lengths.mean else (low, middle)
    found = spread(high)
    scaled: Array = np.clip(found * lengths.mean / found.mean(), 1.0, lengths.max)
    return scaled


def packing(rl: Rl, groups: int = 8) -> Packing:
    """Return the documents that a micro-batch of packed sequences holds."""
    each = rl.prompt_length.mean + quantiles(rl.response_length, groups)
    return Packing(lengths=tuple(round(value) for value in each))
